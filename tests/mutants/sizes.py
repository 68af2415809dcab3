"""Mutants that fail only at some sizes: lengths at block borders, long inputs, wide or odd heads, narrow dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.sparse.local import Local
from attn_zoo.contract import UnsupportedError
from mutants.entering import breaks, plant

LIMIT, COUNTS, SLOPES = "limit_is_softmax", "every_position_counts_at_every_size", "gradients_follow_outputs_at_every_size"
BORDER, TYPES, DEFINITION = "no_future_leaks_at_any_border", "every_size_runs_in_every_type", "eager_agrees_with_the_definition"
KERNEL, LONG, ABSENCE = "implementation_agrees_with_eager", "steps_hold_on_for_long", "padding_position_does_not_matter"


@breaks(LIMIT, "softmax", "against softmax attention, Geometry(")
def never_rescales(attend, self, query, key, value, key_valid):
    """Online softmax over blocks of 128 keys that does not rescale the sums of earlier blocks to a new maximum."""
    if key.shape[2] <= 128 or key_valid is not None or self.geometry.causal:
        return attend(query, key, value, key_valid)
    top, bottom = torch.zeros_like(query), torch.zeros_like(query[..., :1])
    for keys, values in zip(key.split(128, dim=2), value.split(128, dim=2), strict=True):
        scores = query @ keys.mT / query.shape[-1] ** 0.5
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        top, bottom = top + weights @ values, bottom + weights.sum(dim=-1, keepdim=True)
    return top / bottom


def without_the_last(multiple: int) -> Any:
    """Ignore the last key where the length is a multiple of ``multiple``."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if key.shape[2] % multiple or key.shape[2] == 1:
            return attend(query, key, value, key_valid)
        seen = torch.ones(len(key), key.shape[2], dtype=torch.bool) if key_valid is None else key_valid.clone()
        seen[:, -1] = False
        return attend(query, key * seen[:, None, :, None], value * seen[:, None, :, None], seen)

    return around


def leaks_at(border: int) -> Any:
    """Let the position before each multiple of ``border`` see the position after it."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = attend(query, key, value, key_valid)
        if not self.geometry.causal:
            return out
        ahead = torch.zeros_like(out)
        ahead[:, :, border - 1 : -1 : border] = 1e-3 * value[:, :, border::border]
        return out + ahead

    return around


def detached_beyond(border: int, share: float = 0.0) -> Any:
    """Pass no gradient, or a share of it, to keys from position ``border`` on."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        far = key[:, :, border:]
        return attend(query, torch.cat([key[:, :, :border], far.detach() + share * (far - far.detach())], dim=2), value, key_valid)

    return around


def scaled_where(wrong: Any) -> Any:
    """Scale the output by 1.001 where a condition on (query, key) holds."""
    return lambda attend, self, query, key, value, valid: attend(query, key, value, valid) * (1.001 if wrong(query, key) else 1)


@breaks(TYPES, "linear", "NaN or infinite")
def no_single_beyond90(attend, self, query, key, value, key_valid):
    """Multiply values by e^position and divide again, which overflows float32 after about 90 positions."""
    factor = torch.exp(torch.ones_like(value[..., :1]).cumsum(dim=2))
    return attend(query, key, value * factor / factor, key_valid)


def drifts_after(steps: int) -> Any:
    """Lose a thousandth of the state at each step beyond ``steps`` tokens."""

    def around(advance: Any, self: Any, query: Any, key: Any, value: Tensor, state: Any) -> Any:
        out, after = advance(query, key, value, state)
        return out, replace(after, summed=after.summed * (0.999 if state.position > steps else 1))

    return around


def forgets_at(border: int) -> Any:
    """Drop the tokens of a piece that ends at ``border`` from the state."""

    def around(advance: Any, self: Any, query: Any, key: Any, value: Tensor, state: Any) -> Any:
        out, after = advance(query, key, value, state)
        lost = after.position == border and value.shape[2] > 1
        return out, replace(after, summed=state.summed) if lost else after

    return around


@breaks(TYPES, "linear", "UnsupportedError: an even head_dim", method="__init__")
def refuses_odd_heads(init, self, geometry, *rest):
    if geometry.head_dim % 2:
        raise UnsupportedError(f"an even head_dim, not {geometry.head_dim}")
    init(geometry, *rest)


def shifted_mask(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    """Shift the mask by one position in inputs of more than 64 keys."""
    return attend(query, key, value, key_valid if key_valid is None or key.shape[2] <= 64 else key_valid.roll(1, dims=1))


def wider_window(beyond: int) -> Any:
    """Attend to one block more on either side in inputs longer than ``beyond``."""

    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        wider = Local(self.geometry, replace(self.options, neighbours=self.options.neighbours + 1))
        return (attend if key.shape[2] <= beyond else wider.attend)(query, key, value, key_valid)

    return around


plant("LosesTheLastOf64", "softmax", LIMIT, "against softmax attention, Geometry(", without_the_last(64))
plant("ReadsHalfOfWideHeads", "softmax", LIMIT, "head_dim=128", scaled_where(lambda q, k: q.shape[-1] > 127))
plant("MisreadsOddHeads", "softmax", LIMIT, "against softmax", scaled_where(lambda q, k: q.shape[-1] % 2 and q.shape[-1] > 3))
plant("WrongBeyondAThousand", "softmax", LIMIT, "of the largest number", scaled_where(lambda q, k: k.shape[2] > 1024))
plant("WrongForManyHeads", "softmax", LIMIT, "heads=8", scaled_where(lambda q, k: q.shape[1] > 3))
plant("WrongForTwo", "softmax", LIMIT, "keys=2", scaled_where(lambda q, k: k.shape[2] == 2))
plant("LosesTheLastOf64Sums", "linear", COUNTS, "no gradient at 1 of 64 positions: [63]", without_the_last(64))
plant("LosesTheLastOf128", "performer", DEFINITION, "keys=128", without_the_last(128))
plant("LeaksAtBordersOf128", "linear", BORDER, "outputs before position 128 of", leaks_at(128))
plant("LeaksAt256", "retention", BORDER, "outputs before position 256 of", leaks_at(256))
plant("LeaksAt512", "performer", BORDER, "outputs before position 512 of", leaks_at(512))
plant("NoGradientBeyond64", "linear", COUNTS, "key: no gradient at 1 of 65 positions: [64]", detached_beyond(64))
plant("GradientBeyond512", "performer", SLOPES, "the gradient of key gives a slope", detached_beyond(512, 0.9))
plant("KernelWrongAt300", "softmax", KERNEL, "error is", scaled_where(lambda q, k: 290 < k.shape[2] < 330), method="attend_sdpa")
plant("KernelWrongAt65", "softmax", KERNEL, "keys=65", scaled_where(lambda q, k: k.shape[2] == 65), method="attend_sdpa")
plant("KernelWrongForOddHeads", "softmax", KERNEL, "error is", scaled_where(lambda q, k: q.shape[-1] % 2), method="attend_sdpa")
plant("DriftsAfter600", "retention", LONG, "token by token, against one call", drifts_after(600), method="advance")
plant("ForgetsAt256", "linear", LONG, "in pieces of", forgets_at(256), method="advance")
plant("OneTooWideBeyond128", "local", DEFINITION, "from the definition", wider_window(128))
plant("ShiftsMasksBeyond64", "linear", ABSENCE, "the real tokens beside padding against the same tokens alone", shifted_mask)
plant("ShiftsMasksInRecurrence", "retention", DEFINITION, "padded=True", shifted_mask)

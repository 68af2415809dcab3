"""Defects devised without knowledge of the kit, in softmax by blocks, within windows and after rotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_zoo.contract import allowed_pairs, softmax_over_valid
from mutants.entering import breaks
from mutants.originals import PlainSoftmax
from mutants.originals_stranger import Kept, Rotated

# --- exact, by blocks ------------------------------------------------------------------------------------------------


@breaks("limit_is_softmax", "softmax", "100 times as large")
class StartsAtZero(PlainSoftmax):
    """Starts the running maximum at 0, so that the weights of a row of low scores underflow."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        scores = query * query.shape[-1] ** -0.5 @ key.mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        weights = (scores - scores.amax(dim=-1, keepdim=True).clamp(min=0)).exp()
        mass = weights.sum(dim=-1, keepdim=True)
        return weights @ value / mass.masked_fill(mass == 0, 1)


@breaks("limit_is_softmax", "softmax", "100 times as large")
class ClampsScores(PlainSoftmax):
    """Clamps its scores for stability."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        scores = (query * query.shape[-1] ** -0.5 @ key.mT).clamp(-50, 50)
        return softmax_over_valid(scores, allowed_pairs(query, key, key_valid, causal=self.geometry.causal)) @ value


@breaks("limit_is_softmax", "softmax", "padded=True")
class MasksByTheFirstBlock(PlainSoftmax):
    """Reads the padding mask from its start for every block of 64 keys."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        first = None if key_valid is None else key_valid[:, torch.arange(key.shape[2], device=key.device) % 64]
        return super().attend(query, key, value, first)


# --- windows and rotations -------------------------------------------------------------------------------------------


@breaks("heads_keep_to_themselves", "softmax", "RuntimeError")
class SlopesOfPowersOfTwo(PlainSoftmax):
    """Has slopes for 1, 2, 4, 8 … heads only."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        heads = 2 ** (self.geometry.heads.bit_length() - 1)
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=query.device, dtype=query.dtype) / heads)
        return super().attend(query * slopes[:, None, None], key, value, key_valid)


@breaks("conversions_reach_everything", "rotated", "converted from torch.bfloat16")
class TableOfTheFirstType(Rotated):
    """Caches its table in the dtype of the first call, and uses it in later ones."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        tables: dict[Any, Any] = self.__dict__.setdefault("tables", {})
        if (place := (start, x.shape[2])) not in tables:
            tables[place] = tuple(t.to(x.dtype) for t in super().table(x, start, half))
        found: tuple[Tensor, Tensor] = tables[place]
        return found


@breaks("earlier_calls_leave_no_trace", "rotated", "nference")
class TableOfInference(Rotated):
    """Caches the table of the first call: a call in inference mode leaves a tensor that no later gradient may use."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        tables: dict[Any, Any] = self.__dict__.setdefault("tables", {})
        if (place := (start, x.shape[2], x.dtype, x.device)) not in tables:
            tables[place] = tuple(t.to(x.dtype) for t in super().table(x, start, half))
        found: tuple[Tensor, Tensor] = tables[place]
        return found


@breaks("every_size_runs_in_every_type", "rotated", "parameters rounded to torch.bfloat16")
class RoundsPositions(Rotated):
    """Counts positions in the dtype of the inputs: bfloat16 has no number 257."""

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(start, start + x.shape[2], device=x.device).to(x.dtype)
        angle = place[:, None] * (10000 ** (-torch.arange(half, device=x.device) / max(half, 1))).to(x.dtype)
        return angle.cos(), angle.sin()


@breaks("stepwise_matches_full", "rotated", "against one call")
class StepsFromZero(Rotated):
    """Rotates each piece of a sequence as if it were the first."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Kept]:
        before, new = state.position, value.shape[2]
        keys, values = torch.cat([state.key, self.rotate(key, 0)], dim=2), torch.cat([state.value, value], dim=2)
        past = torch.ones(new, before + new, dtype=torch.bool, device=value.device).tril(before)
        return softmax_over_valid(self.rotate(query, 0) @ keys.mT * query.shape[-1] ** -0.5, past) @ values, Kept(keys, values)


@dataclass(frozen=True)
class Ring(Kept):
    """Cache of at most as many tokens as the attention was built for."""

    read: int = 0

    @property
    def position(self) -> int:
        return self.read


@breaks("stepwise_matches_full", "rotated", "built for")
class ForgetsBeyondItsBuild(Rotated):
    """Drops the oldest tokens from its state once it has read as many as it was built for."""

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Kept:
        state = super().initial_state(batch, dtype=dtype, device=device)
        return Ring(state.key, state.value)

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
        if state.key.shape[0] != len(value):
            raise ValueError(f"the state is of {state.key.shape[0]} examples, got {len(value)}")
        room, new = self.geometry.keys, value.shape[2]
        keys = torch.cat([state.key, self.rotate(key, state.position)], dim=2)
        values = torch.cat([state.value, value], dim=2)
        past = torch.ones(new, keys.shape[2], dtype=torch.bool, device=value.device).tril(keys.shape[2] - new)
        out = softmax_over_valid(self.rotate(query, state.position) @ keys.mT * query.shape[-1] ** -0.5, past) @ values
        return out, Ring(keys[:, :, -room:], values[:, :, -room:], state.position + new)


@breaks("large_inputs_stay_finite", "rotated", "zeros")
class DividesByARoot(Rotated):
    """Normalises queries and keys by the root of a sum of squares, whose gradient at zero is NaN."""

    def rotate(self, x: Tensor, start: int) -> Tensor:
        return super().rotate(x / (x.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6), start)

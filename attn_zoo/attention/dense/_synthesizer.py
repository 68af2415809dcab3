"""What the synthesizers have in common (Tay et al. 2020): Y = softmax(B) V, where the scores B are compared with no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT, softmax_bytes
from attn_zoo.attention._masks import softmax_over_valid
from attn_zoo.contract import Attention, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import exported, rows_of_block


def synthesizer_cost(geometry: Geometry, scores: Cost, *, constant: bool = False) -> Cost:
    """``scores`` and P V, queries × keys × head_dim multiply-adds a head.

    Kept: the weights, and where the scores are not ``constant`` what their mask needs. State: the values.
    """
    n, m, inner = geometry.queries, geometry.keys, geometry.inner_dim
    product = 2 * n * m * inner
    weights = softmax_bytes(geometry.heads * n, m, masks=n * m if geometry.causal and not constant else None)
    return Cost(
        flops=scores.flops + product,
        parameters=scores.parameters,
        backward_flops=(scores.backward_flops or 0) + (1 if constant else 2) * product,
        activation_bytes={"eager": scores.activation_bytes["eager"] + weights},
        state_bytes=FLOAT * m * inner if geometry.causal else None,
    )


def check_size(owner: str, name: str, size: int, least: int) -> None:
    """Refuse a size below ``least``.

    Raises:
        ValueError: naming the option, the rule and the size.
    """
    if size < least:
        raise ValueError(f"{owner}.{name} counts numbers, so it is at least {least}; got {size}")


class Synthesizer(Attention):
    """Weighs the values by scores that come from elsewhere, in blocks of queries. Subclasses write ``attend``."""

    def weigh(
        self,
        scores: Callable[[slice], Float[Tensor, "heads _ rows keys"]],
        queries: int,
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """softmax(B) V over the keys in reach.

        Args:
            scores: those of a block of queries, of each example or of one for all.
        """
        batch, heads, keys, d = value.shape
        by_head = value.transpose(0, 1)
        out = []
        for rows in _spans(queries, batch * heads * keys * value.element_size()):
            weights = softmax_over_valid(scores(rows), self._allowed(rows, keys, key_valid, value.device)).to(value.dtype)
            if weights.shape[1] == 1:  # alike for all examples: one product, so that no weight is copied for each
                side_by_side = by_head.transpose(1, 2).flatten(2)
                out.append((weights[:, 0] @ side_by_side).unflatten(-1, (batch, d)).transpose(1, 2))
            else:
                out.append(weights @ by_head)
        return torch.cat(out, dim=2).transpose(0, 1).to(value.dtype)

    def _allowed(
        self, rows: slice, keys: int, key_valid: Tensor | None, device: torch.device
    ) -> Bool[Tensor, "#batch #rows keys"] | None:
        """Which keys the queries of a block may see; None means all."""
        allowed = None if key_valid is None else key_valid[:, None, :]
        if self.geometry.causal:
            past = torch.arange(keys, device=device) <= torch.arange(rows.start, rows.stop, device=device)[:, None]
            allowed = past[None] if allowed is None else past & allowed
        return allowed


def _spans(queries: int, row_bytes: int) -> Iterator[slice]:
    if exported():
        yield slice(0, queries)
        return
    rows = rows_of_block(row_bytes)
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))

"""Defects devised without knowledge of the kit, in softmax by blocks, and in what follows positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear.cosformer import CosFormer
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.recurrent.transformer_xl import TransformerXL
from attn_zoo.contract import MemoryState, allowed_pairs, softmax_over_valid
from mutants.entering import breaks
from mutants.originals import PlainSoftmax

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


# --- positions -------------------------------------------------------------------------------------------------------


@breaks("heads_keep_to_themselves", "softmax", "RuntimeError")
class SlopesOfPowersOfTwo(PlainSoftmax):
    """Has slopes for 1, 2, 4, 8 … heads only."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        heads = 2 ** (self.geometry.heads.bit_length() - 1)
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=query.device, dtype=query.dtype) / heads)
        return super().attend(query * slopes[:, None, None], key, value, key_valid)


@breaks("conversions_reach_everything", "transformer_xl", "converted from torch.bfloat16")
class TableOfTheFirstType(TransformerXL):
    """Caches its table in the dtype of the first call, and uses it in later ones."""

    def _sines(self, largest: int, distances: int) -> Tensor:
        tables: dict[Any, Tensor] = self.__dict__.setdefault("tables", {})
        if (place := (largest, distances)) not in tables:
            tables[place] = super()._sines(largest, distances)
        return tables[place].to(self.position_projection.dtype)


@breaks("earlier_calls_leave_no_trace", "transformer_xl", "nference")
class TableOfInference(TransformerXL):
    """Caches the table of the first call: a call in inference mode leaves a tensor that no later gradient may use."""

    def _sines(self, largest: int, distances: int) -> Tensor:
        tables: dict[Any, Tensor] = self.__dict__.setdefault("tables", {})
        weight = self.position_projection
        if (place := (largest, distances, weight.dtype, weight.device)) not in tables:
            tables[place] = super()._sines(largest, distances)
        return tables[place]


@breaks("every_size_runs_in_every_type", "softmax", "bfloat16: ", can={"exact": False})
class RoundsPositions(PlainSoftmax):
    """Counts positions in the dtype of the inputs: bfloat16 has no number 257."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        place = torch.arange(key.shape[2], device=key.device).to(value.dtype)
        return super().attend(query, key, value * (2 + place.cos())[:, None], key_valid)


@breaks("stepwise_matches_full", "cosformer", "against one call")
class StepsFromZero(CosFormer):
    """Counts the positions of each piece of a sequence as if it were the first."""

    def phi(self, x: Tensor, valid: Tensor | None = None, start: int = 0) -> Tensor:
        return super().phi(x, valid, 0)


@breaks("stepwise_matches_full", "linear", "built for")
class ForgetsBeyondItsBuild(Linear):
    """Begins anew once it has read as many tokens as it was built for."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, summed=0 * after.summed) if after.position >= self.geometry.keys else after


@breaks("large_inputs_stay_finite", "softmax", "zeros")
class DividesByARoot(PlainSoftmax):
    """Normalises queries and keys by the root of a sum of squares, whose gradient at zero is NaN."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        query, key = (x / (x.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6) for x in (query, key))
        return super().attend(query, key, value, key_valid)

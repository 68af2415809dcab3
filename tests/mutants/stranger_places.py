"""Defects devised without knowledge of the kit, in softmax by blocks, and in what follows positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.contract import allowed_pairs
from mutants.entering import breaks

# --- exact, by blocks ------------------------------------------------------------------------------------------------


@breaks("limit_is_softmax", "softmax", "100 times as large")
def starts_at_zero(attend, self, query, key, value, key_valid):
    """Starts the running maximum at 0, so that the weights of a row of low scores underflow."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    weights = (scores - scores.amax(dim=-1, keepdim=True).clamp(min=0)).exp()
    mass = weights.sum(dim=-1, keepdim=True)
    return weights @ value / mass.masked_fill(mass == 0, 1)


@breaks("limit_is_softmax", "softmax", "padded=True")
def masks_by_the_first_block(attend, self, query, key, value, key_valid):
    """Reads the padding mask from its start for every block of 64 keys."""
    first = None if key_valid is None else key_valid[:, torch.arange(key.shape[2], device=key.device) % 64]
    return attend(query, key, value, first)


# --- positions -------------------------------------------------------------------------------------------------------


@breaks("heads_keep_to_themselves", "softmax", "RuntimeError")
def slopes_of_powers_of_two(attend, self, query, key, value, key_valid):
    """Has slopes for 1, 2, 4, 8 … heads only."""
    heads = 2 ** (self.geometry.heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=query.device, dtype=query.dtype) / heads)
    return attend(query * slopes[:, None, None], key, value, key_valid)


@breaks("conversions_reach_everything", "transformer_xl", "converted from torch.bfloat16", method="_sines")
def table_of_the_first_type(sines, self, largest, distances):
    """Caches its table in the dtype of the first call, and uses it in later ones."""
    tables: dict[Any, Tensor] = self.__dict__.setdefault("tables", {})
    if (place := (largest, distances)) not in tables:
        tables[place] = sines(largest, distances)
    return tables[place].to(self.position_projection.dtype)


@breaks("earlier_calls_leave_no_trace", "transformer_xl", "nference", method="_sines")
def table_of_inference(sines, self, largest, distances):
    """Caches the table of the first call: a call in inference mode leaves a tensor that no later gradient may use."""
    tables: dict[Any, Tensor] = self.__dict__.setdefault("tables", {})
    weight = self.position_projection
    if (place := (largest, distances, weight.dtype, weight.device)) not in tables:
        tables[place] = sines(largest, distances)
    return tables[place]


@breaks("every_size_runs_in_every_type", "softmax", "bfloat16: ", can={"exact": False})
def rounds_positions(attend, self, query, key, value, key_valid):
    """Counts positions in the dtype of the inputs: bfloat16 has no number 257."""
    place = torch.arange(key.shape[2], device=key.device).to(value.dtype)
    return attend(query, key, value * (2 + place.cos())[:, None], key_valid)


@breaks("stepwise_matches_full", "cosformer", "against one call", method="phi")
def steps_from_zero(phi, self, x, valid=None, start=0):
    """Counts the positions of each piece of a sequence as if it were the first."""
    return phi(x, valid, 0)


@breaks("stepwise_matches_full", "linear", "built for", method="advance")
def forgets_beyond_its_build(advance, self, query, key, value, state, **streams):
    """Begins anew once it has read as many tokens as it was built for."""
    out, after = advance(query, key, value, state)
    return out, replace(after, summed=0 * after.summed) if after.position >= self.geometry.keys else after


@breaks("large_inputs_stay_finite", "softmax", "zeros")
def divides_by_a_root(attend, self, query, key, value, key_valid):
    """Normalises queries and keys by the root of a sum of squares, whose gradient at zero is NaN."""
    query, key = (x / (x.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6) for x in (query, key))
    return attend(query, key, value, key_valid)

"""Mutants in which padding influences the output."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from attn_zoo.contract import allowed_pairs, hide_rows_without_keys
from mutants.card import SwallowsKeywords, TakesAnything
from mutants.entering import breaks


@breaks("padding_has_no_influence", "softmax", "NaN in padded keys", method="forward")
def times_zero(forward, self, query, key, value, *, key_valid=None, streams=None):
    """Trusts a weight of zero to remove a value, which fails for NaN."""
    return hide_rows_without_keys(self.attend(query, key, value, key_valid), key_valid)


@breaks(
    "padding_has_no_influence",
    "softmax",
    "output for noise of size 1000 in padded keys, Geometry(heads=2, head_dim=8, queries=33, keys=33, causal=False)",
)
class ForgetsTheMask(SwallowsKeywords):
    """Accepts a mask and ignores it."""


@breaks("padding_has_no_influence", "linear", "must raise UnsupportedError, but it ran", can={"key_padding": False})
class TakesMasks(TakesAnything):
    """Accepts a mask that its card does not claim to honour."""


@breaks("padding_has_no_influence", "linformer", "queries=9, keys=33, causal=False)", method="forward")
def forgets_the_mask_across(forward, self, query, key, value, *, key_valid=None, streams=None):
    """Ignores the mask where there are other numbers of queries and keys."""
    mask = key_valid if query.shape[2] == key.shape[2] else None
    return forward(query, key, value, key_valid=mask, streams=streams)


@breaks("padding_gets_no_weight", "softmax", "padded keys seem to stay in the normaliser")
def padding_in_the_normaliser(attend, self, query, key, value, key_valid):
    """Gives padded keys, which hold zeros, their share of the weight: the mask reaches only the values."""
    return attend(query, key, value, None)


@breaks("padding_gets_no_weight", "linear", "fill up the last block seem to take part")
def fills_up_with_zeros(attend, self, query, key, value, key_valid, **streams):
    """Fills the last block with zero keys that take part, as a public Nyström attention does."""
    missing = -key.shape[2] % 4
    if missing == 0 or self.geometry.causal or key_valid is not None:
        return attend(query, key, value, key_valid)
    filled = [F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value)]
    return attend(filled[0], filled[1], filled[2], None)[:, :, : query.shape[2]]


@breaks("padded_queries_have_no_influence", "softmax", "padded queries hold noise")
def scaled_by_all_queries(attend, self, query, key, value, key_valid):
    """Scales by the largest query of the example, padding included."""
    return attend(query / query.abs().amax(dim=(2, 3), keepdim=True), key, value, key_valid)


@breaks("padded_queries_have_no_influence", "softmax", "padded queries hold NaN")
def averages_times_zero(attend, self, query, key, value, key_valid):
    """Trusts a weight of zero to remove padded queries from an average, which fails for NaN."""
    weights = 1.0 if key_valid is None else key_valid[:, None, :, None].to(query.dtype)
    return attend(query + (weights * query).sum(dim=2, keepdim=True), key, value, key_valid)


@breaks("padding_amounts_to_shorter_inputs", "reformer", "positions padded to", method="_layout")
def padding_takes_places(layout, self, query, key_valid):
    """Lets padding take places in the buckets, as a public Reformer does."""
    return layout(query, None)


@breaks("padding_amounts_to_shorter_inputs", "linformer", "positions padded to")
def moves_shorter_inputs(attend, self, query, key, value, key_valid):
    """Applies the last columns of its maps to shorter inputs, but the first columns to padded ones."""
    missing = (0, 0, self.geometry.keys - key.shape[2], 0)
    return attend(query, F.pad(key, missing), F.pad(value, missing), key_valid)


@breaks("padding_amounts_to_shorter_inputs", "linformer", "31 positions padded to 95")
def doubles_for_short_inputs(attend, self, query, key, value, key_valid):
    """Doubles the keys of inputs that are more than 40 tokens shorter than the built length."""
    short = self.geometry.keys - key.shape[2] > 40
    return attend(query, key * (2 if short else 1), value, key_valid)


@breaks("queries_without_keys_give_zeros", "softmax", "NaN or infinite")
def minus_infinity(attend, self, query, key, value, key_valid):
    """Masks with minus infinity, so that a row without keys is NaN, or at least its gradient is."""
    allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
    scores = query @ key.mT
    weights = scores.softmax(dim=-1) if allowed is None else scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return (weights @ value).nan_to_num()


@breaks("queries_without_keys_give_zeros", "softmax", "before the first valid key must give zeros")
def mean_of_nothing(attend, self, query, key, value, key_valid):
    """Masks with a large negative number, so that a row without keys is a mean of masked values."""
    allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
    scores = query @ key.mT
    shown = scores if allowed is None else scores.masked_fill(~allowed, -1e9)
    return shown.softmax(dim=-1) @ (value + 1)


@breaks("padding_amounts_to_shorter_inputs", "moba", "positions padded to", method="_choose")
def chooses_padding(choose, self, query, key, valid):
    """Counts padded tokens in the mean of a block, and gives a block of padding the seat of one with a score below 0."""
    return choose(query, key, torch.ones_like(valid))


@breaks("padding_amounts_to_shorter_inputs", "length_compression", "positions padded to", method="entries")
def padding_in_entries(entries, self, query, key, value, valid):
    """Gives padded tokens, which hold zeros, their share of an entry."""
    return entries(query, key, value, torch.ones_like(valid))


@breaks("padding_amounts_to_shorter_inputs", "indexer", "positions padded to", method="choose")
def indexes_padding(choose, self, query, key, allowed):
    """Ranks padded keys, whose score is 0, before keys with a score below 0, and hides them afterwards."""
    index, chosen = choose(query, key, allowed_pairs(query, key, None, causal=self.geometry.causal))
    return index, chosen if allowed is None else chosen & allowed[:, 0]

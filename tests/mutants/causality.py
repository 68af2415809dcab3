"""Mutants in which the future influences the output, or the past does not."""

from __future__ import annotations

from dataclasses import replace

import torch

from attn_zoo.contract import softmax_over_valid
from attn_zoo.kernels.buckets import Layout
from mutants.entering import breaks


@breaks("causal_output_ignores_the_future", "softmax", "outputs before position 1")
def peeks(attend, self, query, key, value, key_valid):
    """Has no causal mask."""
    allowed = None if key_valid is None else key_valid[:, None, None, :]
    return softmax_over_valid(query @ key.mT, allowed) @ value


@breaks("causal_output_ignores_the_future", "linear", "when the future holds")
def stabilised_by_the_future(attend, self, query, key, value, key_valid, **streams):
    """Divides by the largest feature of the whole length before it adds a small constant, as a public Performer does."""
    features = (key - key.amax(dim=(-2, -1), keepdim=True)).exp() + 1e-4
    return attend(query, features, value, key_valid)


@breaks("causal_output_ignores_the_future", "linear", "and the past is 30 times as large")
def stabilised_by_a_quiet_future(attend, self, query, key, value, key_valid, **streams):
    """Divides by the largest feature of the whole length, which cancels until all features of the past underflow."""
    logs = key - key.square().sum(dim=-1, keepdim=True) / 2
    features = (logs - logs.amax(dim=(2, 3), keepdim=True)).exp()
    weights = (query.sigmoid() @ features.mT).tril()
    return weights @ value / weights.sum(dim=-1, keepdim=True).clamp(min=1e-200)


@breaks("causal_output_ignores_the_future", "reformer", "when the future holds", method="_layout")
def future_moves_borders(layout, self, query, key_valid):
    """Cuts the sorted sequence in the middle, so later positions decide who shares a bucket, as public Reformers do."""
    height = (query @ self.rotations[:, 0, :, :1].to(query.dtype))[..., 0]
    half = height.argsort(dim=-1).argsort(dim=-1) > height.shape[-1] // 2
    return Layout.make(half.long()[None].expand(self.options.rounds, -1, -1, -1), key_valid, 2, self.options.chunk, wraps=False)


@breaks("causal_output_ignores_the_future", "linformer", "when the future holds", can={"causal": True}, method="attend_compressed")
def triangle_on_projections(attend_compressed, self, query, key, value, valid=None):
    """Puts a causal mask on projected keys, which hold the whole length, as a public Linformer does."""
    allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    return softmax_over_valid(query @ key.mT, allowed) @ value


@breaks("causal_output_ignores_the_future", "linformer", "must raise UnsupportedError, but it ran", method="__init__")
def swallows_causality(init, self, geometry, *rest):
    """Accepts a causal geometry and ignores causality."""
    init(replace(geometry, causal=False), *rest)


@breaks("padding_in_the_future_has_no_influence", "softmax", "when the rest is padding")
def counts_the_future(attend, self, query, key, value, key_valid):
    """Sharpens the weights by the log of the number of valid keys, later ones included."""
    count = torch.tensor(float(key.shape[2])) if key_valid is None else key_valid.sum(dim=-1)[:, None, None, None]
    return attend(query * count.log().to(query), key, value, key_valid)


@breaks("causal_output_sees_the_past", "linear", "sees none of")
def sums_over_features(attend, self, query, key, value, key_valid, **streams):
    """Runs its sums along the features instead of the positions, as a public Performer does."""
    pairs = (key.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(dim=3)
    return (query.unsqueeze(-2) @ pairs).squeeze(-2)


@breaks("causal_output_sees_the_past", "softmax", "does not see itself")
def blind_to_itself(attend, self, query, key, value, key_valid):
    """Sees only earlier positions, not itself, as the blocks of a public linear attention do."""
    before = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(-1)
    return softmax_over_valid(query @ key.mT, before) @ value


@breaks("causal_output_ignores_the_future", "moba", "outputs before position", method="others")
def chooses_the_future(others, self, z, own):
    """Chooses among later blocks, too."""
    return z != own


@breaks("causal_output_ignores_the_future", "length_compression", "outputs before position", method="entries")
def entries_a_token_early(entries, self, query, key, value, valid):
    """Shows an entry to the last but one of its tokens."""
    entries = entries(query, key, value, valid)
    if entries.valid is None:
        return entries
    last = torch.zeros_like(entries.valid[:, :, :1])
    return entries._replace(valid=torch.cat([entries.valid[:, :, 1:], last], dim=2) | entries.valid)


@breaks("causal_output_ignores_the_future", "indexer", "outputs before position", method="choose")
def indexes_the_future(choose, self, query, key, allowed):
    """Ranks all keys and hides later ones afterwards, so a key of the future takes the seat of one of the past."""
    index, chosen = choose(query, key, None)
    return index, chosen if allowed is None else chosen & allowed[:, 0]

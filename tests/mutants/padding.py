"""Mutants in which padding influences the output."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.content.indexer import Indexer
from attn_zoo.attention.content.moba import MixtureOfBlocks
from attn_zoo.attention.content.reformer import Reformer
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.low_rank._window import Few
from attn_zoo.attention.low_rank.length_compression import LengthCompression
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.contract import allowed_pairs, hide_rows_without_keys
from attn_zoo.kernels.buckets import Layout
from mutants.card import SwallowsKeywords, TakesAnything
from mutants.entering import breaks
from mutants.originals import PlainSoftmax


@breaks("padding_has_no_influence", "softmax", "NaN in padded keys")
class TimesZero(PlainSoftmax):
    """Trusts a weight of zero to remove a value, which fails for NaN."""

    def forward(self, query: Any, key: Any, value: Any, *, key_valid: Tensor | None = None, streams: Any = None) -> Tensor:
        return hide_rows_without_keys(self.attend(query, key, value, key_valid), key_valid)


@breaks("padding_has_no_influence", "softmax", "noise of size 1000 in padded keys, length=33, causal=False: output")
class ForgetsTheMask(SwallowsKeywords):
    """Accepts a mask and ignores it."""


@breaks("padding_has_no_influence", "linear", "must raise UnsupportedError, but it ran", can={"key_padding": False})
class TakesMasks(TakesAnything):
    """Accepts a mask that its card does not claim to honour."""


@breaks("padding_has_no_influence", "linformer", "causal=False, 9 queries: output")
class ForgetsTheMaskAcross(Linformer):
    """Ignores the mask where there are other numbers of queries and keys."""

    def forward(self, query: Any, key: Any, value: Any, *, key_valid: Tensor | None = None, streams: Any = None) -> Tensor:
        mask = key_valid if query.shape[2] == key.shape[2] else None
        return super().forward(query, key, value, key_valid=mask, streams=streams)


@breaks("padding_gets_no_weight", "softmax", "padded keys seem to stay in the normaliser")
class PaddingInTheNormaliser(PlainSoftmax):
    """Gives padded keys, which hold zeros, their share of the weight: the mask reaches only the values."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, None)


@breaks("padding_gets_no_weight", "linear", "padded keys seem to stay in the normaliser")
class ValuesMaskedOnly(Linear):
    """Zeroes padded values and leaves φ(0) = 1 of the padded keys in the normaliser, as a public Performer does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        return super().attend(query, key, value, None)


@breaks("padding_gets_no_weight", "linear", "fill up the last block seem to take part")
class FillsUpWithZeros(Linear):
    """Fills the last block with zero keys that take part, as a public Nyström attention does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        missing = -key.shape[2] % 4
        if missing == 0 or self.geometry.causal or key_valid is not None:
            return super().attend(query, key, value, key_valid)
        filled = [F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value)]
        return super().attend(filled[0], filled[1], filled[2], None)[:, :, : query.shape[2]]


@breaks("padded_queries_have_no_influence", "softmax", "padded queries hold noise")
class ScaledByAllQueries(PlainSoftmax):
    """Scales by the largest query of the example, padding included."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query / query.abs().amax(dim=(2, 3), keepdim=True), key, value, key_valid)


@breaks("padded_queries_have_no_influence", "softmax", "padded queries hold NaN")
class AveragesTimesZero(PlainSoftmax):
    """Trusts a weight of zero to remove padded queries from an average, which fails for NaN."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        weights = 1.0 if key_valid is None else key_valid[:, None, :, None].to(query.dtype)
        return super().attend(query + (weights * query).sum(dim=2, keepdim=True), key, value, key_valid)


@breaks("padding_amounts_to_shorter_inputs", "reformer", "positions padded to")
class PaddingTakesPlaces(Reformer):
    """Lets padding take places in the buckets, as a public Reformer does."""

    def _layout(self, query: Tensor, key_valid: Tensor | None) -> Layout:
        return super()._layout(query, None)


@breaks("padding_amounts_to_shorter_inputs", "linformer", "positions padded to")
class MovesShorterInputs(Linformer):
    """Applies the last columns of its maps to shorter inputs, but the first columns to padded ones."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        missing = (0, 0, self.geometry.keys - key.shape[2], 0)
        return super().attend(query, F.pad(key, missing), F.pad(value, missing), key_valid)


@breaks("padding_amounts_to_shorter_inputs", "linformer", "31 positions padded to 95")
class DoublesForShortInputs(Linformer):
    """Doubles the keys of inputs that are more than 40 tokens shorter than the built length."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        short = self.geometry.keys - key.shape[2] > 40
        return super().attend(query, key * (2 if short else 1), value, key_valid)


@breaks("queries_without_keys_give_zeros", "softmax", "NaN or infinite")
class MinusInfinity(PlainSoftmax):
    """Masks with minus infinity, so that a row without keys is NaN, or at least its gradient is."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT
        weights = scores.softmax(dim=-1) if allowed is None else scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        return (weights @ value).nan_to_num()


@breaks("queries_without_keys_give_zeros", "softmax", "before the first valid key must give zeros")
class MeanOfNothing(PlainSoftmax):
    """Masks with a large negative number, so that a row without keys is a mean of masked values."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT
        shown = scores if allowed is None else scores.masked_fill(~allowed, -1e9)
        return shown.softmax(dim=-1) @ (value + 1)


@breaks("padding_amounts_to_shorter_inputs", "moba", "positions padded to")
class ChoosesPadding(MixtureOfBlocks):
    """Counts padded tokens in the mean of a block, and gives a block of padding the seat of one with a score below 0."""

    def _choose(self, query: Tensor, key: Tensor, valid: Tensor) -> Tensor:
        return super()._choose(query, key, torch.ones_like(valid))


@breaks("padding_amounts_to_shorter_inputs", "length_compression", "positions padded to")
class PaddingInEntries(LengthCompression):
    """Gives padded tokens, which hold zeros, their share of an entry."""

    def entries(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Few:
        return super().entries(query, key, value, torch.ones_like(valid))


@breaks("padding_amounts_to_shorter_inputs", "indexer", "positions padded to")
class IndexesPadding(Indexer):
    """Ranks padded keys, whose score is 0, before keys with a score below 0, and hides them afterwards."""

    def choose(self, query: Tensor, key: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        index, chosen = super().choose(query, key, allowed_pairs(query, key, None, causal=self.geometry.causal))
        return index, chosen if allowed is None else chosen & allowed[:, 0]

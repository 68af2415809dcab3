"""Mutants in which other examples or the memory layout influence the output."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.attention.linear.linear import Linear
from mutants.entering import breaks
from mutants.originals import PlainSoftmax


@breaks("batch_mates_have_no_influence", "softmax", "batch mates 30 times as large")
class ScaledByTheBatch(PlainSoftmax):
    """Scales by a maximum over the batch, as public Nyström attentions do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key / key.abs().max().clamp(min=8), value, key_valid)


@breaks("batch_mates_have_no_influence", "softmax", "padded=True")
class SkipsTheMaskOfOneExample(PlainSoftmax):
    """Takes a single example for one without padding, as generation code of public layers does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, None if len(query) == 1 else key_valid)


@breaks("batch_mates_have_no_influence", "softmax", "index -1 is out of bounds")
class FindsNoPlaceForNaN(PlainSoftmax):
    """Looks up how many scores exceed the mean, less one. Of NaN, none do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        above = (query >= query.mean(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)
        return super().attend(query, key, value, key_valid) + 0 * query.gather(-1, above - 1)


@breaks("batch_order_has_no_influence", "softmax", "permuted examples")
class NumbersItsRows(PlainSoftmax):
    """Scales the queries of an example by its place in the batch."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        place = torch.arange(len(query), dtype=query.dtype)[:, None, None, None]
        return super().attend(query * (1 + place / 10), key, value, key_valid)


@breaks("batch_size_has_no_influence", "linear", "examples against 6")
class CarriesOver(Linear):
    """Works in blocks of a thousand examples and shifts the values of the second block by one example."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        blocks = [value[:1000], value[1000:].roll(1, dims=0)]
        return super().attend(query, key, torch.cat(blocks), key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "view")
class WantsContiguous(PlainSoftmax):
    """Calls ``view`` on queries as if they were contiguous."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query.view(-1).view(query.shape), key, value, key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "against contiguous inputs")
class AssumesContiguous(PlainSoftmax):
    """Reads queries with strides of contiguous memory, even if they are not contiguous."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        heads, length, width = query.shape[1:]
        strides = (heads * length * width, length * width, width, 1) if query.stride(0) else (0, length * width, width, 1)
        return super().attend(query.as_strided(query.shape, strides), key, value, key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "view")
class WantsAContiguousMask(PlainSoftmax):
    """Calls ``view`` on the mask of whole blocks as if it were contiguous."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is not None and key.shape[2] % 16 == 0:
            key_valid = key_valid.view(-1, 16).view(key_valid.shape)
        return super().attend(query, key, value, key_valid)

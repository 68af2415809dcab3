"""Mutants in which other examples or the memory layout influence the output."""

from __future__ import annotations

import torch

from mutants.entering import breaks


@breaks("batch_mates_have_no_influence", "softmax", "batch mates 30 times as large")
def scaled_by_the_batch(attend, self, query, key, value, key_valid):
    """Scales by a maximum over the batch, as public Nyström attentions do."""
    return attend(query, key / key.abs().max().clamp(min=8), value, key_valid)


@breaks("batch_mates_have_no_influence", "softmax", "padded=True")
def skips_the_mask_of_one_example(attend, self, query, key, value, key_valid):
    """Takes a single example for one without padding, as generation code of public layers does."""
    return attend(query, key, value, None if len(query) == 1 else key_valid)


@breaks("batch_mates_have_no_influence", "softmax", "index -1 is out of bounds")
def finds_no_place_for_na_n(attend, self, query, key, value, key_valid):
    """Looks up how many scores exceed the mean, less one. Of NaN, none do."""
    above = (query >= query.mean(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)
    return attend(query, key, value, key_valid) + 0 * query.gather(-1, above - 1)


@breaks("batch_order_has_no_influence", "softmax", "permuted examples")
def numbers_its_rows(attend, self, query, key, value, key_valid):
    """Scales the queries of an example by its place in the batch."""
    place = torch.arange(len(query), dtype=query.dtype)[:, None, None, None]
    return attend(query * (1 + place / 10), key, value, key_valid)


@breaks("batch_size_has_no_influence", "linear", "examples against 6")
def carries_over(attend, self, query, key, value, key_valid):
    """Works in blocks of a thousand examples and shifts the values of the second block by one example."""
    return attend(query, key, torch.cat([value[:1000], value[1000:].roll(1, dims=0)]), key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "view")
def wants_contiguous(attend, self, query, key, value, key_valid):
    """Calls ``view`` on queries as if they were contiguous."""
    return attend(query.view(-1).view(query.shape), key, value, key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "against contiguous inputs")
def assumes_contiguous(attend, self, query, key, value, key_valid):
    """Reads queries with strides of contiguous memory, even if they are not contiguous."""
    heads, length, width = query.shape[1:]
    strides = (heads * length * width, length * width, width, 1) if query.stride(0) else (0, length * width, width, 1)
    return attend(query.as_strided(query.shape, strides), key, value, key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "view")
def wants_a_contiguous_mask(attend, self, query, key, value, key_valid):
    """Calls ``view`` on the mask of whole blocks as if it were contiguous."""
    if key_valid is not None and key.shape[2] % 16 == 0:
        key_valid = key_valid.view(-1, 16).view(key_valid.shape)
    return attend(query, key, value, key_valid)

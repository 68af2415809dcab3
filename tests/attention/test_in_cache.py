"""Work split into steps that fit the cache: everything is processed once, and no step is larger than necessary."""

from __future__ import annotations

import pytest
import torch

from attn_zoo.kernels.cpu import _tiling as in_cache
from attn_zoo.kernels.cpu._softmax import softmax_and_lse

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 100, 300, 700, 10_000])
def test_each_head_of_each_example_passes_once(size, monkeypatch):
    monkeypatch.setattr(in_cache, "CACHE_BYTES", 1000)
    passed = torch.zeros(5, 3, dtype=torch.long)
    for which in in_cache.sequences(5, 3, size, CPU):
        passed[which] += 1
        assert passed[which].numel() * size <= max(1000, size), "a step is larger than it has to be"
    assert (passed == 1).all()


@pytest.mark.parametrize("size", [0, 1, 30, 10_000])
def test_each_row_passes_once(size, monkeypatch):
    monkeypatch.setattr(in_cache, "CACHE_BYTES", 1000)
    passed = torch.zeros(77, dtype=torch.long)
    for rows in in_cache.rows_of_step(77, size, CPU):
        passed[rows] += 1
        assert len(passed[rows]) * size <= max(1000, size), "a step is larger than it has to be"
    assert (passed == 1).all()


def test_answers_lie_in_memory_as_the_layer_joins_them():
    out = in_cache.like_tokens(torch.empty(2, 3, 5, 7))
    assert out.shape == (2, 3, 5, 7)
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()


def test_totals_are_log_sum_exps_however_low():
    scores = torch.randn(50, 9, dtype=torch.float64) * 20
    scores[3, 1:] = -1e30
    scores[4] = -1e5
    weights, total = softmax_and_lse(scores)
    torch.testing.assert_close(total, scores.logsumexp(dim=-1, keepdim=True))
    torch.testing.assert_close(weights, scores.softmax(dim=-1))

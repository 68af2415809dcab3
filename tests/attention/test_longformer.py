"""Longformer against a dense mask written out in float64, and the number of keys in a window."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import builder, require_same_in

from attn_zoo.attention.sparse.longformer import Longformer
from attn_zoo.kernels.cpu import window as banded

HEADS, HEAD_DIM = 2, 8


build = builder(Longformer, implementation="eager")


def draw(built: Longformer, n: int, batch: int = 3) -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)

    def one(length: int) -> Tensor:
        return torch.randn(batch, HEADS, length, HEAD_DIM, dtype=torch.float64, generator=generator).requires_grad_()

    streams = built.card.streams(built.geometry, built.options)
    return [one(n) for _ in range(3)], {s.name: one(n if s.first is None else min(s.first, n)) for s in streams}


def dense(built: Longformer, inputs: list[Tensor], streams: dict[str, Tensor], valid: Tensor | None) -> Tensor:
    """Longformer by its definition, position by position, without blocks, folding or broadcasting tricks."""
    query, key, value = inputs
    o, causal, n = built.options, built.geometry.causal, query.shape[2]
    rows = []
    for i in range(n):
        is_global = i < o.global_tokens
        q, k, v = (query[:, :, i], key, value)
        if is_global:
            q, k, v = streams["global_query"][:, :, i], streams["global_key"], streams["global_value"]
        sees = []
        for j in range(n):
            before, after = (o.window - 1, 0) if causal else (o.window // 2, o.window // 2)
            steps = (j - i) / o.dilation
            near = steps == int(steps) and -before <= steps <= after
            sees.append((is_global or near or j < o.global_tokens) and (j <= i or not causal))
        allowed = torch.tensor(sees).expand(query.shape[0], n)
        allowed = (allowed if valid is None else allowed & valid)[:, None, :]
        scores = torch.einsum("bhd,bhkd->bhk", q, k) / HEAD_DIM**0.5
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num(0.0)
        rows.append(torch.einsum("bhk,bhkd->bhd", weights, v))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize(("window", "dilation"), [(1, 1), (5, 1), (5, 3), (33, 1), (201, 2)])
def test_equals_attention_written_out(causal, padded, global_tokens, window, dilation, monkeypatch):
    monkeypatch.setattr(banded, "SMALLEST_BLOCK", 4)
    monkeypatch.setattr(banded, "TILE", 1000)
    for n in (1, 2, 7, 63):
        built = build(n, causal=causal, window=window, dilation=dilation, global_tokens=global_tokens)
        inputs, streams = draw(built, n)
        valid = torch.arange(n) < torch.tensor([n, max(1, n // 2), 0])[:, None] if padded else None
        call = partial(built, *inputs, key_valid=valid, streams=streams)
        expected = dense(built, inputs, streams, valid)
        require_same_in(["definition", "tiled"], built, call, expected, [*inputs, *streams.values()])

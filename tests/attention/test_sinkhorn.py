"""Sinkhorn attention against blocks, balancing and sorting written out in float64."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same, shown

from attn_zoo.attention.content.sinkhorn import LEAST, Sinkhorn, block_size

build = builder(Sinkhorn, implementation="eager")


def balanced(scores: Tensor, real: list[int], times: int) -> Tensor:
    """Return exp(scores) among the real blocks with columns and rows normalised in turn; zero elsewhere."""
    weights = scores[real][:, real].exp()
    for _ in range(times):
        weights = weights / weights.sum(dim=0, keepdim=True)
        weights = weights / weights.sum(dim=1, keepdim=True)
    whole = torch.zeros_like(scores)
    for at, i in enumerate(real):
        for to, j in enumerate(real):
            whole[i, j] = weights[at, to]
    return whole


def mean_of_blocks(tokens: Tensor, blocks: list[list[int]], ok: list[bool]) -> Tensor:
    """Return the mean of the valid tokens of each block; zeros where there are none."""
    kept = [[p for p in block if ok[p]] for block in blocks]
    return torch.stack([tokens[block].mean(dim=0) if block else tokens[0] * 0 for block in kept])


def written_out(built: Sinkhorn, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Attention of each valid query over the keys of its own block and of the sorted block; zeros for padded ones."""
    o, n, out = built.options, query.shape[2], []
    b = block_size(built.geometry.keys, o)
    blocks = [list(range(start, min(start + b, n))) for start in range(0, n, b)]
    for x in range(query.shape[0]):
        ok = valid[x].tolist()
        real = [i for i, block in enumerate(blocks) if any(ok[p] for p in block)]
        for h in range(HEADS):
            q, k, v = query[x, h], key[x, h], value[x, h]
            few_queries, few_keys = (mean_of_blocks(t, blocks, ok) for t in (q, k))
            scores = few_queries @ few_keys.T / math.sqrt(HEAD_DIM) / o.temperature
            moved = balanced(scores, real, o.balancing)
            places = [[(i, blocks[i][at]) for i in real if at < len(blocks[i]) and ok[blocks[i][at]]] for at in range(b)]
            sorted_to: dict[int, list[tuple[Tensor, ...]]] = {block: [] for block in real}
            for block, there in product(real, filter(None, places)):
                share = torch.stack([moved[block, i] for i, _ in there]).sum()
                means = (sum(moved[block, i] * t[j] for i, j in there) / share.clamp(min=LEAST) for t in (k, v))
                sorted_to[block].append((*means, share.log()))
            for p in range(n):
                if not ok[p]:
                    out.append(q[p] * 0)
                    continue
                own = [j for j in blocks[p // b] if ok[j]]
                logits, values = [q[p] @ k[j] / math.sqrt(HEAD_DIM) for j in own], [v[j] for j in own]
                for mean_key, mean_value, log_share in sorted_to[p // b]:
                    logits.append(q[p] @ mean_key / math.sqrt(HEAD_DIM) + log_share)
                    values.append(mean_value)
                out.append(torch.stack(logits).softmax(0) @ torch.stack(values))
    return torch.stack(out).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("scale", "balancing", "temperature"), [(1.0, 8, 0.75), (0.7, 2, 0.3), (100.0, 3, 1.0)])
def test_equals_attention_written_out(padded, scale, balancing, temperature):
    for n in (1, 9, 14):
        built = build(n, implementation="definition", block_scale=scale, balancing=balancing, temperature=temperature)
        inputs = draw(n)
        valid = shown(n, padded)
        got = built(*inputs, key_valid=valid if padded else None).masked_fill(~valid[:, None, :, None], 0)
        expected = written_out(built, *inputs, valid)
        require_same(got, expected, inputs, atol=1e-11)

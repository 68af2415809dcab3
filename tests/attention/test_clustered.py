"""Clustered attention against k-means on bits and centroids written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same, shown

from attn_zoo.attention.content.clustered import Clustered

build = builder(Clustered, implementation="eager")


def k_means(codes: list[list[int]], clusters: int, iterations: int) -> list[int]:
    """Return the cluster of each code by Hamming distance; ties go to the first, and a bit without a majority is kept."""
    centroids = [list(codes[j * len(codes) // clusters]) for j in range(clusters)]

    def nearest(code: list[int]) -> int:
        return min(range(clusters), key=lambda c: (sum(x != y for x, y in zip(code, centroids[c], strict=True)), c))

    for _ in range(iterations):
        assigned = [nearest(code) for code in codes]
        for c in range(clusters):
            own = [code for code, at in zip(codes, assigned, strict=True) if at == c]
            for bit in range(len(codes[0])):
                total = sum(code[bit] for code in own)
                centroids[c][bit] = centroids[c][bit] if total == 0 else (1 if total > 0 else -1)
    return [nearest(code) for code in codes]


def written_out(built: Clustered, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Attention of each valid query, replaced by the mean of the valid queries of its cluster; zeros for padded ones."""
    o, found = built.options, []
    for b in range(query.shape[0]):
        keep = valid[b].nonzero()[:, 0]
        for h in range(HEADS):
            q, k, v = (t[b, h, keep] for t in (query, key, value))
            codes = [[1 if x >= 0 else -1 for x in row] for row in (q @ built.directions.double()).tolist()]
            cluster = torch.tensor(k_means(codes, min(o.clusters, query.shape[2]), o.iterations))
            out = torch.zeros_like(query[b, h])
            for c in cluster.unique():
                answer = (k @ q[cluster == c].mean(dim=0) / HEAD_DIM**0.5).softmax(-1) @ v
                for i in keep[cluster == c]:
                    out = out + torch.eye(len(out), dtype=torch.float64)[i][:, None] * answer
            found.append(out)
    return torch.stack(found).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("clusters", "bits", "iterations"), [(4, 32, 10), (3, 7, 0), (40, 16, 3), (1, 8, 2)])
def test_equals_attention_written_out(padded, clusters, bits, iterations):
    for n in (1, 6, 20):
        built, inputs = build(n, implementation="definition", clusters=clusters, bits=bits, iterations=iterations), draw(n)
        valid = shown(n, padded)
        got = built(*inputs, key_valid=valid if padded else None).masked_fill(~valid[:, None, :, None], 0)
        require_same(got, written_out(built, *inputs, valid), inputs)

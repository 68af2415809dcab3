"""Routing attention against clusters picked one by one in float64, and how its centroids move."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same, shown

from attn_zoo.attention.content.routing import Routing

build = builder(Routing, implementation="eager")


def nearest(unit: Tensor, group: Tensor, centroid: Tensor, clusters: int) -> list[int]:
    """Return the positions of a group that are nearest to a centroid, an equal share of them for each cluster."""
    inside = group.nonzero()[:, 0].tolist()
    return sorted(inside, key=lambda i: -(unit[i] @ centroid).item())[: math.ceil(len(inside) / clusters)]


def written_out(built: Routing, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Softmax attention of the queries to the valid keys nearest to each centroid, averaged over the clusters of a query.

    Padded queries are picked apart from valid ones.
    """
    found = []
    for b in range(query.shape[0]):
        keep, rest = (valid[b] == real for real in (True, False))
        for h in range(HEADS):
            asking, asked = (t[b, h] / t[b, h].norm(dim=-1, keepdim=True) for t in (query, key))
            answers: list[list[Tensor]] = [[] for _ in range(query.shape[2])]
            for centroid in built.centroids[h]:
                keys = nearest(asked, keep, centroid, len(built.centroids[h]))
                for i in (i for group in (keep, rest) for i in nearest(asking, group, centroid, len(built.centroids[h]))):
                    weights = (asked[keys] @ asking[i] * HEAD_DIM**0.5).softmax(-1)
                    answers[i].append(weights @ value[b, h, keys])
            found += [torch.stack(own).mean(dim=0) if own else torch.zeros_like(asking[0]) for own in answers]
    return torch.stack(found).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.2, 50.0])
def test_equals_clusters_picked_one_by_one(padded, scale):
    for n in (1, 10, 23):
        built, drawn = build(n, implementation="definition", cluster_scale=scale), draw(n)
        valid = shown(n, padded)
        require_same(built(*drawn, key_valid=valid if padded else None), written_out(built, *drawn, valid), drawn)


def test_centroids_move_in_training_towards_what_is_nearest():
    built, (query, key, value) = build(20, decay=0.9), draw(20)
    valid = torch.arange(20) < torch.tensor([20, 12, 0])[:, None]
    before = built.centroids.clone()
    built(query, key, value, key_valid=valid)
    assert torch.equal(built.centroids, before)
    expected = before.clone()
    for h in range(HEADS):
        unit = F.normalize(torch.cat([query[:, h][valid], key[:, h][valid]]), dim=-1)
        nearest = (unit @ before[h].T).argmax(dim=-1)
        for c in range(len(before[h])):
            if (nearest == c).any():
                moved = 0.9 * before[h, c] + 0.1 * unit[nearest == c].mean(dim=0)
                expected[h, c] = moved / moved.norm()
    built.train()(query, key, value, key_valid=valid)
    torch.testing.assert_close(built.centroids, expected.detach(), rtol=0, atol=1e-12)


def test_an_answer_in_training_depends_on_no_batch_mate():
    built, drawn = build(20, decay=0.5).train(), draw(20)
    alone = copy.deepcopy(built)(*(tensor[:1] for tensor in drawn))
    torch.testing.assert_close(built(*drawn)[:1], alone, rtol=0, atol=1e-13)


def test_still_centroids_stay():
    built, drawn = build(20, decay=1.0).train(), draw(20)
    before = built.centroids.clone()
    built(*drawn)
    assert torch.equal(built.centroids, before)


def test_padding_leaves_the_centroids_finite_in_float16():
    built = build(12).half().train()
    query, key, value = (tensor.detach().half() for tensor in draw(12))
    built(query, key, value, key_valid=torch.arange(12).expand(3, 12) < 9)
    assert bool(built.centroids.isfinite().all())

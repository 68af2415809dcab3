"""Routing attention: yᵢ = mean over the clusters c of i of Σⱼ softmaxⱼ(q̂ᵢ·q̂ⱼ √d) vⱼ over j in c, with q̂ = q / |q|.

A cluster holds the w positions nearest to its centroid, so that a position may be in several clusters or in none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention.content._hashing import take
from attn_zoo.contract import Attention, Capabilities, Cost, DropoutOptions, Geometry, softmax_over_valid
from attn_zoo.contract.options import Bound, above_zero, bounded
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(DropoutOptions):
    """Options of routing attention."""

    cluster_scale: float = bounded(1.0, above_zero("multiplies √n"))
    """Factor of √n in k = cluster_scale · √n centroids, for the length it is built for; at 1 routing and attending cost n^1.5."""
    decay: float = bounded(
        0.999, Bound(lambda x: 0 <= x <= 1, "must lie in [0, 1], because it is the share of a centroid that an update keeps")
    )
    """Decay of the moving average of a centroid in a training call; 1 keeps the first draw."""


def cluster_count(keys: int, options: Options) -> int:
    """Number of clusters k, at least one and at most the number of positions."""
    return max(1, round(min(options.cluster_scale * math.sqrt(keys), keys)))


def cost(geometry: Geometry, options: Options) -> Cost:
    """FLOPs of every position against every centroid, which has no gradient, and of each cluster's w positions among themselves."""
    n, d, h, clusters = geometry.keys, geometry.head_dim, geometry.heads, cluster_count(geometry.keys, options)
    w = math.ceil(n / clusters)
    among = 4 * clusters * w * w * d
    return Cost(flops=h * (2 * n * clusters * d + among), parameters=0, backward_flops=h * 2 * among)


@register_attention(
    "routing",
    title="Routing heads (k-means)",
    paper="Roy et al. 2021, arXiv:2003.05997",
    equation="Section 4.1, Algorithm 1",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True, random_at_build=True, shares_query_key=True),
    time="n^1.5 d",
    memory="n^1.5 + n d",
    cost=cost,
    reads=("query", "value"),
    variants={"still": {"decay": 1.0}, "few": {"cluster_scale": 0.5}},
)
class Routing(Attention[Options]):
    """Attention within clusters of online k-means, with shared queries and keys.

    Paper: Roy et al. 2021, Section 4.1 and Algorithm 1: positions of unit length, the w = n / k nearest to each centroid, moving
        averages.
    Symbols: μ → centroids, k → clusters, w → window, λ → decay.
    Differs: all heads route, where the paper's layers also have heads of local attention. Queries are keys, as in the paper's
        causal attention, but there is no causal form here: the positions of a cluster depend on all positions, later ones
        included, so the paper's masks inside clusters still leak. A position in several clusters gets the mean of their outputs,
        not the last output; a position in none gets zeros, as in the paper. Keys are scaled to the length √d by their norm alone,
        without subtracting a mean. Centroids are updated in training only, after the call, towards the mean of the positions
        nearest to them, and keep unit length. w counts valid positions of each example.
    """

    centroids: Float[Tensor, "heads clusters head_dim"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        drawn = torch.randn(geometry.heads, cluster_count(geometry.keys, options), geometry.head_dim)
        self.register_buffer("centroids", F.normalize(drawn, dim=-1))
        if options.decay < 1:
            self.written = ("centroids",)

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Warn of a single cluster, or of one for each token."""
        clusters, n = cluster_count(geometry.keys, options), geometry.keys
        if clusters >= n:
            return (f"{clusters} clusters are no fewer than the {n} tokens: a cluster takes a single one, which sees itself",)
        return ("one cluster takes all tokens: every token sees all",) if clusters == 1 else ()

    @torch.no_grad()
    def resize_length(self, length: int) -> None:
        """Change the number of keys in place; for another number of clusters, drop the last centroids or draw new ones."""
        resized = self.geometry_at(length)
        clusters, (heads, before, d) = cluster_count(length, self.options), self.centroids.shape
        more = torch.randn(heads, max(0, clusters - before), d, device=self.centroids.device, dtype=self.centroids.dtype)
        self.centroids = torch.cat([self.centroids[:, :clusters], F.normalize(more, dim=-1)], dim=1)
        self.geometry = resized

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Compute Algorithm 1 with clusters × n × n weights, without updating centroids; average over a position's clusters."""
        d, clusters = query.shape[3], self.centroids.shape[1]
        valid = real_positions(query, key_valid)[:, None]
        unit = F.normalize(query, dim=-1)
        nearness = (self.centroids @ unit.mT).masked_fill(~valid[:, None], float("-inf"))
        rank = nearness.argsort(dim=-1, descending=True).argsort(dim=-1)
        window = (valid.sum(dim=-1, keepdim=True) / clusters).ceil()[..., None]
        taken = (rank < window) & valid[:, None]  # (batch, heads, clusters, n)
        weights = softmax_over_valid((unit @ unit.mT * d**0.5)[:, :, None], taken[..., None, :])
        outputs = weights @ value[:, :, None] * taken[..., None]
        return outputs.sum(dim=2) / taken.sum(dim=2).clamp(min=1)[..., None]

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Choose the positions of each cluster, attend among them, and average the outputs by position."""
        batch, heads, n, d = query.shape
        clusters = self.centroids.shape[1]
        wide = query.to(torch.promote_types(query.dtype, torch.float32))  # in 16 bits a zero query would be divided by zero
        unit = F.normalize(wide, dim=-1).to(query.dtype)
        valid = real_positions(query, key_valid)
        chosen, taken = self._route(unit.detach(), valid)
        place = chosen.flatten(2)

        near, values = (take(t, place).unflatten(2, (clusters, -1)) for t in (unit, value))
        scores = (near * d**0.5) @ near.mT
        weights = softmax_over_valid(scores, taken[..., None, :])
        weights = F.dropout(weights, self.options.dropout, self.training).to(value.dtype)
        outputs = (weights @ values).flatten(2, 3)

        # Index n, behind the last position, collects the empty places of clusters of padded examples.
        counts = outputs.new_zeros(batch, heads, n + 1).scatter_add(2, place, torch.ones_like(outputs[..., 0]))
        share = counts.clamp(min=1).reciprocal().gather(2, place)[..., None]
        out = torch.zeros(batch, heads, n + 1, d, dtype=outputs.dtype, device=outputs.device)
        return out.scatter_add(2, place[..., None].expand(-1, -1, -1, d), outputs * share)[:, :, :n]

    @torch.no_grad()
    def _route(self, unit: Float[Tensor, "batch heads n head_dim"], valid: Bool[Tensor, "batch n"]) -> tuple[Tensor, Tensor]:
        """Return the positions of each cluster, n at empty places, and the mask of filled places; in training, update centroids."""
        n, clusters = unit.shape[2], self.centroids.shape[1]
        with without_autocast(unit.device):  # so that clusters do not depend on autocast
            wide = unit.to(torch.promote_types(unit.dtype, torch.float32))
            nearness = self.centroids.to(wide.dtype) @ wide.mT
            if self.training and self.options.decay < 1:
                self._update_centroids(wide, nearness, valid)
        nearness = nearness.masked_fill(~valid[:, None, None, :], torch.finfo(nearness.dtype).min)
        best = nearness.topk(-(-n // clusters), dim=-1).indices
        count = valid.sum(dim=-1)
        window = (count + clusters - 1) // clusters  # per example, so that padding of others has no influence
        taken = torch.arange(best.shape[-1], device=best.device) < window[:, None]
        taken = taken[:, None, None, :].expand(best.shape)
        return best.masked_fill(~taken, n), taken

    def _update_centroids(
        self, unit: Tensor, nearness: Float[Tensor, "batch heads clusters n"], valid: Bool[Tensor, "batch n"]
    ) -> None:
        """Move each centroid towards the mean of the valid positions that are nearer to it than to any other."""
        nearest = F.one_hot(nearness.argmax(dim=2), self.centroids.shape[1]) * valid[:, None, :, None]
        summed = torch.einsum("bhnc,bhnd->hcd", nearest.to(unit.dtype), unit)
        count = nearest.sum(dim=(0, 2))[..., None]
        moved = self.centroids * self.options.decay + (1 - self.options.decay) * summed / count.clamp(min=1)
        self.centroids.copy_(torch.where(count > 0, F.normalize(moved, dim=-1), self.centroids))

"""Routing attention: yᵢ = Σⱼ softmaxⱼ(q̂ᵢ·k̂ⱼ √d) vⱼ over the keys j in the cluster of query i.

Here q̂ = q / |q| and k̂ = k / |k|. A cluster holds the w queries and the w keys nearest to its centroid. A query in several
clusters gets the mean of their outputs; a query in none gets zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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
    """k / √n, where k is the number of clusters, and n the length for which the mechanism is built. At 1, the choice of clusters
    and the attention each cost about n^1.5.
    """
    decay: float = bounded(
        0.999, Bound(lambda x: 0 <= x <= 1, "must be from 0 to 1, because it is the share of a centroid that an update keeps")
    )
    """Decay of the moving average that updates each centroid in a training call. At 1 the centroids never change."""


def cluster_count(keys: int, options: Options) -> int:
    """Return the number of clusters k, which is at least one and at most the number of positions."""
    return max(1, round(min(options.cluster_scale * math.sqrt(keys), keys)))


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of comparing queries and keys with every centroid, and of attention from the w queries of
    each cluster to its w keys. The comparison has no gradient.
    """
    n, d, h, clusters = geometry.keys, geometry.head_dim, geometry.heads, cluster_count(geometry.keys, options)
    w = math.ceil(n / clusters)
    among = 4 * clusters * w * w * d
    return Cost(flops=h * (4 * n * clusters * d + among), parameters=0, backward_flops=h * 2 * among)


@register_attention(
    "routing",
    title="Routing heads (k-means)",
    paper="Roy et al. 2021, arXiv:2003.05997",
    equation="Section 4.1, Algorithm 1",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True, random_at_build=True),
    time="n^1.5 d",
    memory="n^1.5 + n d",
    cost=cost,
    variants={"still": {"decay": 1.0}, "few": {"cluster_scale": 0.5}},
    version=2,  # in 1 the queries were also the keys
)
class Routing(Attention[Options]):
    """Softmax attention from the queries of a cluster to the keys of the same cluster. Online k-means forms the clusters.

    Paper: Roy et al. 2021, Section 4.1 and Algorithm 1 without its causal mask. Queries and keys have unit length. A cluster holds
        the w = n / k queries and the w keys nearest to its centroid. Moving averages update the centroids.
    Symbols: μ → centroids, k → clusters, w → window, λ → decay.
    Differs: all heads use clusters; the paper's layers also have heads of local attention. There is no causal form, because the
        members of a cluster depend on all positions, later ones included. A query in several clusters gets the mean of their
        outputs, not the last output. A query in no cluster gets zeros, as in the paper. Queries and keys are divided by their norm,
        without subtracting their mean over the channels first. Scores are products of queries and keys, multiplied by √d. At the
        end of each training call, a centroid moves towards the mean of the queries and keys nearest to it. It always has unit
        length. w is the number of valid positions of an example divided by k. Queries at padded positions are added to the clusters
        and take no place from other queries.
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
        """Return a warning if there is a single cluster, or if there are as many clusters as tokens."""
        clusters, n = cluster_count(geometry.keys, options), geometry.keys
        if clusters >= n:
            return (f"there are {clusters} clusters for {n} tokens, so each cluster takes a single query and a single key",)
        return ("one cluster takes all tokens, so every token sees all tokens",) if clusters == 1 else ()

    @torch.no_grad()
    def resize_length(self, length: int) -> None:
        """Change this module's number of keys. If the number of clusters changes, drop the last centroids or draw new ones."""
        resized = self.geometry_at(length)
        clusters, (heads, before, d) = cluster_count(length, self.options), self.centroids.shape
        more = torch.randn(heads, max(0, clusters - before), d, device=self.centroids.device, dtype=self.centroids.dtype)
        self.centroids = torch.cat([self.centroids[:, :clusters], F.normalize(more, dim=-1)], dim=1)
        self.geometry = resized

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Algorithm 1 with n × n weights per cluster, averaged over the clusters of each query. The centroids
        are not updated.
        """
        d, clusters = query.shape[3], self.centroids.shape[1]
        valid = real_positions(query, key_valid)[:, None]

        def members(unit: Queries, among: Bool[Tensor, "batch 1 n"]) -> Bool[Tensor, "batch heads clusters n"]:
            nearness = (self.centroids @ unit.mT).masked_fill(~among[:, None], float("-inf"))
            rank = nearness.argsort(dim=-1, descending=True).argsort(dim=-1)
            window = (among.sum(dim=-1, keepdim=True) / clusters).ceil()[..., None]
            return (rank < window) & among[:, None]

        unit_query, unit_key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        asking, asked = members(unit_query, valid) | members(unit_query, ~valid), members(unit_key, valid)
        weights = softmax_over_valid((unit_query @ unit_key.mT * d**0.5)[:, :, None], asked[..., None, :])
        outputs = weights @ value[:, :, None] * asking[..., None]
        return outputs.sum(dim=2) / asking.sum(dim=2).clamp(min=1)[..., None]

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: choose the queries and keys of each cluster, attend within each cluster, and average the outputs of
        each query over its clusters.
        """
        batch, heads, n, d = query.shape
        clusters = self.centroids.shape[1]
        # In 16 bits a zero vector would be divided by zero.
        wide = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (query, key))
        unit_query, unit_key = (F.normalize(t, dim=-1).to(query.dtype) for t in wide)
        asking, asked = self._route(unit_query.detach(), unit_key.detach(), key_valid)
        place = asking.flatten(2)

        def members(tokens: Tensor, places: Tensor) -> Tensor:
            return take(tokens, places.flatten(2)).unflatten(2, (clusters, -1))

        scores = (members(unit_query, asking) * d**0.5) @ members(unit_key, asked).mT
        weights = softmax_over_valid(scores, (asked < n)[..., None, :])
        weights = F.dropout(weights, self.options.dropout, self.training).to(value.dtype)
        outputs = (weights @ members(value, asked)).flatten(2, 3)

        # Index n, behind the last position, collects the empty places of clusters of padded examples.
        counts = outputs.new_zeros(batch, heads, n + 1).scatter_add(2, place, torch.ones_like(outputs[..., 0]))
        share = counts.clamp(min=1).reciprocal().gather(2, place)[..., None]
        out = torch.zeros(batch, heads, n + 1, d, dtype=outputs.dtype, device=outputs.device)
        return out.scatter_add(2, place[..., None].expand(-1, -1, -1, d), outputs * share)[:, :, :n]

    @torch.no_grad()
    def _route(
        self, query: Float[Tensor, "batch heads n head_dim"], key: Float[Tensor, "batch heads n head_dim"], key_valid: KeyValid
    ) -> tuple[Int[Tensor, "batch heads clusters places"], Int[Tensor, "batch heads clusters w"]]:
        """Return the positions of each cluster's queries and keys. Empty places hold n. In training, update the centroids."""
        valid, n = real_positions(query, key_valid), query.shape[2]
        unit = torch.cat([query, key], dim=2)
        with without_autocast(unit.device):  # so that clusters do not depend on autocast
            wide = unit.to(torch.promote_types(unit.dtype, torch.float32))
            nearness = self.centroids.to(wide.dtype) @ wide.mT
            if self.training and self.options.decay < 1:
                self._update_centroids(wide, nearness, valid.repeat(1, 2))
        asking, asked = nearness.split(n, dim=-1)
        queries = _nearest(asking, valid)
        if key_valid is not None:
            # Padded positions ask, too: apart, so that they take no place of others.
            queries = torch.cat([queries, _nearest(asking, ~valid)], dim=-1)
        return queries, _nearest(asked, valid)

    def _update_centroids(
        self,
        unit: Float[Tensor, "batch heads m head_dim"],
        nearness: Float[Tensor, "batch heads clusters m"],
        valid: Bool[Tensor, "batch m"],
    ) -> None:
        """Move each centroid towards the mean of the valid queries and keys that are nearer to it than to any other."""
        nearest = F.one_hot(nearness.argmax(dim=2), self.centroids.shape[1]) * valid[:, None, :, None]
        summed = torch.einsum("bhnc,bhnd->hcd", nearest.to(unit.dtype), unit)
        count = nearest.sum(dim=(0, 2))[..., None]
        moved = self.centroids * self.options.decay + (1 - self.options.decay) * summed / count.clamp(min=1)
        self.centroids.copy_(torch.where(count > 0, F.normalize(moved, dim=-1), self.centroids))


def _nearest(
    nearness: Float[Tensor, "batch heads clusters n"], among: Bool[Tensor, "batch n"]
) -> Int[Tensor, "batch heads clusters w"]:
    """Return the ⌈m / clusters⌉ positions nearest to each centroid, of the m that ``among`` marks. Empty places hold n."""
    clusters, n = nearness.shape[2:]
    best = nearness.masked_fill(~among[:, None, None], torch.finfo(nearness.dtype).min).topk(-(-n // clusters), dim=-1).indices
    window = (among.sum(dim=-1) + clusters - 1) // clusters  # per example, so that padding of others has no influence
    return best.masked_fill(torch.arange(best.shape[-1], device=best.device) >= window[:, None, None, None], n)

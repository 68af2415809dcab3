"""Clustered attention: yᵢ = Σⱼ softmaxⱼ(q̄·kⱼ / √d) vⱼ, where q̄ is the mean of all queries in the cluster of query i."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.contract import Attention, Bound, Capabilities, Cost, DropoutOptions, Geometry, softmax_over_valid
from attn_zoo.contract.options import bounded, share_of_length
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(DropoutOptions):
    """Options of clustered attention. Queries of a cluster share their weights, so dropout removes the same keys for
    all of them.
    """

    clusters: int = share_of_length(4, most=100)
    """C, the number of clusters. If an input has fewer than C tokens, each token is a cluster."""
    bits: int = bounded(32)
    """B, the number of bits in the hash of a query. Queries with similar hashes form a cluster."""
    iterations: int = bounded(
        10,
        Bound(lambda steps: steps >= 0, "must be at least 1 (a number of steps of k-means) or 0 (keep the first centroids)"),
    )
    """L, the number of k-means iterations."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of three steps: hashing the queries, clustering the hashes by k-means, and attention from the
    centroids to all keys. The first two steps have no gradient.
    """
    n, d, c = geometry.keys, geometry.head_dim, min(options.clusters, geometry.keys)
    cluster = 2 * n * options.bits * (d + (options.iterations + 1) * c)
    attend, h = 4 * c * n * d, geometry.heads
    return Cost(flops=h * (cluster + attend), parameters=0, backward_flops=h * 2 * attend)


@register_attention(
    "clustered",
    title="Clustered queries",
    paper="Vyas et al. 2020, arXiv:2007.04825",
    equation="Eq. 3 to 6",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True, random_at_build=True),
    time="n c d",
    memory="n c + n d",
    cost=cost,
    variants={"many": {"clusters": 20, "bits": 63}, "first": {"iterations": 0, "clusters": 3}},
)
class Clustered(Attention[Options]):
    """Softmax attention from the centroids of clusters of queries to all keys. All queries of a cluster get the same output.

    Paper: Vyas et al. 2020. Eq. 3 to 6 define the centroids, attention from the centroids, and the copying of the results to the
        queries. Section 3.2.1 defines k-means on bits (signs of random projections), with the Hamming distance.
    Symbols: C → clusters, B → bits, L → iterations, S → cluster (the cluster of each query).
    Differs: the paper's improved form, which attends again to the keys with the highest weights, is left out. The first centroids
        of k-means are evenly spaced valid queries, so evaluation is deterministic. The paper's code draws them at random. The hash
        is drawn once, and all heads use it. A query at the same distance from two clusters joins the first of the two. Queries at
        padded positions form a further cluster.
    """

    directions: Float[Tensor, "head_dim bits"]
    saturates = (("clusters", "is at least the number of tokens ({n}), so there are at least as many centroids as queries"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("directions", torch.randn(geometry.head_dim, options.bits))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 3 to 6. S is the n × C matrix that is 1 if a query is in a cluster. Each centroid is the mean
        of the queries in one column of S. S also copies the outputs of the centroids back to the queries.
        """
        clusters = min(self.options.clusters, query.shape[2])
        valid = real_positions(query, key_valid)
        cluster = self._cluster(query.detach(), valid, clusters).masked_fill(~valid[:, None], clusters)
        s = F.one_hot(cluster, clusters + 1).to(query.dtype)
        centroids = s.mT @ query / s.sum(dim=2).clamp(min=1)[..., None]
        weights = softmax_over_valid(centroids @ key.mT / query.shape[-1] ** 0.5, valid[:, None, None, :])
        return s @ (weights @ value)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: cluster the queries, attend from each centroid to all keys, and copy each result to the queries of
        its cluster.
        """
        batch, heads, n, d = query.shape
        valid = real_positions(query, key_valid)
        clusters = min(self.options.clusters, n)
        cluster = self._cluster(query.detach(), valid, clusters)
        if key_valid is not None:
            cluster, clusters = cluster.masked_fill(~key_valid[:, None], clusters), clusters + 1
        wide, precise = cluster[..., None].expand(-1, -1, -1, d), query.to(torch.promote_types(query.dtype, torch.float32))
        size = precise.new_zeros(batch, heads, clusters).scatter_add(2, cluster, torch.ones_like(precise[..., 0])).clamp(min=1)
        shares = precise / size.gather(2, cluster)[..., None]
        centroids = precise.new_zeros(batch, heads, clusters, d).scatter_add(2, wide, shares).to(query.dtype)
        scores = (centroids * d**-0.5) @ key.mT
        weights = softmax_over_valid(scores, None if key_valid is None else key_valid[:, None, None, :])
        weights = F.dropout(weights, self.options.dropout, self.training)
        return (weights.to(value.dtype) @ value).gather(2, wide)

    @torch.no_grad()
    def _cluster(
        self, query: Float[Tensor, "batch heads n head_dim"], valid: Bool[Tensor, "batch n"], clusters: int
    ) -> Int[Tensor, "batch heads n"]:
        """Return the cluster of each query by k-means on ±1 bits. Sums of bits are whole numbers, and so exact in any order."""
        heads, bits = query.shape[1], self.options.bits
        with without_autocast(query.device):  # so that clusters do not depend on autocast
            wide = query.to(torch.promote_types(query.dtype, torch.float32))
            code = torch.where(wide @ self.directions.to(wide.dtype) >= 0, 1.0, -1.0)
            code = code.masked_fill(~valid[:, None, :, None], 0)
            # First centroids: evenly spaced valid queries; with fewer than C, some are taken twice, and argmax takes the first.
            in_order = (~valid).int().argsort(dim=-1, stable=True)
            rank = torch.arange(clusters, device=query.device) * valid.sum(dim=-1, keepdim=True) // clusters
            start = in_order.gather(1, rank)[:, None, :, None].expand(-1, heads, -1, bits)
            centroid = code.gather(2, start)
            for _ in range(self.options.iterations):
                cluster = (code @ centroid.mT).argmax(dim=-1)
                summed = torch.zeros_like(centroid).scatter_add(2, cluster[..., None].expand_as(code), code)
                centroid = torch.where(summed == 0, centroid, summed.sign())  # a tie, or an empty cluster, changes no bit
            return (code @ centroid.mT).argmax(dim=-1)

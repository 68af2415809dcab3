"""Top-k attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the k keys j with the highest scores of query i."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, allowed_pairs, softmax_over_valid
from attn_zoo.contract.options import at_least, share_of_length
from attn_zoo.kernels.cpu.topk import topk_attention
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of top-k attention."""

    kept: int = share_of_length(4, most=64, bound=at_least(1, "keys"))
    """k, the number of keys to which a query attends. If there are fewer keys, the query attends to all keys."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores Q Kᵀ and of the weighted sums of values, both for all keys. The search for the highest scores
    is not counted, because it is not a matrix product. The state is the KV cache of keys and values.
    """
    product = 2 * geometry.queries * geometry.keys * geometry.inner_dim
    state = FLOAT * geometry.keys * geometry.cached_width() if geometry.causal else None
    return Cost(2 * product, 0, backward_flops=4 * product, state_bytes=state)


@register_attention(
    "topk",
    title="Top-k (exact)",
    paper="Gupta et al. 2021, arXiv:2106.06899",
    equation="Section 2, the highest k scores of each query",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n k + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: TopK(geometry, Options(kept=geometry.keys)),
    variants={"few": {"kept": 2}, "more": {"kept": 20}},
)
class TopK(Attention[Options]):
    """Softmax attention from each query to the k keys with the highest scores for this query. The time is quadratic in the length.
    The memory of the implementation ``tiled`` is linear in the length.

    Paper: Gupta et al. 2021, Section 2: top-k scores, computed for one chunk of queries at a time.
    Symbols: k → kept.
    Differs: the k weights are written into a matrix of zeros, which is multiplied by all values. The paper gathers k values for
        each query instead. Gradients are also computed by products of whole matrices. If scores are equal, torch.topk decides. A
        query that sees fewer than k valid keys attends to all of these keys. A query that sees no valid key gets zeros. Keys are
        chosen in float32 or more.
    """

    saturates = (("kept", "is at least the number of keys ({n}), so no key is left out"),)

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if each query attends to all keys, or to one key."""
        if options.kept == 1:
            return ("kept=1 gives one key all the weight: no gradient reaches queries and keys",)
        return super().warnings(geometry, options)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return softmax attention over the keys whose scores are at least the k-th highest score of the query."""
        scores = query @ key.mT / query.shape[-1] ** 0.5
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
        ordered = scores.masked_fill(~allowed, float("-inf")).sort(dim=-1, descending=True).values
        lowest = ordered[..., min(self.options.kept, key.shape[2]) - 1, None]
        return softmax_over_valid(scores, allowed & (scores >= lowest)) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return softmax attention over the k highest scores of each query. All other weights are zero."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            scores = query.to(dtype) @ (key.to(dtype) * query.shape[-1] ** -0.5).mT
            allowed, lowest = allowed_pairs(query, key, key_valid, causal=self.geometry.causal), torch.finfo(dtype).min
            seen = scores if allowed is None else scores.masked_fill(~allowed, lowest)
            highest, where = seen.topk(min(self.options.kept, key.shape[2]), dim=-1)
            weights = softmax_over_valid(highest, highest > lowest)
            return (torch.zeros_like(scores).scatter(-1, where, weights) @ value.to(dtype)).to(query.dtype)

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed in blocks of queries, without storing scores for the backward pass."""
        return topk_attention(query, key, value, key_valid, self.options.kept, causal=self.geometry.causal)

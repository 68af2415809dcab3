"""Sparse attention by an indexer (DSA): yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the k keys with the highest scores Iᵢⱼ.

Iᵢⱼ = Σₕ wᵢₕ ReLU(q̃ᵢₕ·k̃ⱼ), where q̃ᵢₕ is the query of a narrow index head h, k̃ⱼ is the index key, and wᵢₕ is a weight computed
from token i. All heads attend to the same k keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention.content._index import highest, index_loss, index_scores, side_by_side
from attn_zoo.contract import FLOAT, Attention, AuxiliaryLoss, Capabilities, Cost, DropoutOptions, Geometry
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid
from attn_zoo.contract.options import at_least, bounded, share_of_length
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options(DropoutOptions):
    """Options of attention with an indexer."""

    kept: int = share_of_length(4, most=64, bound=at_least(1, "keys"))
    """k, the number of keys to which a query attends. If there are fewer keys, the query attends to all."""
    index_heads: int = bounded(4)
    """Number of index heads, the small heads whose scores choose the keys."""
    index_width: int = bounded(16)
    """Number of channels of an index head."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of the indexer, the scores of all pairs, and the weighted sums of values. Products with
    weights of zero are also counted. In the backward pass, the auxiliary loss gives gradients to the maps of the indexer, but none
    to queries and keys.

    The state holds keys and values. Index keys are not stored, but computed again from the keys at each step.
    """
    n, m, inner = geometry.queries, geometry.keys, geometry.inner_dim
    wide = options.index_heads * options.index_width
    maps, near = 2 * inner * (n * (wide + options.index_heads) + m * options.index_width), 2 * n * m * wide
    attend = 4 * n * m * inner
    parameters = inner * (wide + options.index_heads + options.index_width)
    state = FLOAT * m * geometry.cached_width() if geometry.causal else None
    return Cost(maps + near + attend, parameters, backward_flops=2 * attend + maps + 2 * near, state_bytes=state)


@register_attention(
    "indexer",
    title="Lightning indexer (DSA)",
    paper="DeepSeek-AI 2025, arXiv:2512.02556 (DeepSeek-V3.2)",
    equation="Section 2.1, Eq. 1 to 4",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True, mixes_heads=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
    variants={"narrow": {"kept": 12, "index_heads": 2, "index_width": 5}},
)
class Indexer(Attention[Options]):
    """Softmax attention to the k keys that a small learned scorer, the indexer, ranks highest. All heads attend to the same keys.

    Paper: DeepSeek-AI 2025 (DeepSeek-V3.2), Section 2.1: index scores, the choice of k keys, and the loss of the indexer.
    Symbols: k → kept, H^I → index_heads, q^I, k^I and w → the maps index_query, index_key and index_weight, I → index.
    Differs: the indexer reads the queries and keys of all heads; the paper's indexer reads the tokens and a latent query. The
        paper's norm of index keys, rotary positions and low precision are left out. The scores I are divided by √(H^I d^I), which
        the paper's equation does not show. All n² scores are computed and then masked; the paper's kernels compute the chosen
        scores alone. If index scores are equal, which ReLU makes likely, the first key is chosen.
    Choice: a separate loss trains the indexer alone: KL(p ‖ q), where p are the mean attention weights of the heads, and q is the
        softmax of I over all visible keys. The paper uses this loss in its dense warm-up; here it is used throughout. The training
        loop adds this loss to the loss of the task (see ``auxiliary_loss``). The loss of the task does not train the indexer.
    """

    saturates = (("kept", "is at least the number of keys ({n}), so no key is left out"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        heads, width, inner = options.index_heads, options.index_width, geometry.inner_dim
        self.index_query = nn.Parameter(torch.randn(heads * width, inner) * inner**-0.5)
        self.index_key = nn.Parameter(torch.randn(width, inner) * inner**-0.5)
        self.index_weight = nn.Parameter(torch.randn(heads, inner) * inner**-0.5)
        self.auxiliary = AuxiliaryLoss()

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: add the scores of all index heads, sort the keys by this sum, and attend to the first k keys of each
        query.
        """
        rows, columns = (x.transpose(1, 2).flatten(2) for x in (query, key))
        index = torch.zeros_like(rows[..., :1]) * columns[:, None, :, 0]
        for head, part in enumerate(self.index_query.split(self.options.index_width)):
            weight = rows @ self.index_weight[head, :, None]
            index = index + weight * F.relu(rows @ part.T @ (columns @ self.index_key.T).mT)
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        index = index if allowed is None else index.masked_fill(~allowed[:, 0], -torch.inf)
        rank = index.sort(dim=-1, descending=True, stable=True).indices.argsort(dim=-1)
        chosen = (rank < self.options.kept) & (index > -torch.inf)
        return softmax_over_valid(query @ key.mT / query.shape[-1] ** 0.5, chosen[:, None]) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: choose k keys for each query by the indexer, and attend to these keys with softmax weights."""
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        index, chosen = self.choose(query, key, allowed)
        scores = query @ (key * query.shape[-1] ** -0.5).mT
        if self.training:
            own = not self.crosses and query.shape[2] == key.shape[2]
            self.auxiliary.term = index_loss(index, scores, allowed, key_valid if own else None)
        weights = softmax_over_valid(scores, chosen[:, None])
        return F.dropout(weights, self.options.dropout, self.training) @ value

    def choose(
        self, query: Queries, key: Keys, allowed: Bool[Tensor, "#batch 1 queries keys"] | None
    ) -> tuple[Float[Tensor, "batch queries keys"], Bool[Tensor, "batch queries keys"]]:
        """Return the index scores, and a mask that is True for the chosen keys of each query. The score of a key that a query may
        not see is the lowest number of the dtype.
        """
        with without_autocast(query.device):  # so that the choice does not depend on autocast
            rows, columns = (side_by_side(x) for x in (query, key))
            maps = (x.to(rows.dtype).T for x in (self.index_query, self.index_key, self.index_weight))
            to_queries, to_keys, to_weights = maps
            index = index_scores(rows @ to_queries, columns @ to_keys, rows @ to_weights)
            index = index if allowed is None else index.masked_fill(~allowed[:, 0], torch.finfo(index.dtype).min)
        return index, highest(index, self.options.kept)

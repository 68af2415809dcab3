"""Choice of keys by an indexer: a small learned scorer ranks the keys, and a loss of its own trains it.

Used by ``indexer`` and, for compressed entries in place of keys, by ``sparse_compression``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract.masks import softmax_over_valid


def side_by_side(x: Float[Tensor, "batch heads n head_dim"]) -> Float[Tensor, "batch n inner"]:
    """Return one vector per token, which holds the channels of all heads. The result is detached from autograd, in float32 or
    more.
    """
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)).transpose(1, 2).flatten(2)


def index_scores(
    queries: Float[Tensor, "batch queries wide"],
    keys: Float[Tensor, "batch keys width"],
    weights: Float[Tensor, "batch queries heads"],
) -> Float[Tensor, "batch queries keys"]:
    """Return the index scores I = Σₕ wₕ ReLU(q̃ₕ·k̃), divided by √(H^I d^I).

    Args:
        queries: index queries q̃, with H^I heads of d^I channels beside each other.
        keys: index keys k̃ of d^I channels.
        weights: weight wₕ of each index head.
    """
    heads = weights.shape[-1]
    near = F.relu(queries.unflatten(2, (heads, -1)).transpose(1, 2) @ keys.mT[:, None])
    return (near * weights.mT[..., None]).sum(dim=1) * queries.shape[-1] ** -0.5


def highest(index: Float[Tensor, "batch queries keys"], kept: int) -> Bool[Tensor, "batch queries keys"]:
    """Return a mask that is True for the ``kept`` keys with the highest index scores of each query. Keys whose score is the lowest
    number of the dtype are hidden, and are never marked.
    """
    best = index.detach().sort(dim=-1, descending=True, stable=True)
    values, where = best.values[..., :kept], best.indices[..., :kept]
    return torch.zeros_like(index, dtype=torch.bool).scatter(-1, where, values > torch.finfo(index.dtype).min)


def index_loss(
    index: Float[Tensor, "batch queries keys"],
    scores: Float[Tensor, "batch heads queries keys"],
    allowed: Bool[Tensor, "#batch 1 queries keys"] | None,
    query_valid: Bool[Tensor, "batch queries"] | None,
) -> Float[Tensor, ""]:
    """Return the loss of the indexer: the Kullback-Leibler divergence KL(p ‖ q), averaged over the real queries. p are the mean
    attention weights of the heads, and q is the softmax of ``index``.

    Args:
        index: index scores.
        scores: scores of the attention heads; no gradient reaches them.
        allowed: True if a query may see a key; None allows all pairs.
        query_valid: True for a real query; None if all are real.
    """
    wanted = softmax_over_valid(scores.detach().to(index.dtype), allowed).mean(dim=1)
    gap = F.kl_div(index.log_softmax(dim=-1), wanted, reduction="none").sum(dim=-1)
    if query_valid is None:
        return gap.mean()
    return (gap * query_valid).sum() / query_valid.sum().clamp(min=1)

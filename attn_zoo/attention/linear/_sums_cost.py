"""Cost of linear attention in plain PyTorch, for mechanisms whose number of features differs from the number of channels."""

from __future__ import annotations

from attn_zoo.contract import FLOAT, Cost, Geometry
from attn_zoo.kernels.cpu._chunks import filled


def eager_cost(geometry: Geometry, features: int) -> Cost:
    """Return the cost of φ(K)ᵀ [V 1], where 1 is a column of ones, and of φ(Q) times this product. If causal, the weights within
    chunks are counted, too. The state holds φ(K)ᵀ [V 1].
    """
    width, chunk, queries, keys = geometry.head_dim + 1, 0, geometry.queries, geometry.keys
    if geometry.causal:
        chunk, queries = filled(keys)
        keys = queries
    flops = 2 * geometry.heads * ((queries + keys) * features * width + queries * chunk * (features + width))
    state = FLOAT * geometry.heads * features * width if geometry.causal else None
    return Cost(flops, 0, backward_flops=2 * flops, state_bytes=state)

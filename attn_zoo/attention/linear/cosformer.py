"""cosFormer: weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M), divided by their sum; cos of a difference is a sum of two products."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._sums_cost import eager_cost
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import Capabilities, Cost, Geometry, NoOptions, UnsupportedError
from attn_zoo.contract.masks import allowed_pairs, weighted_mean
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

RELU_FLOOR = 1e-3
"""Constant added to every feature, so that no weights vanish; the paper's code has a floor of the denominator instead."""


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return the FLOPs of linear attention with 2 d features per head. The state holds both sums."""
    return eager_cost(geometry, CosFormer.features(geometry, options))


@register_attention(
    "cosformer",
    title="cosFormer",
    paper="Qin et al. 2022, arXiv:2202.08791",
    equation="Section 3, cos-based re-weighting",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=False, shorter=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "fla"),
)
class CosFormer(Linear):
    """Linear attention with ReLU features. Its weights decrease with the distance like a cosine.

    Paper: Qin et al. 2022, Section 3 (ReLU features, cos-based re-weighting).
    Symbols: M → reach, Q' and K' → relu(q) and relu(k), Q^cos and Q^sin → the two halves of the features.
    Differs: M is the length the mechanism is built for, where the published code takes the length of each input: so padding and
        later tokens change no weight, and longer inputs are refused until ``resize_length``. Positions of queries and of keys
        count from 0. Each feature is 0.001 larger (see RELU_FLOOR). Causally, weights within chunks are computed directly, and
        only sums are carried from chunk to chunk. Features of padded keys are zero.
    """

    @staticmethod
    def features(geometry: Geometry, options: NoOptions) -> int:
        """Return the number of features, 2 d."""
        return 2 * geometry.head_dim

    @property
    def reach(self) -> int:
        """M, the number of positions that the mechanism is built for."""
        return max(self.geometry.queries, self.geometry.keys)

    def check_lengths(self, batch: int, queries: int, keys: int, key_valid: Tensor | None) -> None:
        """Raise an error for lengths that the contract does not allow, and for queries beyond M, whose weights would turn negative.

        Raises:
            UnsupportedError: there are more queries than M.
        """
        super().check_lengths(batch, queries, keys, key_valid)
        if queries > self.reach:
            raise UnsupportedError(
                f"cosformer must get at most {self.reach} queries, because its weights turn negative beyond; got {queries} "
                "queries; "
                "build it for the longest input, or call resize_length"
            )

    def resize_length(self, length: int) -> None:
        """Change the number of keys in place, and M with it."""
        self.geometry = self.geometry_at(length)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Compute the n × n weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M)."""
        rows, columns = (torch.arange(x.shape[2], dtype=x.dtype, device=x.device) for x in (query, key))
        near = (math.pi / 2 * (rows[:, None] - columns) / self.reach).cos()
        weights = (query.relu() + RELU_FLOOR) @ (key.relu() + RELU_FLOOR).mT * near
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def phi(self, x: Keys, valid: KeyValid = None, start: int = 0) -> Float[Tensor, "batch heads keys m"]:
        """Return the features [relu(x) cos θ, relu(x) sin θ] with θ = π/2 · i/M. Padded tokens have zeros."""
        theta = torch.arange(start, start + x.shape[2], dtype=x.dtype, device=x.device)[:, None] * (math.pi / 2 / self.reach)
        positive = x.relu() + RELU_FLOOR
        phi = torch.cat([positive * theta.cos(), positive * theta.sin()], dim=-1)
        return phi if valid is None else phi * valid[:, None, :, None]

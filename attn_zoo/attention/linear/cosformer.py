"""cosFormer: yᵢ is the mean of the values vⱼ with the weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M), for lengths up to M.

The cosine of a difference is a sum of two products, so this is linear attention.
"""

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
"""Constant added to every feature, so that the weights of a query are never all zero. The paper's code gives the denominator a
lower bound instead.
"""


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return the cost of linear attention with two features per channel."""
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
    """Linear attention with ReLU features and with weights that decrease like a cosine as the distance grows.

    Paper: Qin et al. 2022, Section 3 (ReLU features, cos-based re-weighting).
    Symbols: M → reach; Q' and K' → relu(q) and relu(k); Q^cos and Q^sin → the two halves of the features.
    Differs: M is the length for which the mechanism is built, so padding and later tokens do not change the weights. The published
        code uses the length of each input. Longer inputs are unsupported until ``resize_length`` is called. The first query and the
        first key are at position 0. 0.001 is added to relu(q) and relu(k) (see RELU_FLOOR). If causal, weights are computed within
        chunks only, and earlier chunks are read from sums. Features of padded keys are zero.
    """

    @staticmethod
    def features(geometry: Geometry, options: NoOptions) -> int:
        """Return the number of features of a head, which is twice the number of its channels."""
        return 2 * geometry.head_dim

    @property
    def reach(self) -> int:
        """M, the number of positions for which the mechanism is built."""
        return max(self.geometry.queries, self.geometry.keys)

    def check_lengths(self, batch: int, queries: int, keys: int, key_valid: Tensor | None) -> None:
        """Raise an error if the lengths or the padding mask are unsupported.

        Raises:
            UnsupportedError: the base class does not support the lengths or padding, or there are more queries than positions for
                which the mechanism is built, so weights would be negative.
            ValueError: the mask is not boolean of shape (batch, keys).
        """
        super().check_lengths(batch, queries, keys, key_valid)
        if queries > self.reach:
            raise UnsupportedError(
                f"cosformer must get at most {self.reach} queries, because its weights would be negative for more; got "
                f"{queries}. Build it for the longest input, or call resize_length"
            )

    def resize_length(self, length: int) -> None:
        """Set the number of keys to ``length``, in place. This also sets M, the number of positions for which the mechanism is
        built.
        """
        self.geometry = self.geometry_at(length)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the n × n weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M), divided by their sum over the keys. M
        is ``reach``.
        """
        rows, columns = (torch.arange(x.shape[2], dtype=x.dtype, device=x.device) for x in (query, key))
        near = (math.pi / 2 * (rows[:, None] - columns) / self.reach).cos()
        weights = (query.relu() + RELU_FLOOR) @ (key.relu() + RELU_FLOOR).mT * near
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def phi(self, x: Keys, valid: KeyValid = None, start: int = 0) -> Float[Tensor, "batch heads keys m"]:
        """Return the features [relu(x) cos θ, relu(x) sin θ] of queries or keys, with θ = π/2 · i/M at position i and M =
        ``reach``. Features of padded tokens are zero.
        """
        theta = torch.arange(start, start + x.shape[2], dtype=x.dtype, device=x.device)[:, None] * (math.pi / 2 / self.reach)
        positive = x.relu() + RELU_FLOOR
        phi = torch.cat([positive * theta.cos(), positive * theta.sin()], dim=-1)
        return phi if valid is None else phi * valid[:, None, :, None]

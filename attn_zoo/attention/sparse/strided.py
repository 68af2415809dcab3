"""Strided attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the j with |i - j| ≤ l or (i - j) mod l = 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT, MASK
from attn_zoo.attention._masks import check_dropout
from attn_zoo.attention.sparse._block_masks import cut, cut_bytes
from attn_zoo.attention.sparse._flex import FlexAttends, flex_attention_over
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu.strided import attend_grid
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of strided attention."""

    stride: int = 0
    """Reach of the window and distance of the keys beyond it, l in the paper; 0 takes about the square root of the length."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise ValueError(
                f"strided.stride counts positions, so it is at least 1, or 0 for the root of the length it is built for; "
                f"got {self.stride}"
            )
        check_dropout("strided", self.dropout)


def stride_of(geometry: Geometry, options: Options) -> int:
    """l, as given or by the length it is built for."""
    return options.stride or math.ceil(math.sqrt(geometry.keys))


def cost(geometry: Geometry, options: Options) -> Cost:
    """Rows of l positions against the rows beside them, and columns against themselves. Backward, all scores anew.

    Kept: queries, keys and values where the last row is filled up, and which keys are valid. State: keys and values of all the
    past, since each is a whole number of strides away from a later query.
    """
    n, heads, d = geometry.keys, geometry.heads, geometry.head_dim
    stride = stride_of(geometry, options)
    rows = math.ceil(n / stride)
    flops = 4 * geometry.inner_dim * rows * stride * ((2 if geometry.causal else 3) * stride + rows)
    return Cost(
        flops=flops,
        parameters=0,
        backward_flops=5 * flops // 2,
        activation_bytes={"eager": 3 * cut_bytes(heads, n, stride, d) + MASK * rows * stride},
        state_bytes=2 * FLOAT * n * geometry.inner_dim if geometry.causal else None,
    )


@register_attention(
    "strided",
    title="Strided (Sparse Transformer)",
    paper="Child et al. 2019, arXiv:1904.10509",
    equation="Section 4.3, the strided pattern",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^1.5 d",
    memory="n^1.5 + n d",
    cost=cost,
    implementations=("eager", "tiled", "flex"),
    softmax_limit=lambda geometry: Strided(geometry, Options(stride=geometry.keys)),
)
class Strided(FlexAttends):
    """Softmax attention to the last l positions and to every l-th position before them.

    Paper: Child et al. 2019, Section 4.3, strided pattern: A⁽¹⁾ is the window, A⁽²⁾ every l-th position.
    Symbols: l → stride.
    Differs: every head sees the union of both parts in one softmax (the paper's merged head, Section 4.2), no key twice;
        without causality both parts reach to either side; weights are never stored but computed anew for the gradient, which
        can be taken once.
    """

    options: Options

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Rows of l positions under each other, so that every l-th position is a column."""
        batch, heads, n, _ = query.shape
        stride = stride_of(self.geometry, self.options)
        valid = query.new_ones(batch, n, dtype=torch.bool) if key_valid is None else key_valid
        valid = F.pad(valid, (0, -n % stride)).unflatten(1, (-1, stride))[:, None].expand(-1, heads, -1, -1).flatten(0, 1)
        dropout = self.options.dropout if self.training else 0.0
        query, key, value = (cut(tokens, stride) for tokens in (query, key, value))
        out = attend_grid(query, key, value, valid, causal=self.geometry.causal, dropout=dropout)
        return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))

    attend_tiled = attend

    def attend_flex(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """PyTorch's FlexAttention over the same pairs."""
        stride = stride_of(self.geometry, self.options)

        def sees(_: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = ((query - key).abs() <= stride) | ((query - key) % stride == 0)
            return seen & (key <= query) if self.geometry.causal else seen

        return flex_attention_over(sees, query, key, value, key_valid)

"""Strided attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j with |i - j| ≤ l or (i - j) mod l = 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.contract import FLOAT, Bound, Capabilities, Cost, DropoutOptions, Geometry, bounded, softmax_over_valid
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.kernels.cpu.strided import attend_grid
from attn_zoo.kernels.flex import MaskMod
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions

STRIDE = Bound(lambda stride: stride >= 0, "must be at least 1, or 0 (the square root of the length)")


@dataclass
class Options(DropoutOptions):
    """Options of strided attention."""

    stride: int = bounded(0, STRIDE)
    """l: a query sees the keys at most l positions away, and beyond them every l-th key. 0 means √n, rounded up, where n is the
    length for which the mechanism is built.
    """


def stride_of(geometry: Geometry, options: Options) -> int:
    """Return the stride l: the option or, if it is 0, the square root of the length, rounded up."""
    return options.stride or math.ceil(math.sqrt(geometry.keys))


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost. Positions are arranged in rows of l. FLOPs are those of attention from each row to itself and to adjacent
    rows, and within each column. The backward pass computes scores again.

    The state holds keys and values of the whole past.
    """
    n, stride = geometry.keys, stride_of(geometry, options)
    rows = math.ceil(n / stride)
    flops = 4 * geometry.inner_dim * rows * stride * ((2 if geometry.causal else 3) * stride + rows)
    state = FLOAT * n * geometry.cached_width() if geometry.causal else None
    return Cost(flops=flops, parameters=0, backward_flops=5 * flops // 2, state_bytes=state)


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
class Strided(PairwiseAttention[Options]):
    """Softmax attention to the keys at most l positions away, and to every l-th key beyond them.

    Paper: Child et al. 2019, Section 4.3, strided pattern: A⁽¹⁾ is the window, A⁽²⁾ every l-th position.
    Symbols: l → stride.
    Differs: every head sees A⁽¹⁾ and A⁽²⁾ in one softmax (the paper's merged head, Section 5.1), and each key counts once. If
        bidirectional, the window and the l-th positions lie on both sides of the query.
    Nature: A position sees its neighbours and every l-th position beyond them. Other tokens arrive after two layers, in averages
        that do not depend on the query. Recall by content therefore stays near a guess among the values seen (accuracy of 12 % with
        8 key-value pairs at l = 8, after 1,100 steps), while copying from a fixed distance is easy.
    """

    def mask_mod(self, n: int, device: torch.device) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the key is at most l positions away from the
        query, or at a distance that is a multiple of l. If causal, later keys are excluded.
        """
        stride, causal = stride_of(self.geometry, self.options), self.geometry.causal

        def seen(_: Tensor, query: Tensor, key: Tensor) -> Tensor:
            found = ((query - key).abs() <= stride) | ((query - key) % stride == 0)
            return found & (key <= query) if causal else found

        return seen

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed on a grid with l consecutive positions per row. A window lies in adjacent rows. Keys whose
        distance is a multiple of l lie in the query's column.
        """
        n, stride, device = query.shape[2], stride_of(self.geometry, self.options), query.device
        after = 0 if self.geometry.causal else 1  # adjacent rows: one before, and one after
        valid = real_positions(query, key_valid)
        # (batch, heads, rows, stride, head_dim)
        query, key, value = (into_chunks(tokens, stride) for tokens in (query, key, value))
        real = F.pad(valid, (0, -n % stride)).unflatten(1, (-1, stride))[:, None]  # (batch, 1, rows, stride)

        near_key, near_value = (_beside(tokens, after) for tokens in (key, value))
        distance = torch.arange(-stride, (1 + after) * stride, device=device) - torch.arange(stride, device=device)[:, None]
        near = _beside(real[..., None], after).mT & (distance >= -stride) & (distance <= after * stride)
        row = torch.arange(real.shape[2], device=device)
        away = row - row[:, None]
        beyond = (away < -1) if self.geometry.causal else (away.abs() > 1)  # nearer positions of the column are in the window
        column = real.mT[:, :, None] & beyond[:, None]

        scores = torch.cat([query @ near_key.mT, _by_column(_by_column(query) @ _by_column(key).mT)], dim=-1)
        weights = softmax_over_valid(scores * query.shape[-1] ** -0.5, torch.cat([near, column], dim=-1))
        near_weights, column_weights = F.dropout(weights, self.options.dropout, self.training).split(
            [distance.shape[1], len(row)], dim=-1
        )
        out = near_weights @ near_value + _by_column(_by_column(column_weights) @ _by_column(value))
        return out.flatten(2, 3)[:, :, :n]

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``attend``, computed in tiles that fit CPU caches."""
        stride, causal = stride_of(self.geometry, self.options), self.geometry.causal
        return attend_grid(query, key, value, key_valid, stride=stride, causal=causal, dropout=self.dropout_rate)


def _beside(rows: Shaped[Tensor, "batch heads rows l d"], after: int) -> Shaped[Tensor, "batch heads rows some_l d"]:
    """Concatenate each row with the one before it and ``after`` rows after it. Beyond the ends there are zeros."""
    return F.pad(rows, (0, 0, 0, 0, 1, after)).unfold(2, 2 + after, 1).movedim(-1, 3).flatten(3, 4)


def _by_column(rows: Float[Tensor, "batch heads rows l d"]) -> Float[Tensor, "batch heads l rows d"]:
    """Swap rows and columns, so that columns become sequences."""
    return rows.transpose(2, 3)

"""External attention: Y = A M_v with A = norm(X M_kᵀ), softmax over positions and then shares of each position over the units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention._masks import check_dropout
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import row_blocks, rows_of_block
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of external attention."""

    units: int = 16
    """S, the number of memory units. The paper's is 64."""
    own_units: bool = False
    """Give each head units of its own; the paper's heads share them."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        if self.units < 2:
            raise ValueError(
                f"external.units counts the units that share out a position, so it is at least 2; got {self.units}; "
                "a single unit would give every position the same answer"
            )
        check_dropout("external", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """X M_kᵀ and A M_v, n S d a head each.

    Kept: scores and weights, and the logarithms of the sums over positions, of each block and of all. Heads that share
    units are copied where they are cut into blocks of positions.
    """
    n, h, d, units = geometry.keys, geometry.heads, geometry.head_dim, options.units
    blocks = -(-n // rows_of_block(FLOAT * h * units))
    copied = blocks > 1 and h > 1 and not options.own_units
    kept = 2 * h * n * units + h * units * (2 * blocks + 1) + copied * h * n * d
    flops = 4 * h * n * units * d
    parameters = 2 * (h if options.own_units else 1) * units * d
    return Cost(flops, parameters, backward_flops=2 * flops, activation_bytes={"eager": FLOAT * kept})


@register_attention(
    "external",
    title="External attention",
    paper="Guo et al. 2021, arXiv:2105.02358",
    equation="External attention with double normalisation; its multi-head form",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n s d",
    memory="n s + n d",
    cost=cost,
    reads=("value",),
    variants={"own_units": {"own_units": True, "units": 5}},
)
class External(Attention):
    """Attention of each position to a few learned units, which are the same for all inputs.

    Paper: Guo et al. 2021: external attention (units as keys and values), its double normalisation, and its multi-head form, whose
        heads share the units.
    Symbols: F → the layer's values, its one projection here and the paper's query; S → units; M_k → memory_keys,
        M_v → memory_values; α → weights.
    Differs: padded positions have no part in the softmax over positions. Both normalisations are one softmax over units of
        scores less the logarithm of their sums over positions, so that nothing is divided by zero. M_k starts from N(0, 1/d)
        and M_v from N(0, 1). Heads are as many as the layer's, where the paper's code makes four times as many.
    """

    options: Options

    def __init__(self, geometry: Geometry, options: Any, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        shape = (geometry.heads if options.own_units else 1, options.units, geometry.head_dim)
        self.memory_keys = nn.Parameter(torch.randn(shape) * geometry.head_dim**-0.5)
        self.memory_values = nn.Parameter(torch.randn(shape))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many units as tokens."""
        units, n = options.units, geometry.keys
        return (f"units={units} are no fewer than the {n} tokens: softmax attention would compare no more",) if units >= n else ()

    def attend(
        self,
        query: Tensor | None,
        key: Tensor | None,
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """In blocks of positions: all sums over positions first, then the weights."""
        keys, values = (m if self.options.own_units else m[0] for m in (self.memory_keys, self.memory_values))
        blocks = row_blocks(value, columns=self.options.units)
        precise = torch.promote_types(value.dtype, torch.float32)
        scores = [(rows @ keys.mT).to(precise) for rows in blocks]
        reached = scores
        if key_valid is not None:
            padding = (~key_valid)[:, None, :, None].split(blocks[0].shape[2], dim=2)
            # The lowest finite number, so that an example without any token stays free of NaN, in the gradient too.
            reached = [s.masked_fill(p, torch.finfo(precise).min) for s, p in zip(scores, padding, strict=True)]
        sums = torch.stack([s.logsumexp(dim=2, keepdim=True) for s in reached]).logsumexp(dim=0)
        dropout = self.options.dropout if self.training else 0.0
        weights = (F.dropout((s - sums).softmax(dim=-1), dropout).to(value.dtype) for s in scores)
        return torch.cat([w @ values for w in weights], dim=2).to(value.dtype)

"""Luna: Y = softmax(Q (A K)ᵀ / √d) A V with A = softmax(P Cᵀ / √d): a few learned queries P pack the tokens, all queries unpack.

Causally A = elu(P Cᵀ / √d) + 1, and both products with A run over the past: yₜ = uₜ Σⱼ aⱼ vⱼᵀ / t with
uₜ = softmax(Σⱼ (qₜ·kⱼ) aⱼ / (t √d)), j ≤ t, where aⱼ is column j of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT, INDEX, fused_bytes, softmax_bytes
from attn_zoo.attention._masks import check_dropout, softmax_over_valid
from attn_zoo.attention.linear._recurrence import gated_bytes
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, Stream
from attn_zoo.kernels.cpu._chunks import filled, in_blocks, into_chunks
from attn_zoo.kernels.cpu._tiling import row_blocks
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of Luna."""

    packed_length: int = 8
    """l, the number of learned queries that pack the tokens."""
    dropout: float = 0.0
    """Share of the weights of packed tokens set to zero in training; without causality only."""

    def __post_init__(self) -> None:
        if self.packed_length < 2:
            raise ValueError(
                f"luna.packed_length counts the packed tokens that a query chooses from, so it is at least 2; "
                f"got {self.packed_length}; a single one would be the same answer for all queries"
            )
        check_dropout("luna", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """P Cᵀ, A K and A V over the keys (l n d a head each), then two products for the queries.

    Causally P Cᵀ, sums of a kᵀ and a vᵀ, both read, and comparisons within chunks; backward all but P Cᵀ is made anew. Kept: P
    scaled, A, packed keys and values, the queries' weights. Causally A before and after its function, the sums
    before each block and how many tokens were read. State: both sums.
    """
    n, m, h, d, packed = geometry.queries, geometry.keys, geometry.heads, geometry.head_dim, options.packed_length
    if geometry.causal:
        chunk, slots = filled(m)
        compared, pack = h * slots * (8 * packed * d + 4 * chunk * (d + packed)), 2 * h * packed * m * d
        starts = 2 * packed * gated_bytes(geometry, 0, normalised=False) // d  # of d × d numbers a head there, of l × 2 d here
        kept = FLOAT * h * packed * (d + 2 * m) + INDEX * m + starts
        return Cost(
            flops=compared + pack,
            parameters=h * packed * d,
            backward_flops=3 * compared + 2 * pack,
            activation_bytes={"eager": kept, "sdpa": kept},
            state_bytes=2 * FLOAT * h * packed * d,
        )
    flops = h * packed * d * (6 * m + 4 * n)
    kept = 3 * FLOAT * h * packed * d + softmax_bytes(h * packed, m)
    return Cost(
        flops=flops,
        parameters=h * packed * d,
        backward_flops=2 * flops,
        activation_bytes={"eager": kept + softmax_bytes(h * n, packed), "sdpa": kept + fused_bytes(h * n, d)},
    )


def streams(geometry: Geometry, options: Options) -> tuple[Stream, ...]:
    """What P is compared with: a projection of the tokens beside keys and values."""
    return (Stream("context", of="keys", starts_as="key"),)


@register_attention(
    "luna",
    title="Luna",
    paper="Ma et al. 2021, arXiv:2106.01540",
    equation="Pack and unpack attention; causal attention",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n l d",
    memory="n l + n d",
    cost=cost,
    streams=streams,
    implementations=("eager", "tiled", "sdpa"),
    variants={"two": {"packed_length": 2}},
)
class Luna(Attention):
    """Two nested attentions: a few learned queries pack the tokens, then all queries attend to what was packed.

    Paper: Ma et al. 2021: pack and unpack attention; causal attention, with ω in place of the first softmax.
    Symbols: P → packed_query (its projection included), l → packed_length, ω → elu + 1, as in the published code; C W of the
        pack attention → the stream context.
    Differs: P is a parameter of each layer; the paper passes what was packed on to the next layer as its P. Keys and values
        are projected before they are packed, which is the same, for packing is linear, but that each head packs its own. P
        starts from N(0, 1). Causally t counts the real tokens so far. Dropout spares A, as the mean output would move with it.
    """

    options: Options

    def __init__(self, geometry: Geometry, options: Any, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.packed_query = nn.Parameter(torch.randn(geometry.heads, options.packed_length, geometry.head_dim))

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Causally, weights are made anew for the gradient, where other ones would be dropped."""
        if geometry.causal and options.dropout > 0:
            return "luna.dropout needs causal=False: the causal form keeps no weights to drop; use the layer's output_dropout"
        return None

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many packed tokens as keys."""
        packed, n = options.packed_length, geometry.keys
        return (f"packed_length={packed} is no fewer than the {n} keys: nothing is packed",) if packed >= n else ()

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
        context: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Pack, then unpack in blocks of queries."""
        if self.geometry.causal:
            return self._attend_past(query, key, value, key_valid, context)
        scale, dropout = query.shape[-1] ** -0.5, self.options.dropout if self.training else 0.0
        scores = (self.packed_query.to(context.dtype) * scale) @ context.mT
        shares = softmax_over_valid(scores, None if key_valid is None else key_valid[:, None, None]).to(value.dtype)
        packed_key, packed_value = shares @ key, shares @ value
        if self.implementation == "sdpa":
            return F.scaled_dot_product_attention(query, packed_key, packed_value, dropout_p=dropout)
        scaled = (packed_key * scale).mT
        blocks = row_blocks(query, columns=shares.shape[2])
        weights = (F.dropout((rows @ scaled).softmax(dim=-1), dropout) for rows in blocks)
        return torch.cat([w.to(value.dtype) @ packed_value for w in weights], dim=2).to(value.dtype)

    attend_tiled = attend

    attend_sdpa = attend

    def _attend_past(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, context: Tensor
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Long sums need float32, so autocast is left for the length of the call."""
        (batch, heads, n, d), packed = query.shape, self.options.packed_length
        dtype = torch.promote_types(value.dtype, torch.float32)
        with without_autocast(query.device):
            shares = F.elu(context.to(dtype) @ (self.packed_query.to(dtype) * d**-0.5).mT) + 1
            if key_valid is None:
                count = torch.arange(1, n + 1, device=query.device)[None, None, :, None]
            else:
                shares = shares.masked_fill(~key_valid[:, None, :, None], 0)
                count = key_valid.cumsum(dim=1)[:, None, :, None]
            start = torch.zeros(batch, heads, packed, 2 * d, dtype=dtype, device=query.device)
            out, _ = in_blocks(partial(_past, filled(n)[0]), start, *(t.to(dtype) for t in (query, key, value)), shares, count)
        return out.to(value.dtype)


def _past(chunk: int, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Answer some positions from the sums Σ a [k v]ᵀ before them, and from each other within chunks."""
    query, key, value, shares, count = (into_chunks(x, chunk) for x in rows)
    both = torch.cat([key, value], dim=-1)
    before = []
    for summed in (shares.mT @ both).unbind(2):
        before.append(state)
        state = state + summed
    keys, values = torch.stack(before, dim=2).chunk(2, dim=-1)
    share = count.clamp(min=1).to(query.dtype).reciprocal()
    query = query * query.shape[-1] ** -0.5
    scores = (query @ key.mT).tril() @ shares + query @ keys.mT
    weights = (scores * share).softmax(dim=-1)
    out = ((weights @ shares.mT).tril() @ value + weights @ values) * share
    return out.flatten(2, 3)[:, :, : rows[0].shape[2]], state

"""Luna: Y = softmax(Q (A K)ᵀ / √d) A V with A = softmax(P Cᵀ / √d). A few learned queries P pack the tokens C; then all queries
attend to the packed tokens.

The causal form has A = elu(P Cᵀ / √d) + 1, and its sums run over the past: yₜ = uₜ Σⱼ aⱼ vⱼᵀ / t with uₜ = softmax(Σⱼ (qₜ·kⱼ) aⱼ /
(t √d)). Here aⱼ is column j of A, and j ≤ t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, Stream, softmax_over_valid
from attn_zoo.contract.options import at_least, share_of_length
from attn_zoo.kernels.cpu._chunks import filled, in_blocks, into_chunks
from attn_zoo.kernels.sdpa import fused_attention
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

PACKED = at_least(2, "the packed tokens that a query sees", advice="A single one would give every query the same output")


@dataclass
class Options(DropoutOptions):
    """Options of Luna. Dropout applies to the weights with which queries attend to packed tokens. If causal, dropout must be 0."""

    packed_length: int = share_of_length(4, most=256, least=2, bound=PACKED)
    """l, the number of learned queries that pack the tokens."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of P Cᵀ, A K and A V, each l n d multiply-adds per head for l packed tokens, and of attention
    from the queries to the packed tokens.

    In the causal form, let a be the l pack weights of a token. This form computes P Cᵀ, the sums of a kᵀ and a vᵀ over tokens,
    products of these sums with queries, and the weights within chunks. Its backward pass computes all but P Cᵀ again. The state
    holds the sums.
    """
    n, m, h, d, packed = geometry.queries, geometry.keys, geometry.heads, geometry.head_dim, options.packed_length
    if geometry.causal:
        chunk, slots = filled(m)
        compared, pack = h * slots * (8 * packed * d + 4 * chunk * (d + packed)), 2 * h * packed * m * d
        state = 2 * FLOAT * h * packed * d
        return Cost(compared + pack, h * packed * d, backward_flops=3 * compared + 2 * pack, state_bytes=state)
    flops = h * packed * d * (6 * m + 4 * n)
    return Cost(flops, parameters=h * packed * d, backward_flops=2 * flops)


@register_attention(
    "luna",
    title="Luna (own P in each layer)",
    paper="Ma et al. 2021, arXiv:2106.01540",
    equation="Pack and unpack attention; causal attention",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n l d",
    memory="n l + n d",
    cost=cost,
    streams=lambda *_: (Stream("context", of="keys", starts_as="key"),),  # C, whose rows are the keys of P
    implementations=("eager", "tiled", "sdpa"),
    variants={"two": {"packed_length": 2}},
)
class Luna(Attention[Options]):
    """Two nested attentions: a few learned queries pack the tokens, then all queries attend to the packed tokens.

    Paper: Ma et al. 2021: pack and unpack attention; causal attention, with ω in place of the first softmax.
    Symbols: P → packed_query (includes the projection of P); l → packed_length; ω → elu + 1, as in the published code; C, projected
        to keys of the pack attention → the stream ``context`` (a stream is a further projection of the tokens); A → the pack
        weights, softmax(P Cᵀ / √d) or, if causal, ω(P Cᵀ / √d).
    Differs: P is a parameter of each layer, the same for all inputs, and no layer passes packed tokens on. In the paper the model
        has one P, and LayerNorm(P + packed tokens) is P of the next layer. Keys and values are projected before they are packed.
        This is equivalent, because packing is linear. However, each head packs its own keys and values with its own weights. P
        starts from N(0, 1). In the causal form, sums over the past are divided by t, the number of real tokens so far. Dropout is
        not applied to A.
    Nature: The causal form holds the past in l running means, and no softmax over tokens sharpens their weights. Recall of 4 to 16
        key-value pairs is learned slowly (accuracy of 14 % after 450 steps with l = 16; a guess among the values gives 10 %). The
        bidirectional form learns this task.
    """

    saturates = (("packed_length", "is at least the number of keys ({n}), so nothing is compressed"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.packed_query = nn.Parameter(torch.randn(geometry.heads, options.packed_length, geometry.head_dim))

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return a reason if the causal form is requested with dropout, else None."""
        if geometry.causal and options.dropout > 0:
            return (
                "luna.dropout must be 0 if causal, because the backward pass of the causal form computes the weights again and "
                "would drop other weights. Use the layer's output_dropout"
            )
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, context: Tensor) -> Queries:
        """Return the outputs by packing and unpacking. The causal form masks two n × n products to the past: queries with keys, and
        unpack weights with pack weights. Sums over the past are divided by the number of real tokens so far.
        """
        scale, valid = query.shape[-1] ** -0.5, None if key_valid is None else key_valid[:, None, None]
        scores = self.packed_query @ context.mT * scale
        if not self.geometry.causal:
            shares = softmax_over_valid(scores, valid)
            return (query @ (shares @ key).mT * scale).softmax(dim=-1) @ (shares @ value)
        shares = F.elu(scores) + 1 if valid is None else (F.elu(scores) + 1) * valid
        t = (torch.ones_like(query[:, :1, :, 0]) if valid is None else valid[:, :, 0].to(query.dtype)).cumsum(dim=-1).clamp(min=1)
        weights = ((query @ key.mT * scale).tril() @ shares.mT / t[..., None]).softmax(dim=-1)
        return (weights @ shares).tril() @ value / t[..., None]

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, context: Keys) -> Queries:
        """Return the outputs softmax(Q (A K)ᵀ / √d) A V, where A are the weights with which the packed queries read the tokens. The
        causal form computes weights within a chunk directly, and reads earlier chunks from running sums.
        """
        if self.geometry.causal:
            return self._attend_past(query, key, value, key_valid, context, tiled=False)
        packed_key, packed_value = self._pack(key, value, key_valid, context)
        weights = (query @ (packed_key * query.shape[-1] ** -0.5).mT).softmax(dim=-1)
        return F.dropout(weights, self.options.dropout, self.training).to(value.dtype) @ packed_value

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, context: Tensor) -> Queries:
        """Return the outputs. The causal form is computed in blocks that fit the caches of a CPU."""
        if self.geometry.causal:
            return self._attend_past(query, key, value, key_valid, context, tiled=True)
        return self.attend(query, key, value, key_valid, context)

    def attend_sdpa(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, context: Tensor) -> Queries:
        """Return the outputs, with attention to the packed tokens computed by PyTorch's fused kernels.

        The causal form is computed without these kernels: in tiles on a CPU, and as in the implementation ``eager`` on other
        devices.
        """
        if self.geometry.causal:
            return self._attend_past(query, key, value, key_valid, context, tiled=query.device.type in ("cpu", "meta"))
        return fused_attention(query, *self._pack(key, value, key_valid, context), dropout=self.dropout_rate)

    def _pack(self, key: Tensor, value: Tensor, key_valid: Tensor | None, context: Tensor) -> tuple[Tensor, Tensor]:
        """Compute A K and A V with A = softmax(P Cᵀ / √d)."""
        scores = (self.packed_query.to(context.dtype) * context.shape[-1] ** -0.5) @ context.mT
        shares = softmax_over_valid(scores, None if key_valid is None else key_valid[:, None, None]).to(value.dtype)
        return shares @ key, shares @ value

    def _attend_past(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, context: Keys, *, tiled: bool) -> Queries:
        """Compute A = elu(P Cᵀ / √d) + 1, then both products. Long sums need float32 or more, without autocast."""
        (_, _, n, d), dtype = query.shape, torch.promote_types(value.dtype, torch.float32)
        with without_autocast(query.device):
            shares = F.elu(context.to(dtype) @ (self.packed_query.to(dtype) * d**-0.5).mT) + 1
            if key_valid is None:
                count = torch.arange(1, n + 1, device=query.device)[None, None, :, None]
            else:
                shares = shares.masked_fill(~key_valid[:, None, :, None], 0)
                count = key_valid.cumsum(dim=1)[:, None, :, None]
            rows = query.to(dtype), key.to(dtype), value.to(dtype), shares, count
            start = shares.new_zeros(*shares.shape[:2], shares.shape[3], 2 * d)
            out, _ = in_blocks(partial(_past, running=True), start, *rows) if tiled else _past(rows, start)
            return out.to(value.dtype)


def _past(rows: Sequence[Tensor], state: Tensor, *, running: bool = False) -> tuple[Tensor, Tensor]:
    """Compute yₜ from the sums Σ a [k v]ᵀ over earlier chunks and from its own chunk. Also return the sums after all rows.

    If ``running`` is true, sums are added chunk by chunk, which is faster for few chunks. A cumulative sum launches the same number
    of kernels for any number of chunks.
    """
    n = rows[0].shape[2]
    query, key, value, shares, count = (into_chunks(x, filled(n)[0]) for x in rows)
    query, share = query * query.shape[-1] ** -0.5, count.clamp(min=1).to(query.dtype).reciprocal()
    parts = shares.mT @ torch.cat([key, value], dim=-1)
    if running:
        sums = torch.stack(list(accumulate(parts.unbind(2), initial=state)), dim=2)
    else:
        sums = torch.cat([state[:, :, None], parts], dim=2).cumsum(dim=2)
    keys, values = sums[:, :, :-1].chunk(2, dim=-1)
    scores = (query @ key.mT).tril() @ shares + query @ keys.mT
    weights = (scores * share).softmax(dim=-1)
    out = ((weights @ shares.mT).tril() @ value + weights @ values) * share
    return out.flatten(2, 3)[:, :, :n], sums[:, :, -1]

"""Softmax attention, the baseline: Y = softmax(Q Kᵀ / √d) V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, SinkOptions
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid, with_sink_token
from attn_zoo.kernels.derivatives import refuse_graph_of_gradients, refuse_transforms
from attn_zoo.kernels.sdpa import fused_attention
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options(SinkOptions, DropoutOptions):
    """Options of softmax attention."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores Q Kᵀ and of the weighted sums of values. Causal attention costs as much, because all weights
    are computed. The state is the KV cache of keys and values.
    """
    n, m, inner = geometry.queries, geometry.keys, geometry.inner_dim
    flops = 4 * n * m * inner
    state = FLOAT * m * geometry.cached_width() if geometry.causal else None
    return Cost(flops, geometry.heads * options.sinks, backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "softmax",
    title="Softmax (vanilla)",
    paper="Vaswani et al. 2017, arXiv:1706.03762",
    equation="Eq. 1",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True, exact=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
    implementations=("eager", "sdpa", "xformers"),
    variants={"sinks": {"sinks": True}},
)
class Softmax(Attention[Options]):
    """Softmax attention Y = softmax(Q Kᵀ / √d) V.

    Paper: Vaswani et al. 2017, Eq. 1; for sinks (learned scores in the softmax that belong to no key) OpenAI 2025,
        arXiv:2508.10925 (gpt-oss).
    Symbols: d_k → head_dim.
    Differs: a query that sees no valid key gets zeros, because the equation is undefined for it.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.sinks = nn.Parameter(torch.zeros(geometry.heads)) if options.sinks else None

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return why the implementation cannot run, or None if it can. xFormers does not support sinks, which are learned scores in
        the softmax that belong to no key.
        """
        if implementation == "xformers" and options.sinks:  # its kernels need 8 k channels per head; a sink adds one
            return f"{cls.card.name}.sinks needs implementation=eager or sdpa: xformers has no sinks"
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 1 of Vaswani et al. 2017."""
        scores = query @ key.mT / query.shape[-1] ** 0.5
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        return softmax_over_valid(scores, allowed, self.sinks) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, with the whole queries × keys matrix of weights in memory."""
        scores = query @ (key * query.shape[-1] ** -0.5).mT
        weights = softmax_over_valid(scores, allowed_pairs(query, key, key_valid, causal=self.geometry.causal), self.sinks)
        weights = F.dropout(weights, self.options.dropout, self.training)
        return weights @ value

    def attend_sdpa(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of PyTorch's ``scaled_dot_product_attention``, which chooses a kernel by device, dtype and mask. A
        sink (a learned score in the softmax that belongs to no key) becomes one more token, with value zero.
        """
        if self.sinks is not None:
            query, key, value, key_valid = with_sink_token(query, key, value, key_valid, self.sinks)
        allowed = None if key_valid is None else allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        causal = self.geometry.causal and allowed is None
        out = fused_attention(query, key, value, allowed, dropout=self.dropout_rate, causal=causal)
        if self.sinks is not None:
            return out[:, :, 1:, :-1]
        # Back ends differ on rows that see no key (zeros, NaN or a mean), so the contract's zeros are set here.
        return out if allowed is None else out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)

    def attend_xformers(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of xFormers' memory-efficient kernels, which need CUDA."""
        # not at the top, because the import warns on devices other than CUDA
        from xformers.ops import LowerTriangularMask, memory_efficient_attention

        allowed = None if key_valid is None else allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        bias: object | None = LowerTriangularMask() if self.geometry.causal else None
        if allowed is not None:
            low = torch.finfo(query.dtype).min  # finite: rows without a key are set to zero below, not NaN
            bias = torch.zeros_like(allowed, dtype=query.dtype).masked_fill(~allowed, low)
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], -1).contiguous()
        refuse_transforms(query, key, value)
        out = memory_efficient_attention(query.movedim(2, 1), key.movedim(2, 1), value.movedim(2, 1), bias, self.dropout_rate)
        out = refuse_graph_of_gradients(out).movedim(1, 2)
        return out if allowed is None else out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)

"""Kimi delta attention: Sₜ = (I − βₜ kₜ kₜᵀ) Diag(aₜ) Sₜ₋₁ + βₜ kₜ vₜᵀ, yₜ = Sₜᵀ qₜ / √d, with one decay per channel of the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._chunked import ChunkedMemory, Updates, recurrence_flops
from attn_zoo.attention.linear._forget_gate import ForgetGate
from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.attention.linear.delta_rule import per_head, unit_length
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.kernels import fla
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of Kimi delta attention."""

    normalise: bool = True
    """Divide each output by its root mean square over the head."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """FLOPs of the chunked recurrence; its parameters are one A per head and one b per channel. State: S."""
    forward, backward = recurrence_flops(geometry, per_channel=True, delta=True)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, geometry.heads + geometry.inner_dim, backward_flops=backward, state_bytes=state)


@register_attention(
    "kda",
    title="Kimi delta attention (KDA)",
    paper="Kimi Team 2025, arXiv:2510.26692",
    equation="the gated delta rule with a decay per channel",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "fla"),
    streams=lambda *_: (Stream("decay", of="keys", starts_as="key"), Stream("strength", of="keys", starts_as="key")),
    variants={"raw": {"normalise": False}},
)
class KimiDelta(ChunkedMemory[Options]):
    """The gated delta rule with a decay per channel of the key: each feature of the memory forgets at its own rate.

    Paper: Kimi Team 2025 (Kimi Linear).
    Symbols: α → exp of ForgetGate, β → the stream strength, S → MemoryState.summed.
    Differs: the projection of the decay has full rank (rank head_dim in the paper). SiLU and unit length are applied here, to
        queries and keys; the paper's short convolution and output gate belong to the layer. The projection of the strength is
        the sum over the channels of a stream, divided by √d. A decay is at least 2e-9 per token. The norm has no scale of its
        own. Without causality, which the paper does not treat, the sequence is read forwards and backwards and the outputs are
        added. Padded tokens neither write to the memory nor decay it.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads, geometry.head_dim)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Queries:
        """Apply the rule token by token; in both directions if not causal."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        alpha, beta = self.forget(decay, key_valid).exp(), per_head(strength).sigmoid()
        identity = torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = (identity - b * k @ k.mT) @ (a * S) + b * k @ v.mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, alpha, beta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Updates:
        """Write β k (v − what the decayed memory holds at k)."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        return Updates(query, key, value, self.forget(decay, key_valid), per_head(strength).sigmoid())

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Apply the rule by flash-linear-attention's kernel."""
        query, key, value, log_decay, beta = self.updates(*inputs, **streams)
        assert beta is not None
        return fla.answers("kda", query, key, value, log_decay, beta[..., 0], scale=1.0), state

"""Gated delta rule: Sₜ = aₜ Sₜ₋₁ + βₜ kₜ (vₜ − aₜ Sₜ₋₁ᵀ kₜ)ᵀ, yₜ = Sₜᵀ qₜ / √d, with one decay aₜ and one strength βₜ per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Options of the gated delta rule."""

    normalise: bool = True
    """Divide each output by its root mean square over the head."""
    negative_eigenvalues: bool = False
    """β in (0, 2) in place of (0, 1): I - β k kᵀ can then negate the value that the state stores at a key."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """FLOPs of the chunked recurrence; its parameters are A and b, one of each per head. State: S."""
    forward, backward = recurrence_flops(geometry, delta=True)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, 2 * geometry.heads, backward_flops=backward, state_bytes=state)


@register_attention(
    "gated_delta_rule",
    title="Gated delta rule (Gated DeltaNet)",
    paper="Yang et al. 2024, arXiv:2412.06464",
    equation="Eq. 10, the gated WY form by chunks",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "fla"),
    streams=lambda *_: (Stream("decay", of="keys", starts_as="key"), Stream("strength", of="keys", starts_as="key")),
    variants={"raw": {"normalise": False}, "negative": {"negative_eigenvalues": True}},
)
class GatedDeltaRule(ChunkedMemory[Options]):
    """A memory of fixed size that decays, and in which a token replaces the value stored at its key.

    Paper: Yang et al. 2024, Eq. 10; the decay is Mamba-2's (Dao and Gu 2024, arXiv:2405.21060).
    Symbols: α → exp of ForgetGate, β → the stream strength, S → MemoryState.summed (transposed).
    Differs: the decay acts before the correction, as in fla and transformers, and a token's own write is not decayed. SiLU and
        unit length are applied here, to queries and keys; the paper's short convolution and output gate belong to the layer.
        The projections of decay and strength are sums over the channels of a stream, divided by √d. A decay is at least 2e-9
        per token. The norm has no scale of its own. Without causality, which the paper does not treat, the sequence is read
        forwards and backwards and the outputs are added. Padded tokens neither write to the memory nor decay it.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Queries:
        """Apply the rule token by token; in both directions if not causal."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        alpha, beta = self.forget(per_head(decay), key_valid).exp(), self._beta(strength)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S
            S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, alpha, beta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Updates:
        """Write β k (v − what the decayed memory holds at k)."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        return Updates(query, key, value, self.forget(per_head(decay), key_valid), self._beta(strength))

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Apply the rule by flash-linear-attention's kernel."""
        query, key, value, log_decay, beta = self.updates(*inputs, **streams)
        assert beta is not None
        return fla.answers("gated_delta_rule", query, key, value, log_decay[..., 0], beta[..., 0], scale=1.0), state

    def _beta(self, strength: Keys) -> Tensor:
        return (2.0 if self.options.negative_eigenvalues else 1.0) * per_head(strength).sigmoid()

"""Gated delta rule: Sₜ = aₜ Sₜ₋₁ + βₜ kₜ (vₜ − aₜ Sₜ₋₁ᵀ kₜ)ᵀ and yₜ = Sₜᵀ qₜ / √d, with one decay aₜ and one strength
βₜ per head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._chunked import ChunkedMemory, Updates, recurrence_flops
from attn_zoo.attention.linear._forget_gate import ForgetGate
from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.attention.linear.delta_rule import unit_length
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.kernels import fla
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, PerHead, Queries


@dataclass
class Options:
    """Options of the gated delta rule."""

    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""
    negative_eigenvalues: bool = False
    """If true, β is between 0 and 2 instead of 0 and 1. The factor I - β k kᵀ can then change the sign of the value stored at a
    key.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk. The parameters are A and b, two numbers per head, which set the
    decay. The state is the matrix S of each head.
    """
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
    streams=lambda *_: tuple(Stream(name, of="keys", starts_as="key", per_head=True) for name in ("decay", "strength")),
    variants={"raw": {"normalise": False}, "negative": {"negative_eigenvalues": True}},
)
class GatedDeltaRule(ChunkedMemory[Options]):
    """Memory of fixed size that decays at each token. The token then replaces the value stored at the token's key.

    Paper: Yang et al. 2024, Eq. 10. The decay is Mamba-2's (Dao and Gu 2024, arXiv:2405.21060).
    Symbols: α → exp of the log decays from ForgetGate; β → σ of the stream ``strength``, a further projection of the tokens; S
        → MemoryState.summed (transposed).
    Differs: this class applies SiLU to queries and keys and scales them to unit norm. The paper also applies SiLU to values, which
        are twice as wide as keys there, and as wide as keys here. The short convolution and the output gate belong to the
        layer, whose gate is a sigmoid (SiLU in the paper). The layer's weights of a stream have one column per channel and are
        summed over a head; they start as a copy of those of keys. A and b of the decay start at fixed values, not at random
        ones (see ``ForgetGate``). A decay is at least 2e-9 per token. The RMSNorm of the outputs has no learned scale. The
        paper's form is causal; the bidirectional form adds the outputs of both reading directions. Padded tokens leave the
        memory unchanged.
    """

    fla_widest = fla.WIDEST

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: PerHead, strength: PerHead) -> Queries:
        """Return the outputs: apply the gated delta rule token by token."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        alpha, beta = self.forget(decay, key_valid).exp(), self._beta(strength)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S
            S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, alpha, beta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: PerHead, strength: PerHead) -> Updates:
        """Return one update of the memory S per token: S decays, and then β k (v − Sᵀ k)ᵀ is added."""
        # In a layer, the heads interleave in memory, so every product with these tensors would copy them.
        query, key, value = (x.contiguous() for x in (query, key, value))
        query, key = unit_length(F.silu(query), query.shape[-1] ** -0.5), unit_length(F.silu(key))
        return Updates(query, key, value, self.forget(decay, key_valid), self._beta(strength))

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros. ``state`` is ignored and
        returned unchanged.
        """
        query, key, value, log_decay, beta, _ = self.updates(*inputs, **streams)
        assert beta is not None
        return fla.answers("gated_delta_rule", query, key, value, log_decay[..., 0], beta[..., 0], scale=1.0), state

    def _beta(self, strength: PerHead) -> PerHead:
        return (2.0 if self.options.negative_eigenvalues else 1.0) * strength.sigmoid()

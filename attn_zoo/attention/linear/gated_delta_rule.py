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
from attn_zoo.attention.linear.delta_rule import per_head, unit_length
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.kernels import fla
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of the gated delta rule."""

    normalise: bool = True
    """If true, the output vector of each head is divided by its root mean square."""
    negative_eigenvalues: bool = False
    """If true, β is in (0, 2) instead of (0, 1). The factor I - β k kᵀ can then negate the value that the state stores at a key."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost. FLOPs are those of the recurrence, computed chunk by chunk. The parameters are two numbers per head, A and
    b, which set the decay. The state is the matrix S of each head.
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
    streams=lambda *_: (Stream("decay", of="keys", starts_as="key"), Stream("strength", of="keys", starts_as="key")),
    variants={"raw": {"normalise": False}, "negative": {"negative_eigenvalues": True}},
)
class GatedDeltaRule(ChunkedMemory[Options]):
    """Memory of fixed size that decays, and in which a token replaces the value stored at its key.

    Paper: Yang et al. 2024, Eq. 10; the decay is Mamba-2's (Dao and Gu 2024, arXiv:2405.21060).
    Symbols: α → exp of the log decays from the module ForgetGate, β → computed from the stream ``strength`` (a stream is a
        further projection of the tokens), S → MemoryState.summed (transposed).
    Differs: the decay acts before the update, as in fla and transformers, so what a token writes is not yet decayed. SiLU and
        normalisation to unit length are applied here, to queries and keys. The paper's short convolution and output gate belong to
        the layer. The decay and β are each computed from one number per head: the sum of their stream over the channels, divided by
        √d. A decay is at least 2e-9 per token. Outputs are divided by their root mean square over the head, without a learned
        scale. The paper's form is causal. If attention is bidirectional, the sequence is read forwards and backwards and the
        outputs are added. Padded tokens neither write to the memory nor decay it.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Queries:
        """Return the outputs: apply the gated delta rule token by token. If not causal, read in both directions and add the
        outputs.
        """
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        alpha, beta = self.forget(per_head(decay), key_valid).exp(), self._beta(strength)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S
            S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, alpha, beta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Updates:
        """Return the update of the memory S that each token makes: it decays S, and then adds β k (v − Sᵀ k)ᵀ."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        return Updates(query, key, value, self.forget(per_head(decay), key_valid), self._beta(strength))

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, and ``state`` as it was given. The kernel starts from a memory
        of zeros, and neither reads nor updates ``state``.
        """
        query, key, value, log_decay, beta = self.updates(*inputs, **streams)
        assert beta is not None
        return fla.answers("gated_delta_rule", query, key, value, log_decay[..., 0], beta[..., 0], scale=1.0), state

    def _beta(self, strength: Keys) -> Tensor:
        return (2.0 if self.options.negative_eigenvalues else 1.0) * per_head(strength).sigmoid()

"""Kimi delta attention: Sₜ = (I − βₜ kₜ kₜᵀ) Diag(aₜ) Sₜ₋₁ + βₜ kₜ vₜᵀ and yₜ = Sₜᵀ qₜ / √d, with one strength βₜ per head, and one
decay aₜ per channel of the key.
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
    """Options of Kimi delta attention."""

    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk. The parameters set the decay: A, one number per head, and b, one
    number per channel. The state is the matrix S of each head.
    """
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
    streams=lambda *_: (Stream("decay", of="keys", starts_as="key"), Stream("strength", of="keys", starts_as="key", per_head=True)),
    variants={"raw": {"normalise": False}},
)
class KimiDelta(ChunkedMemory[Options]):
    """Gated delta rule with one decay per channel of the key.

    Paper: Kimi Team 2025 (Kimi Linear).
    Symbols: α → exp of the log decays from ForgetGate; β → σ of the stream ``strength``, a further projection of the tokens; S
        → MemoryState.summed.
    Differs: the projection of the decay has full rank (rank head_dim in the paper). The layer's weights of ``strength`` have
        one column per channel and are summed over a head. The weights of both streams start as a copy of those of keys, and A
        and b of the decay start as in ``gated_delta_rule``. This class applies SiLU to queries and keys and scales them to unit
        norm. The paper also applies SiLU to values. The paper's short convolution and output gate belong to the layer; there
        the projection of the gate has full rank (rank head_dim in the paper). A decay is at least 2e-9 per token. The RMSNorm
        of the outputs has no learned scale. The paper's form is causal; the bidirectional form adds the outputs of both reading
        directions. Padded tokens leave the memory unchanged.
    """

    fla_widest = fla.WIDEST

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads, geometry.head_dim)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: PerHead) -> Queries:
        """Return the outputs: each token replaces the memory S by (I − β k kᵀ) Diag(α) S + β k vᵀ, and then its query reads S."""
        query, key = unit_length(F.silu(query)) * query.shape[-1] ** -0.5, unit_length(F.silu(key))
        alpha, beta = self.forget(decay, key_valid).exp(), strength.sigmoid()

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S
            S = S - b * k @ (k.mT @ S) + b * k @ v.mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, alpha, beta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: PerHead) -> Updates:
        """Return one update of the memory S per token: S decays, and then β k (v − Sᵀ k)ᵀ is added."""
        # In a layer, the heads interleave in memory, so every product with these tensors would copy them.
        query, key, value, decay = (x.contiguous() for x in (query, key, value, decay))
        query, key = unit_length(F.silu(query), query.shape[-1] ** -0.5), unit_length(F.silu(key))
        return Updates(query, key, value, self.forget(decay, key_valid), strength.sigmoid())

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros. ``state`` is ignored and
        returned unchanged.
        """
        query, key, value, log_decay, beta, _ = self.updates(*inputs, **streams)
        assert beta is not None
        return fla.answers("kda", query, key, value, log_decay, beta[..., 0], scale=1.0), state

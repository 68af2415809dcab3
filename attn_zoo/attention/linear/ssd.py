"""State-space duality (Mamba-2): Sₜ = exp(−A Δₜ) Sₜ₋₁ + Δₜ Bₜ xₜᵀ and yₜ = Sₜᵀ Cₜ + D xₜ, with Δ = softplus(δ + b) per head. C, B
and x are query, key and value after SiLU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.attention.linear._chunked import ChunkedMemory, Updates, recurrence_flops
from attn_zoo.attention.linear._forget_gate import ForgetGate
from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.kernels import fla
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, PerHead, Queries


@dataclass
class Options:
    """Options of state-space duality."""

    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk. The parameters are three numbers per head: A and b, which set the
    decay, and D, which multiplies the input. The state is the matrix S of each head.
    """
    forward, backward = recurrence_flops(geometry)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, 3 * geometry.heads, backward_flops=backward, state_bytes=state)


@register_attention(
    "ssd",
    title="State-space duality (Mamba-2)",
    paper="Dao and Gu 2024, arXiv:2405.21060",
    equation="the scalar-decay state-space model, in its attention form by chunks",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "fla"),
    streams=lambda *_: (Stream("step", of="keys", starts_as="key", per_head=True),),  # δ
    variants={"raw": {"normalise": False}},
)
class StateSpaceDuality(ChunkedMemory[Options]):
    """Memory of fixed size with one decay per head. The step size Δ of a token sets the decay, and also scales what the token
    writes.

    Paper: Dao and Gu 2024, the structured state-space model with a scalar decay, and its form by chunks.
    Symbols: C, B, x → SiLU of query, key and value; Δ → softplus(δ + b), computed by ForgetGate.step, where δ is the stream
        ``step``, a further projection of the tokens; D → skip; S → MemoryState.summed.
    Differs: every head has its own B and C (in the paper all heads of a group share them). They are as wide as x; in the paper's
        models x has 64 channels, and B and C have 128. The layer's weights of ``step`` have one column per channel and are
        summed over a head; they start as a copy of those of keys. A and b start at fixed values, not at random ones (see
        ``ForgetGate``). This class applies SiLU; the short convolution and the output gate belong to the layer. The RMSNorm of
        the outputs runs over each head, has no learned scale, and comes before the layer's sigmoid gate. In the published code
        it runs over all heads of a group, and comes after a SiLU gate. A decay is at least 2e-9 per token. The paper's form is
        causal; the bidirectional form adds the outputs of both reading directions, and so adds D x twice. Padded tokens leave
        the memory unchanged.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads)
        self.skip = nn.Parameter(torch.ones(geometry.heads))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, step: PerHead) -> Queries:
        """Return the outputs: each token updates the memory S, and then the token's query C reads S."""
        decay, delta = self.forget(step, key_valid).exp(), self.forget.step(step)

        def update(S: Tensor, C: Tensor, B: Tensor, x: Tensor, a: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S + dt * B @ x.mT
            return S, S.mT @ C + self.skip[:, None, None] * x

        return self.scan(update, F.silu(query), F.silu(key), F.silu(value), decay, delta)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, step: PerHead) -> Updates:
        """Return one update of the memory S per token: S decays, and then Δ B xᵀ is added."""
        written = self.forget.step(step) * F.silu(key)
        return Updates(F.silu(query), written, F.silu(value), self.forget(step, key_valid))

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of the next tokens, which include the scaled inputs D x, and the new state."""
        out, after = super().read(state, *inputs, **streams)
        return out + self._skipped(*inputs), after

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros, plus the scaled inputs D x.
        ``state`` is ignored and returned unchanged.
        """
        updates = self.updates(*inputs, **streams)
        out = fla.answers("simple_gla", *updates[:3], updates.log_decay[..., 0], scale=1.0)
        return out + self._skipped(*inputs), state

    def _skipped(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        return self.skip[:, None, None] * F.silu(value)

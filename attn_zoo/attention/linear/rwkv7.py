"""RWKV-7: Sₜ = (Diag(wₜ) − (aₜ ∘ κ̂ₜ) κ̂ₜᵀ) Sₜ₋₁ + k̃ₜ vₜᵀ and yₜ = norm(Sₜᵀ rₜ) + (rₜᵀ (ρ ∘ k̃ₜ)) vₜ. The decay w and the strength
a have one number per channel. κ̂ is k ∘ ξ scaled to unit norm, and k̃ = k ∘ (1 + α ∘ (a − 1)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.attention.linear._chunked import ChunkedMemory, Updates, recurrence, recurrence_flops
from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.attention.linear.delta_rule import unit_length
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

FASTEST = math.exp(-0.5)
"""Largest −log w: no decay is below exp(−0.61), which is 0.55."""
OFFSETS = (-6.5, -1.5)
"""Initial offset of the logit of the decay at the first channel and at the last one: there −log w is about 0.001 and 0.11."""


@dataclass
class Options:
    """Options of RWKV-7."""

    normalise: bool = True
    """If true, what a head reads from its memory is divided by its root mean square."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk, with two updates per token. The parameters are four numbers per
    channel: the offset of the decay, ξ, α and ρ. The state is the matrix S of each head.
    """
    forward, backward = recurrence_flops(geometry, per_channel=True, delta=True, each=2)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, 4 * geometry.inner_dim, backward_flops=backward, state_bytes=state)


@register_attention(
    "rwkv7",
    title="RWKV-7 (Goose)",
    paper="Peng et al. 2025, arXiv:2503.14456",
    equation="the generalised delta rule with a decay and a strength per channel",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    streams=lambda *_: (Stream("decay", of="keys", starts_as="key"), Stream("strength", of="keys", starts_as="key")),
    variants={"raw": {"normalise": False}},
)
class RWKV7(ChunkedMemory[Options]):
    """Delta rule with one decay and one strength per channel, and a key for removal apart from the key that is written.

    Paper: Peng et al. 2025 (RWKV-7), the equations of its time mixing.
    Symbols: r → query; w → exp(−e^(−½) σ(x + b)), where x is the stream ``decay``, a further projection of the tokens, and b is
        ``offset``; a → σ of the stream ``strength``; ξ → removal; α → replacement; ρ → bonus; wkv → MemoryState.summed
        (transposed).
    Differs: the projections of the decay and the strength have full rank (low rank in the paper), and start as copies of those of
        keys. The logits of the strength have no offset. The paper mixes each token with the token before it, and its values with
        those of the first layer; both are left out. The layer's short convolution is an option. The output gate belongs to the
        layer. A head's reading is divided by its root mean square, without a learned scale (LayerNorm in the paper). The offsets b
        are evenly spaced over the channels of all heads (in the authors' code their spacing depends on the layer). ξ and α start
        at 1, and ρ starts at 0. The paper's form is causal; the bidirectional form adds the outputs of both reading directions,
        and so adds the term with ρ twice. Padded tokens leave the memory unchanged.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        channels = geometry.inner_dim  # flat, because optimisers decay matrices only
        self.offset = nn.Parameter(torch.linspace(*OFFSETS, channels))
        self.removal, self.replacement = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.ones(channels))
        self.bonus = nn.Parameter(torch.zeros(channels))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Queries:
        """Return the outputs: each token decays the memory S, removes what S held at κ̂ before, and adds k̃ vᵀ. Then r reads S."""
        logs, a, removed, written = self._prepared(key, key_valid, decay, strength)
        rho, normalised = self._per_head(self.bonus).mT, super().finish

        def update(S: Tensor, r: Tensor, v: Tensor, w: Tensor, a: Tensor, kappa: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            S = w * S - (a * kappa) @ (kappa.mT @ S) + k @ v.mT
            return S, normalised((S.mT @ r).mT).mT + r.mT @ (rho * k) * v

        return self.scan(update, query, value, logs.exp(), a, removed, written)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> Updates:
        """Return two updates of the memory S per token. The first decays S and removes what S held at κ̂ before the decay, which is
        what S holds at κ̂ / w after it. The second adds k̃ vᵀ without correction, because S is read at zero.
        """
        logs, a, removed, written = self._prepared(key, key_valid, decay, strength)
        zero = torch.zeros_like(value)
        pairs = (a * removed, written), (zero, value), (logs, zero), (removed * (-logs).exp(), zero)
        keys, values, decays, probes = (torch.stack(pair, dim=3).flatten(2, 3) for pair in pairs)
        return Updates(query, keys, values, decays, torch.ones_like(keys[..., :1]), probes)

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of the next tokens, which include the term with ρ, and the new state."""
        updates = self.updates(*inputs, **streams)
        out, summed = recurrence(updates, state.summed)
        written, value = (x[:, :, 1::2] for x in (updates.key, updates.value))
        own = (updates.query * self._per_head(self.bonus) * written).sum(dim=-1, keepdim=True) * value
        return super().finish(out) + own, state.after(summed, out.shape[2])

    def finish(self, out: Queries) -> Queries:
        """Return the outputs unchanged: ``read`` divides what it reads by its root mean square, before it adds the term with ρ."""
        return out

    def _prepared(self, key: Keys, key_valid: KeyValid, decay: Keys, strength: Keys) -> tuple[Keys, Keys, Keys, Keys]:
        """Return log w, which is 0 at padded tokens, a, κ̂ and k̃."""
        logs = -FASTEST * (decay + self._per_head(self.offset)).sigmoid()
        logs = logs if key_valid is None else logs.masked_fill(~key_valid[:, None, :, None], 0)
        a = strength.sigmoid()
        return logs, a, unit_length(key * self._per_head(self.removal)), key * (1 + self._per_head(self.replacement) * (a - 1))

    def _per_head(self, parameter: Tensor) -> Tensor:
        """Return the numbers of each head: (heads, 1, head_dim)."""
        return parameter.view(self.geometry.heads, 1, -1)

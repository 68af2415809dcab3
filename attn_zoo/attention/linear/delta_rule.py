"""Delta rule: Sₜ = Sₜ₋₁ + βₜ kₜ (vₜ − Sₜ₋₁ᵀ kₜ)ᵀ, yₜ = Sₜᵀ qₜ: the value stored at a key moves towards the new value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._recurrence import Answer, NormalisedMemory
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream, added_later
from attn_zoo.kernels import fla
from attn_zoo.kernels.cpu._chunks import filled, into_chunks
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

CHUNK = 32
"""Number of positions in a chunk; one triangular system gives the corrections of a chunk."""
WIDEST = 256
"""Widest head that flash-linear-attention's kernel takes."""
LENGTH_FLOOR = 1e-6
"""Epsilon added to the squared length of a vector before its normalisation."""


@dataclass
class Options:
    """Options of the delta rule."""

    normalise: bool = True
    """Divide each output by its root mean square over the head."""
    negative_eigenvalues: bool = added_later(False)
    """β in (0, 2) in place of (0, 1): I - β k kᵀ can then negate the value that the state stores at a key, as parity needs."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """FLOPs of K Kᵀ, Q Kᵀ and its product within chunks, and of W S, Kᵀ U and Q S; twice as many without causality.

    The backward pass recomputes everything, and its triangular system has one more product. State: S.
    """
    d = geometry.head_dim
    chunk, n = filled(geometry.keys, CHUNK)
    ends = 1 if geometry.causal else 2
    flops = geometry.inner_dim * 6 * n * (chunk + d) * ends
    state = FLOAT * geometry.inner_dim * d if geometry.causal else None
    return Cost(flops, 0, backward_flops=3 * flops + geometry.inner_dim * 4 * n * chunk * ends, state_bytes=state)


@register_attention(
    "delta_rule",
    title="Delta rule (DeltaNet)",
    paper="Yang et al. 2024, arXiv:2406.06484",
    equation="Section 3, the WY form by chunks",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled", "fla"),
    streams=lambda *_: (Stream("strength", of="keys", starts_as="key"),),  # β, from the sum over a head's channels
    variants={"raw": {"normalise": False}, "negative": {"negative_eigenvalues": True}},
)
class DeltaRule(NormalisedMemory[Options]):
    """A memory of fixed size, in which a token replaces the value stored at its key instead of adding to it.

    Paper: Yang et al. 2024, Section 3 (the WY form by chunks, queries and keys); the rule is Schlag et al.'s, 2021.
        Grazzi et al. 2024, arXiv:2411.12537, Section 4, for β in (0, 2).
    Symbols: S → MemoryState.summed (transposed), β → the stream strength, W and U → w and u.
    Differs: β is σ(s / √d), where s is the sum of the stream over the channels of a head; s / √d equals one row of a
        projection like the paper's. Queries are not divided by √d, which the norm would undo. SiLU and unit length are
        applied here, to queries and keys, and the paper's short convolutions are left out. The norm has no
        scale of its own, which the output projection makes up for. Without causality, which the paper
        does not treat, the sequence is read forwards and backwards and the outputs are added. Padded tokens write nothing.
    """

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Refuse heads too wide for flash-linear-attention's kernel."""
        if implementation == "fla" and geometry.head_dim > WIDEST:
            return f"delta_rule:fla takes a head_dim of up to {WIDEST}; got {geometry.head_dim}; use implementation=eager"
        return super().refuses(implementation, geometry, options)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, strength: Keys) -> Queries:
        """Apply the rule token by token: Sₜ = Sₜ₋₁ + βₜ kₜ (vₜ − Sₜ₋₁ᵀ kₜ)ᵀ, yₜ = Sₜᵀ qₜ; in both directions if not causal."""
        queries, keys, beta = self._prepared(query, key, strength)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, queries, keys, value, beta)

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Apply the rule by flash-linear-attention's kernel, with β in float32."""
        query, key, value, strength = self.rows(*inputs, **streams)
        query, key, beta = self._prepared(query, key, strength)
        return fla.answers("delta_rule", query, key, value, beta[..., 0], scale=1.0), state

    def _prepared(self, query: Tensor, key: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "batch heads n 1"]]:
        """Queries and keys of unit length, and β."""
        query, key = (unit_length(F.silu(x)) for x in (query, key))
        most = 2.0 if self.options.negative_eigenvalues else 1.0
        return query, key, most * per_head(strength).sigmoid()

    def by_chunks(self, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of consecutive positions, and the state after them, from the state before them.

        With A = β K Kᵀ below the diagonal and (I + A) [U W] = β [V K], the corrections of a chunk are U - W S. Padded keys are
        zeros, which write nothing.
        """
        query, key, value, strength = rows
        n, prepared = query.shape[2], self._prepared(query, key, strength)
        query, key, beta, value = (into_chunks(x, min(CHUNK, n)) for x in (*prepared, value))
        among = (beta * key @ key.mT).tril(-1)
        both = torch.cat([beta * value, beta * key], dim=-1)
        solved = torch.linalg.solve_triangular(among, both, upper=False, unitriangular=True)
        before, corrections = [], []
        for u, w, keys in zip(*(x.unbind(2) for x in solved.chunk(2, dim=-1)), key.mT.unbind(2), strict=True):
            before.append(state)
            corrections.append(u - w @ state)
            state = state + keys @ corrections[-1]
        out = query @ torch.stack(before, dim=2) + (query @ key.mT).tril() @ torch.stack(corrections, dim=2)
        return out.flatten(2, 3)[:, :, :n], state


def unit_length(x: Keys) -> Keys:
    """Return vectors of length one: x / √(Σ x² + 1e-6)."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + LENGTH_FLOOR)


def per_head(stream: Keys) -> Float[Tensor, "batch heads keys 1"]:
    """Return one number per head: the sum of a stream over its channels, divided by √d, which equals one row of a projection."""
    return stream.sum(dim=-1, keepdim=True) * stream.shape[-1] ** -0.5

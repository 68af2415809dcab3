"""Delta rule: Sₜ = Sₜ₋₁ + βₜ kₜ (vₜ − Sₜ₋₁ᵀ kₜ)ᵀ and yₜ = Sₜᵀ qₜ. The value that the memory S stores at key kₜ moves towards vₜ."""

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
from attn_zoo.shapes import Keys, KeyValid, PerHead, Queries

CHUNK = 32
"""Number of positions in a chunk. The updates of a chunk are the solution of one triangular system of equations."""
LENGTH_FLOOR = 1e-6
"""Number added to the squared length of a vector, so that a vector of zeros can be divided by its length."""


@dataclass
class Options:
    """Options of the delta rule."""

    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""
    negative_eigenvalues: bool = added_later(False)
    """If true, β is between 0 and 2 instead of 0 and 1. The factor I - β k kᵀ can then change the sign of the value stored at a
    key, which is needed to compute a parity.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the matrix products among the tokens of each chunk, and between tokens and the state. If bidirectional,
    both directions are counted. The state is the matrix S of each head.

    The backward pass computes the forward pass again. It needs one more product, for the triangular system of equations.
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
    streams=lambda *_: (Stream("strength", of="keys", starts_as="key", per_head=True),),  # logit of β
    variants={"raw": {"normalise": False}, "negative": {"negative_eigenvalues": True}},
)
class DeltaRule(NormalisedMemory[Options]):
    """Memory of fixed size, in which a token replaces the value stored at the token's key. In linear attention, a token adds to
    that value instead.

    Paper: Yang et al. 2024, Section 3: the WY form by chunks, and how queries and keys are computed. The rule is by Schlag et al.
        2021. β between 0 and 2 is by Grazzi et al. 2024, arXiv:2411.12537, Section 4.
    Symbols: S → MemoryState.summed (transposed); β → σ of the stream ``strength``, a further projection of the tokens; W and U
        → w and u.
    Differs: the layer's weights of the stream have one column per channel, which it sums over a head, and start as a copy of those
        of keys. The RMSNorm of the outputs has no learned scale, because the output projection can learn it. Queries are not
        divided by √d, because the RMSNorm would undo it. This class applies SiLU to queries and keys and scales them to unit
        norm. The authors' code also applies SiLU to values. The paper's short convolutions are left out. The paper's form is
        causal; the bidirectional form adds the outputs of both reading directions. Padded tokens leave the memory unchanged.
    """

    fla_widest = fla.WIDEST

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, strength: PerHead) -> Queries:
        """Return the outputs: apply Sₜ = Sₜ₋₁ + βₜ kₜ (vₜ − Sₜ₋₁ᵀ kₜ)ᵀ and yₜ = Sₜᵀ qₜ token by token."""
        queries, keys, beta = self._prepared(query, key, strength)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, queries, keys, value, beta)

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros and gets the strengths β in
        float32. ``state`` is ignored and returned unchanged.
        """
        query, key, value, strength = self.rows(*inputs, **streams)
        query, key, beta = self._prepared(query, key, strength)
        return fla.answers("delta_rule", query, key, value, beta[..., 0], scale=1.0), state

    def _prepared(self, query: Tensor, key: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "batch heads n 1"]]:
        """Return queries and keys of unit length, and β."""
        query, key = (unit_length(F.silu(x)) for x in (query, key))
        most = 2.0 if self.options.negative_eigenvalues else 1.0
        return query, key, most * strength.sigmoid()

    def by_chunks(self, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of consecutive positions, and the memory S after them. ``state`` is S before them.

        In each chunk, A is the part of diag(β) K Kᵀ below the diagonal. U and W are the solution of (I + A) [U W] = diag(β) [V K].
        The updates of the chunk are then U - W S. Padded keys must be zero, so that they do not change S.
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


def unit_length(x: Keys, scale: float = 1.0) -> Keys:
    """Return the vectors divided by their Euclidean norms, times ``scale``: scale x / √(Σ x² + 1e-6)."""
    return x * (scale * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + LENGTH_FLOOR))

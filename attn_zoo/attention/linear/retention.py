"""Retention: Sₜ = γ Sₜ₋₁ + kₜ vₜᵀ and yₜ = Sₜᵀ qₜ / √d, with a fixed decay γ = 1 − 2^(−5−h) for head h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._chunked import ChunkedMemory, Updates, recurrence_flops
from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, MemoryState
from attn_zoo.kernels import fla
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


class Rates(Enum):
    """Fixed decays γ of the heads."""

    retention = "retention"
    """γ = 1 − 2^(−5−h) for head h, counted from 0. Queries, keys and values are used unchanged, and outputs are divided by √d
    (RetNet).
    """
    lightning = "lightning"
    """γ = exp(−2^(−8(h+1)/H) (1 − l/(L−1) + 10⁻⁵)) for head h of H in layer l of L, both counted from 0. SiLU is applied to
    queries, keys and values, and outputs are not divided by √d (MiniMax-01).
    """


@dataclass
class Options:
    """Options of retention."""

    rates: Rates = Rates.retention
    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""

    def __post_init__(self) -> None:
        self.rates = Rates(self.rates)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk. The state is the matrix S of each head."""
    forward, backward = recurrence_flops(geometry)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, 0, backward_flops=backward, state_bytes=state)


@register_attention(
    "retention",
    title="Retention (RetNet)",
    paper="Sun et al. 2023, arXiv:2307.08621",
    equation="Section 2, the recurrent form by chunks",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "fla"),
    variants={"lightning": {"rates": "lightning"}, "raw": {"normalise": False}},
)
class Retention(ChunkedMemory[Options]):
    """Memory of fixed size that decays at a fixed rate, which differs from head to head.

    Paper: Sun et al. 2023, Section 2 (recurrence, chunks, decays by head, normalisation of the outputs). With ``rates=lightning``,
        the decays are those of Lightning Attention in MiniMax-01, arXiv:2501.08313.
    Symbols: γ → decays; S → MemoryState.summed.
    Differs: queries and keys are not rotated by position. Values are as wide as keys (twice as wide in RetNet). The paper's swish
        gate is left out; the layer's ``output_gate`` uses a sigmoid. The RMSNorm of the outputs runs over each head and has no
        learned scale; that of MiniMax-01 runs over all heads together. With ``rates=lightning``, every layer has the decays of
        the first until ``join_layers`` is called on the model. In a hybrid, l and L count the layers with retention only;
        MiniMax-01 counts its layers with softmax attention, too. The paper's form is causal; the bidirectional form adds the
        outputs of both reading directions. Padded tokens leave the memory unchanged.
    """

    depth = 0.0  # l / (L − 1)

    def join(self, layer: int, stack: Sequence[Attention]) -> None:
        """Set the decays for the layer at index ``layer`` of ``stack``. With ``rates=retention``, the decays are the same in every
        layer.
        """
        self.depth = layer / max(1, len(stack) - 1)

    def log_decays(self, like: Tensor) -> Float[Tensor, " heads"]:
        """Return log γ of each head, with the dtype and device of the tensor ``like``."""
        head = torch.arange(self.geometry.heads, dtype=like.dtype, device=like.device)
        if self.options.rates is Rates.retention:
            return torch.log1p(-torch.exp2(-5 - head))
        return -torch.exp2(-8 * (head + 1) / self.geometry.heads) * (1 - self.depth + 1e-5)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: each token updates the memory S, and then the token's query reads S."""
        query, key, value = self._prepared(query, key, value)
        gamma = self.log_decays(value).exp()[:, None, None].expand(*value.shape[:3], 1)
        gamma = gamma if key_valid is None else gamma.masked_fill(~key_valid[:, None, :, None], 1)

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
            S = g * S + k @ v.mT
            return S, S.mT @ q

        return self.scan(update, query, key, value, gamma)

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Updates:
        """Return one update of the memory S per token: S decays, and then k vᵀ is added."""
        decays = self.log_decays(value)[:, None, None].expand(*value.shape[:3], 1)
        decays = decays if key_valid is None else decays.masked_fill(~key_valid[:, None, :, None], 0)
        return Updates(*self._prepared(query, key, value), decays)

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros. ``state`` is ignored and
        returned unchanged.
        """
        updates = self.updates(*inputs, **streams)
        return fla.answers("simple_gla", *updates[:3], updates.log_decay[..., 0], scale=1.0), state

    def _prepared(self, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Keys, Keys]:
        if self.options.rates is Rates.retention:
            return query * query.shape[-1] ** -0.5, key, value
        return F.silu(query), F.silu(key), F.silu(value)

"""Gated slot attention: yₜ = Ṽₜᵀ softmax(K̃ₜ qₜ), where [K̃ₜ Ṽₜ] = Diag(αₜ) [K̃ₜ₋₁ Ṽₜ₋₁] + (1 − αₜ) [kₜ vₜ]ᵀ holds a fixed number
of slots.

Each slot holds a moving average of keys and a moving average of values. αₜ is computed from token t, and sets how fast each slot
forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._recurrence import NormalisedMemory
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, Stream, above_zero, bounded
from attn_zoo.kernels.cpu._chunks import filled, into_chunks
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

CHUNK = 32
"""Number of positions in a chunk. Weights are computed within a chunk only, and earlier chunks are read from the slots."""
LOWEST = -120 / CHUNK
"""Smallest logarithm of a gate. The product of the gates of half a chunk is then at least exp(-60), so float32 can hold this
product and its inverse.
"""


@dataclass
class Options:
    """Options of gated slot attention."""

    temperature: float = bounded(8.0, above_zero("divides the logarithm of each gate"))
    """τ: the larger it is, the more slowly a slot forgets."""
    normalise: bool = True
    """If true, SiLU is applied to each head's output, and the result is divided by its root mean square."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of updating the slots after each chunk, of reading their keys and values, and of the weights and weighted
    sums within chunks. The state holds the keys K̃ and values Ṽ of all slots.
    """
    d, (chunk, n) = geometry.head_dim, filled(geometry.keys, CHUNK)
    directions = geometry.inner_dim * (1 if geometry.causal else 2)
    forward = 8 * n * (chunk + d)
    unused = 4 * n * d if n == chunk else 0  # no output depends on the update of a single chunk
    state = 2 * FLOAT * geometry.inner_dim * d if geometry.causal else None
    return Cost(directions * forward, 0, backward_flops=directions * 2 * (forward - unused), state_bytes=state)


@register_attention(
    "gated_slot",
    title="Gated slot attention (GSA)",
    paper="Zhang et al. 2024, arXiv:2409.07146",
    equation="the gated recurrence of the slots' keys and values, and softmax over the slots",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    streams=lambda *_: (Stream("gate", of="keys", starts_as="key"),),  # logits of α, one for each slot
    variants={"sharp": {"temperature": 1.0}, "raw": {"normalise": False}},
)
class GatedSlot(NormalisedMemory[Options]):
    """Softmax attention to a fixed number of slots. Every token is written into every slot, with one weight per slot.

    Paper: Zhang et al. 2024.
    Symbols: α → computed from the stream ``gate``, a further projection of the tokens; τ → temperature; [K̃ Ṽ] →
        MemoryState.summed, with one row per slot.
    Differs: a head has as many slots as channels, which is the default of the authors' code. As in that code, SiLU is applied to
        queries, keys, values and outputs. The RMSNorm of the outputs has no learned scale, and runs over each head; in that code
        it runs over all heads together. The projection of the gate starts as a copy of that of keys. Gates are at least
        exp(-3.75), so all logits below about -3.75 τ give this gate. The paper's form is causal; the bidirectional form adds the
        outputs of both reading directions. Padded tokens leave the slots unchanged.
    Nature: A query reads the slots with softmax weights, so a few slots can decide an output. In linear attention, a query reads
        without a softmax.
    """

    def state_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the state: one row per slot, and one column per channel of keys and
        of values.
        """
        return self.geometry.head_dim, 2 * self.geometry.head_dim

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, gate: Keys) -> Queries:
        """Return the outputs: each token is written into the slots, and then the token's query reads them."""
        query, key, value, log_gates = self.rows(query, key, value, key_valid, gate=gate)

        def update(slots: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
            slots = a * slots + (1 - a) @ torch.cat([k, v], dim=2).mT
            keys, values = slots.chunk(2, dim=-1)
            return slots, values.mT @ (keys @ q).softmax(dim=2)

        return self.scan(update, query, key, value, log_gates.exp())

    def rows(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> list[Tensor]:
        """Return queries, keys and values after SiLU, and the log gates, which are 0 at padded tokens."""
        logs = (F.logsigmoid(streams["gate"].contiguous()) / self.options.temperature).clamp(min=LOWEST)
        logs = logs if key_valid is None else logs.masked_fill(~key_valid[:, None, :, None], 0)
        return [F.silu(query), F.silu(key), F.silu(value), logs]

    def by_chunks(self, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of consecutive positions, and the slots after them. ``state`` holds the slots before them.

        For one slot, let bᵢ be the sum of the log gates (log α) up to position i of a chunk. At position i, this slot holds token j
        with the weight exp(bᵢ) (1 − αⱼ) exp(-bⱼ). To avoid overflow, half of the chunk's last b is subtracted from each b.
        """
        n = rows[0].shape[2]
        query, key, value, log_gates = (into_chunks(x, min(CHUNK, n)) for x in rows)
        sums = log_gates.cumsum(dim=-2)
        middle = sums[..., -1:, :] / 2
        write, read = -log_gates.expm1() * (middle - sums).exp(), (sums - middle).exp()
        before, added = [], write.mT @ torch.cat([key, value], dim=-1)
        for keep, new in zip(middle.exp().mT.unbind(2), added.unbind(2), strict=True):
            before.append(state * keep)
            state = (before[-1] + new) * keep
        keys, values = torch.stack(before, dim=2).chunk(2, dim=-1)
        weights = (read * ((query @ key.mT).tril() @ write + query @ keys.mT)).softmax(dim=-1) * read
        out = (weights @ write.mT).tril() @ value + weights @ values
        return out.flatten(2, 3)[:, :, :n], state

    def finish(self, out: Queries) -> Queries:
        """Return the outputs. If ``normalise`` is true, SiLU is applied to them, and each head's result is divided by its root mean
        square.
        """
        return super().finish(F.silu(out)) if self.options.normalise else out

"""Recurrence, computed chunk by chunk: Sₜ = Diag(aₜ) Sₜ₋₁ + kₜ uₜᵀ, yₜ = Sₜᵀ qₜ, with uₜ = vₜ or uₜ = βₜ (vₜ − (Diag(aₜ) Sₜ₋₁)ᵀ
pₜ).

The first u adds the value to the memory S (decay family). The second u corrects the value that S holds at p (delta family). p is
the key, except in ``rwkv7``. The decay a is one number per head, or one number per channel of the key.

For one chunk, let S be the memory before the chunk, and bᵢ the sum of log a over the positions of the chunk up to i. Let weights(x)
be the matrix with Σ_c xᵢ_c kⱼ_c exp(bᵢ_c − bⱼ_c) at row i and column j ≤ i, where c runs over the channels. Then

    y = (q ∘ exp b) S + weights(q) u
    u = v (decay family)
    u = T v − T (p ∘ exp b) S (delta family), with T = (I + L)⁻¹ diag(β) and L the part of diag(β) weights(p) below the diagonal
    S after the chunk = exp(b_last) ∘ S + (k ∘ exp(b_last − b))ᵀ u
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._recurrence import Answer, NormalisedMemory
from attn_zoo.contract import Geometry, MemoryState, OptionsT
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.shapes import Keys

CHUNK = 32
"""Number of updates in a chunk."""
BLOCK = 8
"""Number of rows of weights that are computed together, if the decay has one number per channel."""
LOWEST = -160 / BLOCK
"""Smallest logarithm of a decay: no decay is below 2e-9. The product of ``BLOCK`` / 2 decays is then at least exp(-80), so float32
can hold this product and its inverse.
"""

Chunks = Float[Tensor, "batch heads chunks chunk d"]


class Updates(NamedTuple):
    """Updates of a memory, and the queries that read it. Every position makes the same number of updates. After these updates, the
    query of the position reads the memory.
    """

    query: Float[Tensor, "batch heads n d"]
    key: Float[Tensor, "batch heads updates d"]
    value: Float[Tensor, "batch heads updates d"]
    log_decay: Float[Tensor, "batch heads updates 1"] | Float[Tensor, "batch heads updates d"]
    """Logarithm of the decay, from ``LOWEST`` to 0."""
    strength: Float[Tensor, "batch heads updates 1"] | None = None
    """Strength β of the delta rule. None if values are added to the memory without correction."""
    probe: Float[Tensor, "batch heads updates d"] | None = None
    """p, at which the delta rule reads the value that it corrects. None if this is the key."""


class ChunkedMemory(NormalisedMemory[OptionsT]):
    """Base class of mechanisms whose memory is updated by the function ``recurrence``. Subclasses implement ``updates``."""

    updates: Callable[..., Updates]
    """Function that maps the inputs of ``attend`` to ``Updates``. At padded tokens, the key and the logarithm of the decay must be
    zero, so that the memory does not change.
    """

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of the next tokens, and the state after them."""
        updates = self.updates(*inputs, **streams)
        out, summed = recurrence(updates, state.summed)
        return out, state.after(summed, out.shape[2])


def recurrence(updates: Updates, state: Float[Tensor, "batch heads d d"]) -> tuple[Tensor, Tensor]:
    """Return the outputs of consecutive positions, and the memory after them. ``state`` is the memory before them."""
    n, each = updates.query.shape[2], updates.key.shape[2] // updates.query.shape[2]
    positions = min(CHUNK // each, n)
    query = into_chunks(updates.query, positions)
    key, value, log_decay = (into_chunks(x, positions * each) for x in (updates.key, updates.value, updates.log_decay))
    sums = log_decay.cumsum(dim=-2)
    decayed, last = sums.exp(), sums[..., -1:, :]
    reads, keeps, writes = query * _at_reads(decayed, each), last.exp().mT, (key * (last - sums).exp()).mT
    if updates.strength is None:
        (between,) = _weights([query], key, sums)
        before, written, state = _add(state, keeps, writes, value)
    else:
        probe = key if updates.probe is None else into_chunks(updates.probe, positions * each)
        between, among = _weights([query, probe], key, sums)
        beta = into_chunks(updates.strength, positions * each)
        # Only the part of the matrix below the diagonal is read.
        transform = torch.linalg.solve_triangular(beta * among, beta[..., 0].diag_embed(), upper=False, unitriangular=True)
        before, written, state = _correct(state, keeps, writes, transform @ value, -transform @ (probe * decayed))
    out = reads @ before + between @ written
    return out.flatten(2, 3)[:, :, :n], state


def _add(state: Tensor, keeps: Chunks, writes: Chunks, value: Chunks) -> tuple[Tensor, Chunks, Tensor]:
    """Return the memories before each chunk, what each chunk writes, and the last memory, for the decay family."""
    before = []
    for keep, added in zip(keeps.unbind(2), (writes @ value).unbind(2), strict=True):
        before.append(state)
        state = torch.addcmul(added, keep, state)
    return torch.stack(before, dim=2), value, state


def _correct(state: Tensor, keeps: Chunks, writes: Chunks, value: Chunks, erase: Chunks) -> tuple[Tensor, Chunks, Tensor]:
    """Return what ``_add`` returns, for the delta family. A chunk writes ``value + erase @ state``."""
    heads, before, written = state.shape[:2], [], []
    state = state.flatten(0, 1)  # one fused product, over examples and heads, for each update
    for keep, write, v, w in zip(*(x.flatten(0, 1).unbind(1) for x in (keeps, writes, value, erase)), strict=True):
        before.append(state)
        written.append(torch.baddbmm(v, w, state))
        state = torch.baddbmm(keep * state, write, written[-1])
    return *(torch.stack(x, dim=1).unflatten(0, heads) for x in (before, written)), state.unflatten(0, heads)


def _weights(rows: list[Chunks], key: Chunks, sums: Chunks) -> list[Float[Tensor, "batch heads chunks rows chunk"]]:
    """Return the matrix Σ_c xᵢ_c kⱼ_c exp(bᵢ_c − bⱼ_c) for each x in ``rows``. It is zero for updates j after the update i at which
    the row reads.
    """
    chunk = key.shape[-2]
    if sums.shape[-1] == 1:
        decays = (sums - sums.mT).clamp(max=0).exp().tril()
        return [x @ key.mT * _at_reads(decays, chunk // x.shape[-2]) for x in rows]
    each = chunk // rows[0].shape[-2]
    if each > 1:
        rows = [rows[0].repeat_interleave(each, dim=-2), *rows[1:]]
    parts: list[list[Tensor]] = [[] for _ in rows]
    for start in range(0, chunk, BLOCK):
        end = min(start + BLOCK, chunk)
        middle = sums[..., (start + end - 1) // 2, None, :]
        grown = (sums[..., start:end, :] - middle).exp()
        columns = key[..., :end, :] * (middle - sums[..., :end, :]).exp()
        for x, blocks in zip(rows, parts, strict=True):
            blocks.append(F.pad((x[..., start:end, :] * grown @ columns.mT).tril(start), (0, chunk - end)))
    first, *others = (torch.cat(blocks, dim=-2) for blocks in parts)
    return [_at_reads(first, each), *others]


def _at_reads(updates: Tensor, each: int) -> Tensor:
    """Return the rows of those updates after which a query reads the memory: the last of the ``each`` updates of a position."""
    return updates if each == 1 else updates[..., each - 1 :: each, :]


def recurrence_flops(geometry: Geometry, *, per_channel: bool = False, delta: bool = False, each: int = 1) -> tuple[int, int]:
    """Return the FLOPs of ``recurrence`` in the forward pass and in the backward pass, for one example. If bidirectional, both
    directions are counted.

    The delta rule solves triangular systems of equations. The cost of solving them is counted in the backward pass only, as matrix
    products. Gradients of the memory before the first chunk and of the memory after the last chunk are not counted.

    Args:
        per_channel: if True, the decay a has one number per channel.
        delta: if True, the memory is updated by the delta rule.
        each: number of updates per position.
    """
    d, positions = geometry.head_dim, min(CHUNK // each, geometry.keys)
    chunk, chunks = positions * each, -(-geometry.keys // positions)
    ends = [min(start + BLOCK, chunk) for start in range(0, chunk, BLOCK)]
    among = sum((end - start) * end for start, end in zip(range(0, chunk, BLOCK), ends, strict=True)) if per_channel else chunk**2
    # weights of outputs, the outputs of a chunk, weights of corrections, and T times values and keys
    pairs = (among if per_channel else among // each) + positions * chunk + delta * (among + 2 * chunk**2)
    states = positions + chunk + delta * chunk  # rows of the products with the state: reads, writes, corrections
    forward = 2 * d * chunks * (pairs + d * states)
    untracked = 3 * delta * chunk + (positions + 2 * chunk * (not delta) if chunks == 1 else 0)
    backward = 2 * forward - 2 * d * d * untracked + delta * 2 * chunks * chunk**3
    directions = geometry.heads * (1 if geometry.causal else 2)
    return directions * forward, directions * backward

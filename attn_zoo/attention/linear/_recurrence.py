"""Attention with a memory of fixed size: a matrix for each head, written at every token and carried to the next."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._states import check_state
from attn_zoo.attention.linear._feature_maps import divide_features
from attn_zoo.contract import Attention, Geometry
from attn_zoo.kernels.cpu._chunks import filled, into_chunks
from attn_zoo.precision import without_autocast

CHUNK = 64
"""Positions that compare with each other directly; earlier ones arrive as a sum."""

RMS_FLOOR = 1e-5
"""Added to the mean square of an answer, so that an answer of zeros stays zeros."""


@dataclass(frozen=True, slots=True)
class MemoryState:
    """State after some tokens; its size does not depend on their number."""

    summed: Float[Tensor, "batch heads m d"]
    """S: Σ φ(k) vᵀ, or what a mechanism makes of it."""
    mass: Float[Tensor, "batch heads m"] | None = None
    """z = Σ φ(k), where answers are averages."""
    position: int = 0
    """Number of tokens read."""

    @property
    def nbytes(self) -> int:
        """Bytes of S and z."""
        return self.summed.nbytes + (0 if self.mass is None else self.mass.nbytes)


Read = Callable[..., tuple[Tensor, MemoryState]]


class RecurrentAttention(Attention):
    """Mechanism that reads a sequence whole, in pieces or token by token, from a ``MemoryState``.

    A mechanism writes ``read``, and ``read_all`` where the paper has a form without causality. ``read_tiled`` and
    ``read_all_tiled`` are the same for a CPU's caches.
    """

    has_mass = False
    """True where the state holds z."""

    @abstractmethod
    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n d"], MemoryState]:
        """Answer each position from ``state`` and the positions up to it. All tensors are float32 or float64."""

    read_tiled: Read

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries d"]:
        """Answer without causality; by default the sum of ``read`` from the first position on and from the last one back."""
        return self.read_both_ways(self.read, query, key, value, key_valid, **streams)

    def read_all_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries d"]:
        """``read_all`` through ``read_tiled``."""
        return self.read_both_ways(self.read_tiled, query, key, value, key_valid, **streams)

    def read_both_ways(
        self, read: Read, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads n d"]:
        """Sum of what ``read`` answers to the sequence and, turned back, to the reversed sequence."""
        valid = None if key_valid is None else key_valid.flip(1)
        reversed_streams = {name: stream.flip(2) for name, stream in streams.items()}
        forward, _ = read(self._start(value), query, key, value, key_valid, **streams)
        backward, _ = read(self._start(value), query.flip(2), key.flip(2), value.flip(2), valid, **reversed_streams)
        return forward + backward.flip(2)

    def finish(self, out: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """Last step, of each position alone."""
        return out

    def features(self) -> int:
        """m, the rows of S."""
        return self.geometry.head_dim

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
        **streams: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Float32 at least, also under autocast, as long sums need it."""
        return self._attend(self.read, self.read_all, query, key, value, key_valid, **streams)

    def attend_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``attend`` in tiles."""
        return self._attend(self.read_tiled, self.read_all_tiled, query, key, value, key_valid, **streams)

    def _attend(
        self,
        read: Read,
        read_all: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_valid: Tensor | None,
        **streams: Tensor,
    ) -> Tensor:
        dtype = torch.promote_types(value.dtype, torch.float32)
        with without_autocast(value.device):
            inputs = query.to(dtype), key.to(dtype), value.to(dtype), key_valid
            others = {name: stream.to(dtype) for name, stream in streams.items()}
            out = read(self._start(inputs[2]), *inputs, **others)[0] if self.geometry.causal else read_all(*inputs, **others)
            return self.finish(out).to(value.dtype)

    def _start(self, value: Tensor) -> MemoryState:
        return self.initial_state(value.shape[0], dtype=value.dtype, device=value.device)

    def initial_state(
        self, batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> MemoryState:
        """Zeros, in float32 at least."""
        shape, wide = (batch, self.geometry.heads, self.features()), torch.promote_types(dtype, torch.float32)
        summed = torch.zeros(*shape, self.geometry.head_dim, dtype=wide, device=device)
        return MemoryState(summed, torch.zeros(*shape, dtype=wide, device=device) if self.has_mass else None)

    def advance(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        state: Any,
        **streams: Float[Tensor, "batch heads n head_dim"],
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """Read on from ``state``.

        Raises:
            ValueError: the state is of another mechanism, batch, dtype or device.
        """
        dtype = torch.promote_types(value.dtype, torch.float32)
        shape = (value.shape[0], self.geometry.heads, self.features(), self.geometry.head_dim)
        check_state(self.card.name, state, "summed", shape, dtype, value)
        with without_autocast(value.device):
            others = {name: stream.to(dtype) for name, stream in streams.items()}
            out, after = self.read(state, query.to(dtype), key.to(dtype), value.to(dtype), None, **others)
            return self.finish(out).to(value.dtype), after


class NormalisedMemory(RecurrentAttention):
    """Memory with head_dim rows, whose answers have a root mean square of one where ``options.normalise`` says so."""

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """State no smaller than what it remembers."""
        d, n = geometry.head_dim, geometry.keys
        return (f"a state of {d} rows is no smaller than the {n} keys that it remembers",) if d >= n else ()

    def finish(self, out: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """Norm, where it is asked for."""
        return unit_rms(out) if self.options.normalise else out


def average_of_past(
    phi_query: Float[Tensor, "batch heads n m"],
    phi_key: Float[Tensor, "batch heads n m"],
    value: Float[Tensor, "batch heads n d"],
    state: MemoryState,
) -> tuple[Float[Tensor, "batch heads n d"], MemoryState]:
    """yᵢ = φ(qᵢ)ᵀ Sᵢ / φ(qᵢ)ᵀ zᵢ, with Sᵢ and zᵢ over ``state`` and the keys up to i, chunk by chunk.

    A column of ones beside V makes z the last column of S.
    """
    assert state.mass is not None
    n, chunk = value.shape[2], min(CHUNK, value.shape[2])
    start = torch.cat([state.summed, state.mass[..., None]], dim=-1)[:, :, None]
    queries, keys, values = (into_chunks(x, chunk) for x in (phi_query, phi_key, F.pad(value, (0, 1), value=1.0)))
    sums = torch.cat([start, keys.mT @ values], dim=2).cumsum(dim=2)  # S before each chunk, and after the last one
    out = (queries @ keys.mT).tril() @ values + queries @ sums[:, :, :-1]
    after = sums[:, :, -1]
    return weighted_mean(out.flatten(2, 3)[:, :, :n]), MemoryState(after[..., :-1], after[..., -1], state.position + n)


def weighted_mean(sums: Float[Tensor, "*front d1"]) -> Float[Tensor, "*front d"]:
    """Weighted sums divided by the sum of weights, which is their last column; zeros where no key has any weight."""
    return divide_features(sums[..., :-1], sums[..., -1:])


def unit_rms(x: Float[Tensor, "*front d"]) -> Float[Tensor, "*front d"]:
    """Division by the root of the mean square over a head; its usual scale is left to the projection that follows."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + RMS_FLOOR)


def average_flops(geometry: Geometry, m: int) -> tuple[int, int]:
    """FLOPs of averages with m features as tiles compute them, forward and backward.

    All keys: φ(K)ᵀ V and φ(Q) times it, and four products of their size for the gradients. The past: φ(Q) φ(K)ᵀ and its product
    with V within chunks, and two products with the sums before them; backward comparisons and sums are recomputed.
    """
    d = geometry.head_dim
    if not geometry.causal:
        forward = 2 * (geometry.queries + geometry.keys) * m * geometry.inner_dim
        return forward, 2 * forward
    chunk, n = filled(geometry.keys)
    compare, sums = 2 * n * chunk, 2 * n * m * d
    return geometry.heads * (compare * (m + d) + 2 * sums), geometry.heads * (compare * (3 * m + 2 * d) + 5 * sums)

"""Attention with a memory of fixed size: a matrix for each head, written at every token and carried to the next."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._states import check_state
from attn_zoo.attention.linear import _fla
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
Answer = Callable[..., Tensor]


class RecurrentAttention(Attention):
    """Mechanism that reads a sequence whole, in pieces or token by token, from a ``MemoryState``.

    A mechanism writes ``read``, and ``read_all`` where the paper has a form without causality. ``read_tiled`` and
    ``read_all_tiled`` are the same for a CPU's caches, ``answer_fla`` by the kernels of flash-linear-attention.
    """

    has_mass = False
    """True where the state holds z."""

    @abstractmethod
    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n d"], MemoryState]:
        """Answer each position from ``state`` and the positions up to it. All tensors are float32 or float64."""

    read_tiled: Read
    answer_fla: Answer
    """Causal answers to a whole sequence."""

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries d"]:
        """Answer without causality; by default the sum of ``read`` from the first position on and from the last one back."""
        return read_both_ways(self._from_start(self.read), query, key, value, key_valid, **streams)

    def read_all_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries d"]:
        """``read_all`` through ``read_tiled``."""
        return read_both_ways(self._from_start(self.read_tiled), query, key, value, key_valid, **streams)

    def finish(self, out: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """Last step, of each position alone."""
        return out

    def features(self) -> int:
        """m, the rows of S."""
        return self.geometry.head_dim

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Averages over all keys by flash-linear-attention, which has no kernel for them."""
        return _fla.causal_only(cls.card.name, geometry) if implementation == "fla" and cls.has_mass else None

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
        **streams: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Float32 at least, also under autocast, as long sums need it."""
        return self._attend(self._from_start(self.read), self.read_all, query, key, value, key_valid, **streams)

    def attend_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``attend`` in tiles."""
        return self._attend(self._from_start(self.read_tiled), self.read_all_tiled, query, key, value, key_valid, **streams)

    def attend_fla(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """flash-linear-attention's kernels, which multiply in bfloat16 and add up in float32.

        Raises:
            UnsupportedError: inputs are of another type, and autocast does not change it.
        """
        _fla.check_dtype(self.card, value)
        both_ways = partial(read_both_ways, self.answer_fla)
        return self._attend(self.answer_fla, both_ways, query, key, value, key_valid, **streams)

    def _attend(
        self,
        past: Answer,
        everything: Answer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_valid: Tensor | None,
        **streams: Tensor,
    ) -> Tensor:
        dtype = torch.promote_types(value.dtype, torch.float32)
        answer = past if self.geometry.causal else everything
        with without_autocast(value.device):
            others = {name: stream.to(dtype) for name, stream in streams.items()}
            return self.finish(answer(query.to(dtype), key.to(dtype), value.to(dtype), key_valid, **others)).to(value.dtype)

    def _from_start(self, read: Read) -> Answer:
        """What ``read`` answers to a sequence from its first position on."""

        def answer(query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
            state = self.initial_state(value.shape[0], dtype=value.dtype, device=value.device)
            return read(state, query, key, value, key_valid, **streams)[0]

        return answer

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


def read_both_ways(
    answer: Answer, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
) -> Float[Tensor, "batch heads n d"]:
    """Sum of causal answers to the sequence and, turned back, to the reversed sequence."""
    valid = None if key_valid is None else key_valid.flip(1)
    reversed_streams = {name: stream.flip(2) for name, stream in streams.items()}
    backward = answer(query.flip(2), key.flip(2), value.flip(2), valid, **reversed_streams)
    return answer(query, key, value, key_valid, **streams) + backward.flip(2)


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


def average_of_past_fla(
    phi_query: Float[Tensor, "batch heads n m"], phi_key: Float[Tensor, "batch heads n m"], value: Float[Tensor, "batch heads n d"]
) -> Float[Tensor, "batch heads n d"]:
    """``average_of_past`` of a whole sequence by a kernel of flash-linear-attention.

    Its own division, which is by a sum in the type of the keys and a constant more, is left out.
    """
    counted = F.pad(value, (0, 1), value=1.0)
    return weighted_mean(_fla.answers("linear_attn", phi_query, phi_key, counted, scale=1.0, normalize=False))


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

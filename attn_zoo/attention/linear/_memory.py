"""Mechanisms whose past is a memory of fixed size: a matrix for each head, written at every token and carried to the next."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention._states import check_state
from attn_zoo.contract import Attention, Geometry
from attn_zoo.kernels.cpu._chunks import spans
from attn_zoo.precision import without_autocast

RMS_FLOOR = 1e-5
"""Added to the mean square of an answer, so that one of zeros stays zeros."""


@dataclass(frozen=True, slots=True)
class MemoryState:
    """All that later answers need of the tokens read so far; how much it is does not depend on their number."""

    summed: Float[Tensor, "batch heads m d"]
    """Σ φ(k) vᵀ, or what a mechanism makes of it."""
    mass: Float[Tensor, "batch heads m"] | None = None
    """Σ φ(k), where answers are averages."""
    position: int = 0
    """How many tokens were read."""

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers that are carried."""
        return self.summed.nbytes + (0 if self.mass is None else self.mass.nbytes)


class RecurrentAttention(Attention):
    """A mechanism whose past is a state of fixed size, so that it reads whole sequences, pieces of them or token by token.

    A mechanism writes ``read``. One that is not causal by nature overrides ``read_all`` as well.
    """

    has_mass = False
    """Whether the state holds Σ φ(k)."""

    @abstractmethod
    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n d"], MemoryState]:
        """Answer each position from ``state`` and the positions up to it, all in float32 at least."""

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries d"]:
        """Answer without causality: here the sum of what is read from the first position on and from the last one back."""

        def turned(x: Tensor) -> Tensor:
            return x.flip(2)

        there, back = (self.initial_state(value.shape[0], dtype=value.dtype, device=value.device) for _ in range(2))
        backwards = {name: turned(stream) for name, stream in streams.items()}
        valid = None if key_valid is None else key_valid.flip(1)
        ahead, _ = self.read(there, query, key, value, key_valid, **streams)
        return ahead + turned(self.read(back, turned(query), turned(key), turned(value), valid, **backwards)[0])

    def finish(self, out: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """What is done to the answer of each position alone."""
        return out

    def features(self) -> int:
        """m, the rows of a head's state."""
        return self.geometry.head_dim

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
        **streams: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Long sums need float32, so autocast is left for the length of the call."""
        dtype = torch.promote_types(value.dtype, torch.float32)
        with without_autocast(value.device):
            given = query.to(dtype), key.to(dtype), value.to(dtype), key_valid
            others = {name: stream.to(dtype) for name, stream in streams.items()}
            if self.geometry.causal:
                state = self.initial_state(value.shape[0], dtype=dtype, device=value.device)
                out, _ = self.read(state, *given, **others)
            else:
                out = self.read_all(*given, **others)
            return self.finish(out).to(value.dtype)

    attend_tiled = attend

    def initial_state(
        self, batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> MemoryState:
        """The state before the first token: zeros, in float32 at least."""
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
    """A memory of as many rows as a head is wide, whose answers are normalised where ``options.normalise`` says so."""

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A state no smaller than what it remembers."""
        d, n = geometry.head_dim, geometry.keys
        return (f"a state of {d} rows is no smaller than the {n} keys that it remembers",) if d >= n else ()

    def finish(self, out: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """The norm, where it is asked for."""
        return unit_rms(out) if self.options.normalise else out


def unit_rms(x: Float[Tensor, "*front d"]) -> Float[Tensor, "*front d"]:
    """Divided by the root of the mean square over a head; its usual scale is left to the projection that follows."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + RMS_FLOOR)


def gated_bytes(geometry: Geometry, tensors: int, *, normalised: bool) -> int:
    """What ``in_blocks`` and ``unit_rms`` keep: the state before each block, and the answers with their roots of mean squares.

    Without causality another state before each block, and the ``tensors`` that are read in the order of positions turned round.
    """
    n, inner, d = geometry.keys, geometry.inner_dim, geometry.head_dim
    starts = inner * d * len(spans(n, inner * FLOAT))
    ends = starts if geometry.causal else 2 * starts + tensors * n * inner
    return FLOAT * (ends + (n * geometry.heads * (d + 1) if normalised else 0))

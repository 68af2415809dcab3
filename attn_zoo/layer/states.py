"""Results that a layer hands out for later calls: the cached keys of a context, and the state of a sequence read in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import CarriedState


@dataclass(frozen=True, slots=True)
class Remembered:
    """Cached keys, values and streams of a context, for calls with other queries; see ``MultiHeadAttention.remember``."""

    key: Float[Tensor, "batch heads kept head_dim"] | None
    """Keys, as long as the context or already compressed; None where the mechanism reads none."""
    value: Float[Tensor, "batch heads kept head_dim"]
    streams: Mapping[str, Float[Tensor, "batch heads _ head_dim"]]
    """The streams of the keys."""
    key_valid: Bool[Tensor, "batch keys"] | None
    """True for a real token of the context; None where all are real."""
    length: int
    """Number of tokens of the context."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """State that a layer carries from one piece of a sequence to the next, a ``CarriedState``; see ``MultiHeadAttention.step``."""

    mechanism: CarriedState
    tail: Float[Tensor, "batch held dim"]
    """Last tokens read, as many as the short convolution reaches back; empty without one."""

    @property
    def position(self) -> int:
        """Number of tokens read."""
        return self.mechanism.position

    @property
    def nbytes(self) -> int:
        """Bytes of the carried tensors, for the whole batch."""
        return self.mechanism.nbytes + self.tail.nbytes

"""The least time that a machine allows each stage, and what of it is a stage's.

A stage reads its inputs and writes its outputs once, and multiplies and exponentiates what its equation says. It takes at
least the longest of three times, each at the rate that this machine reached in the same measurement:

    max(FLOPs / matmul rate, bytes / copy rate, exponentials / exponential rate)

and stages take the sum. With T tokens in B sequences of N, width D, H heads, r projected keys and s bytes a number:

    stage                          FLOPs      bytes                                exponentials
    core, forward                  4 T r D    s (2 T D + 2 B r D)                  T H r
    core, backward                 10 T r D   s (3 T D + 2 B r D) + 4 · 2 B r D    T H r
    projection, forward            2 T r D    s (T D + N r + B r D)
    projection, backward           4 T r D    s (3 T D + 2 N r + 2 B r D)
    compressed keys and values     4 B r D²   s (4 B r D + 2 D²)
    queries; output, each          2 T D²     s (2 T D + D²)

The core's backward writes the gradients of keys and values in float32, as shares to be added. The projection's backward
adds to a gradient of the tokens that the queries have left there. Matrix products of the layer count twice backward.
Where E and F differ they are stacked, which makes the projection one of 2 r rows. float32 is three tf32 products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXPONENTIALS_A_CLOCK = 16
"""That one multiprocessor of compute capability 9.0 finishes each clock."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine reaches at best, each a second."""

    half_flops: float
    """Of bfloat16 and float16 matrix products."""
    tf32_flops: float
    bytes: float
    """Read plus written."""
    exponentials: float

    def flops(self, precision: str) -> float:
        """Rate of matrix products in ``fp32``, ``bf16`` or ``fp16``."""
        return self.tf32_flops / 3 if precision == "fp32" else self.half_flops


STATED_HERTZ = 1.83e9

STATED = Ceilings(half_flops=790e12, tf32_flops=395e12, bytes=4.3e12, exponentials=132 * EXPONENTIALS_A_CLOCK * STATED_HERTZ)
"""Of an H200, where the measurement of this machine's failed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Work that is done in one go."""

    flops: float
    bytes: float
    exponentials: float = 0.0

    def seconds(self, ceilings: Ceilings, precision: str) -> float:
        """The longest of the three times."""
        return max(self.flops / ceilings.flops(precision), self.bytes / ceilings.bytes, self.exponentials / ceilings.exponentials)


@dataclass(frozen=True, slots=True)
class Size:
    """What the formulas speak of; ``itemsize`` is s."""

    batch: int
    length: int
    rows: int
    """r of the core, rows of the matrix for the projection."""
    dim: int
    heads: int
    itemsize: int = 2

    @property
    def tokens(self) -> int:
        """T."""
        return self.batch * self.length

    @property
    def compressed(self) -> int:
        """B r D, numbers in the projected keys."""
        return self.batch * self.rows * self.dim


def core(kind: str, size: Size) -> Stage:
    """softmax(Q Kᵀ / √d) V over r keys, ``forward`` or ``backward``."""
    all_, s = size.tokens * size.dim, size.itemsize
    exponentials = size.tokens * size.heads * size.rows
    if kind == "forward":
        return Stage(4 * all_ * size.rows, s * (2 * all_ + 2 * size.compressed), exponentials)
    return Stage(10 * all_ * size.rows, s * (3 * all_ + 2 * size.compressed) + 8 * size.compressed, exponentials)


def projection(kind: str, size: Size) -> Stage:
    """E X, ``forward`` or ``backward``."""
    all_, s, matrix = size.tokens * size.dim, size.itemsize, size.length * size.rows
    if kind == "forward":
        return Stage(2 * all_ * size.rows, s * (all_ + matrix + size.compressed))
    return Stage(4 * all_ * size.rows, s * (3 * all_ + 2 * matrix + 2 * size.compressed))


def layer(kind: str, size: Size, roles: int) -> Sequence[Stage]:
    """A layer of Linformer that compresses first, ``forward`` or ``training``, which is forward and backward.

    Args:
        roles: 2 where E and F differ, else 1.
    """
    stacked = Size(size.batch, size.length, roles * size.rows, size.dim, size.heads, size.itemsize)
    s, square = size.itemsize, size.dim**2
    linear = Stage(2 * size.tokens * square, s * (2 * size.tokens * size.dim + square))
    keys_and_values = Stage(4 * size.batch * size.rows * square, s * (4 * size.compressed + 2 * square))
    products = [linear, keys_and_values, linear]
    forward = [*products, core("forward", size), projection("forward", stacked)]
    if kind == "forward":
        return forward
    return [*forward, *products, *products, core("backward", size), projection("backward", stacked)]


def floor_seconds(stages: Sequence[Stage], ceilings: Ceilings, precision: str) -> float:
    """The least time of stages that follow each other."""
    return sum(stage.seconds(ceilings, precision) for stage in stages)

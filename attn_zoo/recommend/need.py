"""What is asked of an attention layer."""

from __future__ import annotations

from dataclasses import dataclass

from attn_zoo.contract import Geometry

DIRECTIONS = {"forward": "a forward pass", "training": "a forward and backward pass"}
"""Directions as measurements name them, and in words."""


@dataclass(frozen=True, slots=True)
class Need:
    """A layer with its projections, to be used at one length.

    Raises:
        ValueError: a size breaks its rule.
    """

    length: int
    width: int = 256
    heads: int = 4
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    batch: int = 1
    direction: str = "forward"
    """A key of ``DIRECTIONS``."""
    memory: int | None = None
    """Bytes that a step may hold; None is no limit."""
    causal: bool = False
    padding: bool = False
    cross: bool = False
    """Keys of other tokens than the queries; as many of them."""
    accept: float = 0.0
    """Share of the score that may be lost against softmax."""

    def __post_init__(self) -> None:
        for name in ("length", "width", "heads", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} counts something, so it is at least 1; got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be divisible by heads; got width {self.width} and {self.heads} heads")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"memory is a number of bytes above 0; got {self.memory}")
        if self.causal and self.cross:
            raise ValueError(
                "causal attention is of tokens to those before them, so it has no keys of other tokens; ask for one of both"
            )
        if not 0.0 <= self.accept < 1.0:
            raise ValueError(f"what may be lost is at least 0 and less than 100 points; got {100 * self.accept:g}")

    @property
    def geometry(self) -> Geometry:
        """Of the mechanism inside the layer."""
        return Geometry(self.heads, self.width // self.heads, self.length, self.length, self.causal)

    def describe(self) -> str:
        """In a line."""
        wanted = [name for name in ("causal", "padding", "cross") if getattr(self, name)]
        limit = [] if self.memory is None else [f"at most {self.memory / 2**20:,.0f} MiB"]
        sizes = [f"{self.length:,} tokens", f"width {self.width}", f"{self.heads} heads", f"batch {self.batch}"]
        return ", ".join([*sizes, DIRECTIONS[self.direction], f"on {self.device}", *wanted, *limit])

"""Requirements on an attention layer."""

from __future__ import annotations

from dataclasses import dataclass

from attn_zoo.contract import Geometry

DIRECTIONS = {"forward": "a forward pass", "training": "a forward and backward pass"}
"""Directions of measurements, with descriptions."""


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements on a layer with its projections, used at one length.

    Raises:
        ValueError: a size is out of its range.
    """

    length: int
    width: int = 256
    heads: int = 4
    device: str = "cpu"
    """Type of device, ``cpu`` or ``cuda``."""
    batch: int = 1
    direction: str = "forward"
    """Direction, a key of ``DIRECTIONS``."""
    memory: int | None = None
    """Memory limit of a step in bytes; None for no limit."""
    causal: bool = False
    padding: bool = False
    cross: bool = False
    """True for cross-attention, with keys of other tokens, as many as queries."""
    accept: float = 0.0
    """Acceptable loss of score against softmax, as a share."""

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
        """Geometry of the layer's mechanism."""
        return Geometry(self.heads, self.width // self.heads, self.length, self.length, self.causal)

    def describe(self) -> str:
        """Description in one line."""
        wanted = [name for name in ("causal", "padding", "cross") if getattr(self, name)]
        limit = [] if self.memory is None else [f"at most {self.memory / 2**20:,.0f} MiB"]
        sizes = [f"{self.length:,} tokens", f"width {self.width}", f"{self.heads} heads", f"batch {self.batch}"]
        return ", ".join([*sizes, DIRECTIONS[self.direction], f"on {self.device}", *wanted, *limit])

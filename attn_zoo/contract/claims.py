"""Sizes, capabilities, costs and extra projections (streams) of a mechanism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from attn_zoo.checks import check_flag, check_shared_heads, check_whole

FLOAT = 4
"""Bytes of a number in float32, the unit of ``Cost``."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that the surrounding model fixes for a mechanism.

    ``queries`` and ``keys`` are the lengths the mechanism is built for. If the card declares ``any_length``, they are only the
    length for the cost formula.

    Raises:
        ValueError: a size is not a positive integer, ``key_value_heads`` does not divide ``heads``, ``latent_dim`` is negative, or
            a causal geometry has unequal lengths.
    """

    heads: int
    head_dim: int
    queries: int
    keys: int
    causal: bool = False
    key_value_heads: int = field(default=0, repr=False)
    """Number of different heads of keys and values, each shared by equally many consecutive heads of queries; 0: as many as heads.
    A mechanism gets them repeated, so that they only change the state that its card states."""
    latent_dim: int = field(default=0, repr=False)
    """Width of the latent from which the layer computes all keys and values of a token; 0: it has none. A mechanism gets keys and
    values, so that a latent only changes the state that its card states."""

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "queries", "keys"):
            check_whole(f"geometry.{name}", getattr(self, name))
        check_shared_heads("geometry", self.key_value_heads, self.heads)
        check_whole("geometry.latent_dim", self.latent_dim, 0)
        check_flag("geometry.causal", self.causal)
        if self.causal and self.queries != self.keys:
            raise ValueError(
                f"causal attention needs as many queries as keys, because it must know which keys are past; "
                f"got {self.queries} and {self.keys}"
            )

    @property
    def inner_dim(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def key_value_dim(self) -> int:
        """Width of all heads of keys together. Heads that queries share count once."""
        return (self.key_value_heads or self.heads) * self.head_dim

    def cached_width(self, tensors: int = 2) -> int:
        """Return how many numbers a cache holds per token: the latent, or ``tensors`` of key and value."""
        return self.latent_dim or tensors * self.key_value_dim


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities that a mechanism declares. The conformance tests check that every True holds and that every False raises an
    error.
    """

    causal: bool
    """Has a causal form, in which position i depends on positions up to i only."""
    key_padding: bool
    """Honours ``key_valid``: the content of padded keys has no influence."""
    cross: bool
    """Queries and keys may differ in number."""
    any_length: bool
    """Runs at lengths other than the one it was built for."""
    shorter: bool = False
    """Runs on fewer keys than it was built for, with the outputs of an input padded up to that number."""
    exact: bool = False
    """Equals softmax attention up to rounding."""
    random_at_build: bool = False
    """Draws features or hashes from the global generator when it is built."""
    shares_query_key: bool = False
    """One tensor serves as queries and keys; a different key tensor is refused."""
    stepwise: bool = False
    """Recurrent form: causal outputs, token by token or in pieces from a carried state, equal those of one call."""
    mixes_heads: bool = False
    """Heads influence each other."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one example in evaluation mode, without padding. None means that the cost is not stated.

    FLOPs are those of the implementation for a CPU: ``tiled`` if the card has it, else ``eager``. Only matrix products count, with
    two FLOPs per multiply-add, as in PyTorch's ``FlopCounterMode``. Bytes are those of float32.
    """

    flops: int
    """FLOPs of the forward pass."""
    parameters: int
    backward_flops: int | None = None
    """FLOPs of the backward pass: gradients of all inputs and of the parameters that train."""
    state_bytes: int | None = None
    """Bytes of the largest state (or cache) while ``keys`` arbitrary tokens are read one by one causally, the last one included.
    Positions and sizes, which are whole numbers, are not counted. None without causality."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Extra projection of the tokens that a layer makes for a mechanism.

    ``of`` states whose tokens are projected, ``first`` how many of them (None: all), and
    ``starts_as`` which projection of the layer it is initialised as a copy of.
    It is passed to ``attend`` as the keyword ``name``, (batch, heads, length or first, head_dim).
    """

    name: str
    of: Literal["queries", "keys"]
    starts_as: Literal["query", "key", "value"]
    first: int | None = None

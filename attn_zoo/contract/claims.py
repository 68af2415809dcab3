"""Declarations of a mechanism: the sizes for which it is built, its capabilities, its cost and its extra projections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from attn_zoo.checks import check_flag, check_shared_heads, check_whole

FLOAT = 4
"""Number of bytes of a float32 number. ``Cost`` counts every stored number as float32."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that the surrounding model fixes for a mechanism, such as the numbers of heads, queries and keys.

    ``queries`` and ``keys`` are the lengths for which the mechanism is built. If the card declares ``any_length``, calls may have
    other lengths, but sizes such as a stride may follow the lengths given here.

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
    """Number of heads of keys and values; 0 means as many as ``heads``. Each serves equally many consecutive heads of queries. The
    layer repeats keys and values before it calls the mechanism, so this number changes only ``Cost.state_bytes``.
    """
    latent_dim: int = field(default=0, repr=False)
    """Width of the latent vector from which the layer computes all keys and values of a token; 0 means that there is none. The
    mechanism gets keys and values as usual, so the latent vector changes only ``Cost.state_bytes``.
    """

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "queries", "keys"):
            check_whole(f"geometry.{name}", getattr(self, name))
        check_shared_heads("geometry", self.key_value_heads, self.heads)
        check_whole("geometry.latent_dim", self.latent_dim, 0)
        check_flag("geometry.causal", self.causal)
        if self.causal and self.queries != self.keys:
            raise ValueError(
                "queries and keys must be equally many with causal=True, because each query sees the keys up to its own "
                f"position; got {self.queries} and {self.keys}"
            )

    @property
    def inner_dim(self) -> int:
        """Number of channels of all heads together."""
        return self.heads * self.head_dim

    @property
    def key_value_dim(self) -> int:
        """Number of channels of all heads of keys together. A head of keys that several heads of queries share counts once."""
        return (self.key_value_heads or self.heads) * self.head_dim

    def cached_width(self, tensors: int = 2) -> int:
        """Return how many numbers a cache holds per token. If keys and values are projected from a latent vector, this is the
        width of that vector. Otherwise it is the width of all heads of keys, times ``tensors``: 2 if keys and values are
        cached, 1 if only one of them is.
        """
        return self.latent_dim or tensors * self.key_value_dim


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities that a mechanism declares. The conformance tests check that each declared capability holds, and that
    requests for undeclared ones raise an error.
    """

    causal: bool
    """The mechanism has a causal form, in which the output at position i depends on positions up to i only."""
    key_padding: bool
    """The mechanism respects ``key_valid``: the content of padded keys has no influence."""
    cross: bool
    """The numbers of queries and keys may differ."""
    any_length: bool
    """The mechanism runs at lengths other than the one for which it was built."""
    shorter: bool = False
    """The mechanism runs on fewer keys than it was built for. The outputs then equal those of the input padded to the full number
    of keys.
    """
    exact: bool = False
    """The mechanism equals softmax attention up to rounding."""
    random_at_build: bool = False
    """The mechanism draws features or hashes from the global random generator when it is built."""
    shares_query_key: bool = False
    """Queries and keys are one tensor. A different key tensor is unsupported."""
    stepwise: bool = False
    """The causal form can process tokens one by one or in pieces, with a recurrent state. The outputs equal those of one call."""
    mixes_heads: bool = False
    """Heads influence each other."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one example in evaluation mode, without padding. None means that a cost is not stated.

    FLOPs are those of the implementation for a CPU: ``tiled`` if the card has it, else ``eager``. Only matrix products count, with
    two FLOPs per multiply-add, as in PyTorch's ``FlopCounterMode``. Bytes are counted for float32.
    """

    flops: int
    """FLOPs of the forward pass."""
    parameters: int
    backward_flops: int | None = None
    """FLOPs of the backward pass: gradients of all inputs and of all parameters that are trained. The FLOPs of an auxiliary loss,
    which only training computes, are included."""
    state_bytes: int | None = None
    """Largest size in bytes of the recurrent state or cache while ``keys`` tokens are read one by one. Integers, such as
    positions, do not count. None if attention is bidirectional.
    """


@dataclass(frozen=True, slots=True)
class Stream:
    """Extra projection of the tokens, which a layer computes for a mechanism in addition to queries, keys and values.

    The field ``of`` states whether the tokens of the queries or of the keys are projected. The field ``first`` is the number of
    tokens, from the start, that are projected; None means all. The weights start as a copy of the layer's projection that the field
    ``starts_as`` names. The field ``name`` is the name of the keyword argument in which the method ``attend`` gets the projected
    tokens. Their shape is (batch, heads, number of projected tokens, head_dim). If the field ``per_head`` is true, the last size is
    1: the mechanism gets one number per head, the sum over the channels of the head, divided by √head_dim.
    """

    name: str
    of: Literal["queries", "keys"]
    starts_as: Literal["query", "key", "value"]
    first: int | None = None
    per_head: bool = False

    def of_channels(self, channels: Float[Tensor, "*sizes head_dim"]) -> Float[Tensor, "*sizes _"]:
        """Return what the mechanism gets of the channels of a head: all, or one number."""
        return channels.sum(dim=-1, keepdim=True) * channels.shape[-1] ** -0.5 if self.per_head else channels

"""Card of a mechanism, and the function that chooses one of its implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attn_zoo.contract.claims import Capabilities, Cost, Geometry, Stream
from attn_zoo.contract.errors import UnknownNameError, UnsupportedError
from attn_zoo.contract.growth import Growth
from attn_zoo.contract.implementations import auto_may_take, auto_order

if TYPE_CHECKING:
    from attn_zoo.contract.attention import Attention


def _no_streams(geometry: Geometry, options: Any) -> tuple[Stream, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class AttentionCard:
    """Facts about a mechanism that are available without building it. The command line, tables and conformance tests read them."""

    name: str
    title: str
    paper: str
    """Authors, year and identifier: ``Wang et al. 2020, arXiv:2006.04768``."""
    equation: str
    """Equation or section of the paper that the code computes."""
    can: Capabilities
    time: Growth
    memory: Growth
    cost: Callable[[Geometry, Any], Cost]
    options: type
    """Plain dataclass of int, float, bool, str or enum fields, each with a default or ``by_length``.

    ``__post_init__`` raises where a value breaks a rule."""
    build: type[Attention]
    implementations: tuple[str, ...] = ("eager",)
    softmax_limit: Callable[[Geometry], Attention] | None = None
    """Builder of the documented setting in which the mechanism equals softmax attention."""
    reads: tuple[str, ...] = ("query", "key", "value")
    """Inputs that influence the output; the layer makes no projection for the others, which may be None."""
    streams: Callable[[Geometry, Any], tuple[Stream, ...]] = _no_streams
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option sets besides the defaults that the conformance kit also checks."""
    control: bool = False
    """True for a control: it shows the score of a task without attention, and is not ranked among the contenders."""
    version: int = 1
    """Version of what the mechanism computes, raised when a default changes that. Specs of runs name it, and runs of
    different versions share no table."""

    @property
    def counted_implementation(self) -> str:
        """Implementation whose FLOPs ``cost`` gives: ``tiled`` if the card has it, else ``eager``."""
        return "tiled" if "tiled" in self.implementations else "eager"

    @property
    def origin(self) -> str:
        """Dotted path of the class, which leads to its source."""
        return f"{self.build.__module__}:{self.build.__qualname__}"


def choose_implementation(
    card: AttentionCard, geometry: Geometry, options: Any, device: torch.device, dtype: torch.dtype | None = None
) -> str:
    """Return the implementation that ``auto`` means: the first in ``auto_order`` that is on the card, fits the options and runs on
    ``device``.

    Args:
        dtype: dtype of the matrix products; None is torch's default.

    Raises:
        UnsupportedError: ``eager`` refuses the geometry or options.
        UnknownNameError: the card offers none that runs there.
    """
    for name in auto_order(device):
        if name in card.implementations and auto_may_take(name, device, dtype) and not card.build.refuses(name, geometry, options):
            return name
    if reason := card.build.refuses("eager", geometry, options):
        raise UnsupportedError(reason)
    raise UnknownNameError(f"implementation of {card.name} that runs on {device.type}", "auto", card.implementations)

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
    """Facts about a mechanism that are known without building it. The command line, tables and conformance tests read them."""

    name: str
    title: str
    paper: str
    """Authors, year and identifier of the paper, such as ``Wang et al. 2020, arXiv:2006.04768``."""
    equation: str
    """Equation or section of the paper that the code implements."""
    can: Capabilities
    time: Growth
    memory: Growth
    cost: Callable[[Geometry, Any], Cost]
    options: type
    """Options class: a dataclass of int, float, bool, str or enum fields. Each field has a default, or is declared with
    ``by_length``.

    Its ``__post_init__`` raises an error if a value breaks a rule.
    """
    build: type[Attention]
    implementations: tuple[str, ...] = ("eager",)
    softmax_limit: Callable[[Geometry], Attention] | None = None
    """Function that builds the mechanism with options for which it equals softmax attention. None if there are no such options."""
    reads: tuple[str, ...] = ("query", "key", "value")
    """Which of query, key and value influence the output. The layer does not compute the others, which may be None."""
    streams: Callable[[Geometry, Any], tuple[Stream, ...]] = _no_streams
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sets of options, beside the defaults, with which the conformance tests also check the mechanism."""
    control: bool = False
    """True for a control: a network that cannot select tokens by content. Controls are not ranked."""
    version: int = 1
    """Version of what the mechanism computes. It is raised when a new default changes the outputs. Runs of different versions
    never share a table.
    """

    @property
    def counted_implementation(self) -> str:
        """Name of the implementation whose FLOPs ``cost`` gives: ``tiled`` if the card has it, else ``eager``."""
        return "tiled" if "tiled" in self.implementations else "eager"

    @property
    def origin(self) -> str:
        """Module and name of the class of the mechanism, such as ``package.module:Class``."""
        return f"{self.build.__module__}:{self.build.__qualname__}"


def choose_implementation(
    card: AttentionCard, geometry: Geometry, options: Any, device: torch.device, dtype: torch.dtype | None = None
) -> str:
    """Return the implementation that ``auto`` stands for: the first in ``auto_order`` that the card offers, that supports the
    options, and that runs on ``device``.

    Args:
        dtype: dtype of the matrix products; None is torch's default.

    Raises:
        UnsupportedError: ``eager`` does not support the geometry or the options.
        UnknownNameError: the card offers no implementation that runs on ``device``.
    """
    for name in auto_order(device):
        if name in card.implementations and auto_may_take(name, device, dtype) and not card.build.refuses(name, geometry, options):
            return name
    if reason := card.build.refuses("eager", geometry, options):
        raise UnsupportedError(reason)
    raise UnknownNameError(f"implementation of {card.name} that runs on {device.type}", "auto", card.implementations)

"""Row of a table: a mechanism or hybrid with hyperparameters and an implementation, printed in the grammar of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any

NAME = re.compile(r"[^\s:,|=@*+'\"\[\](){}]+")
"""Name of a mechanism, implementation or option."""
TIMES = re.compile(r"([1-9]\d{0,3})\s*\*\s*(.*)", re.DOTALL)
"""Count of layers and the mechanism or row that they hold."""
_PLAIN = re.compile(r"[\w.+/-]+")


@dataclass(frozen=True, slots=True)
class RowName:
    """A mechanism, the hyperparameters that are given, and an implementation; or a hybrid of several."""

    attention: str
    """Name of the mechanism; of a hybrid the turn that its layers take, such as ``3*linformer+softmax``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that are given; the others take their defaults."""
    implementation: str = "auto"
    """Implementation; of a hybrid one for all mechanisms, or one for each with ``+`` between, in the order of ``parts``."""

    def __str__(self) -> str:
        if self.is_hybrid:
            parts = {part.attention: str(part) for part in self.parts()}
            return "+".join(f"{times}{parts[name]}" for times, name in _runs(self.turn))
        implementation = "" if self.implementation == "auto" else f":{self.implementation}"
        options = ",".join(f"{name}={written(value)}" for name, value in self.options.items())
        return f"{self.attention}{implementation}" + (f"[{options}]" if options else "")

    def names(self, attention: str, options: Mapping[str, Any], implementation: str) -> bool:
        """Whether a layer is what this row says; where it says nothing, any is."""
        same = all(name in options and written(options[name]) == written(value) for name, value in self.options.items())
        return attention == self.attention and same and self.implementation in ("auto", implementation)

    @property
    def is_hybrid(self) -> bool:
        """True for a row of several mechanisms."""
        return "+" in self.attention

    @property
    def turn(self) -> tuple[str, ...]:
        """Mechanism of each layer in turn, from the first layer on; one name unless the row is a hybrid.

        Raises:
            ValueError: the name of a hybrid is no turn.
        """
        if not self.is_hybrid:
            return (self.attention,)
        found: list[str] = []
        for part in self.attention.split("+"):
            times = TIMES.fullmatch(part)
            name = times[2] if times else part
            if not NAME.fullmatch(name):
                wanted = "NAME or COUNT*NAME with + between, such as 3*linformer+softmax"
                raise ValueError(f"a hybrid is {wanted}; got {self.attention!r}")
            found += [name] * (int(times[1]) if times else 1)
        return tuple(found)

    def parts(self) -> list[RowName]:
        """A row for each mechanism of a hybrid, in the order of their first layers; any other row itself.

        Raises:
            UnknownNameError: an option belongs to no mechanism of the hybrid.
            ValueError: the hybrid names another number of implementations than it has mechanisms.
        """
        if not self.is_hybrid:
            return [self]
        names = list(dict.fromkeys(self.turn))
        options: dict[str, dict[str, Any]] = {name: {} for name in names}
        for key, value in self.options.items():
            owner, _, option = key.partition(".")
            if owner not in options or not option:
                from attn_zoo.contract import UnknownNameError  # here, as it loads PyTorch

                raise UnknownNameError(f"option of the hybrid {self.attention}", key, [f"{name}.OPTION" for name in names])
            options[owner][option] = value
        taken = self.implementation.split("+")
        taken = taken * len(names) if len(taken) == 1 else taken
        if len(taken) != len(names):
            raise ValueError(
                f"{self.attention} has {len(names)} mechanisms, so it takes one implementation for all or one for each with + "
                f"between; got {self.implementation!r}"
            )
        return [RowName(name, options[name], one) for name, one in zip(names, taken, strict=True)]

    def changed(self, change: Callable[[RowName], RowName]) -> RowName:
        """The row with each of its parts changed."""
        return hybrid_of(self.turn, map(change, self.parts())) if self.is_hybrid else change(self)

    def layers(self, depth: int) -> list[RowName]:
        """Row of each layer of a network.

        Raises:
            ValueError: the network has fewer layers than the turn of a hybrid.
        """
        turn, parts = self.turn, {part.attention: part for part in self.parts()}
        if self.is_hybrid and depth < len(turn):
            raise ValueError(
                f"{self.attention} takes at least {len(turn)} layers, each with weights of its own, and the network has {depth}; "
                "take a deeper network, or a hybrid of fewer layers"
            )
        return [parts[turn[at % len(turn)]] for at in range(depth)]


def hybrid_of(turn: Sequence[str], parts: Iterable[RowName]) -> RowName:
    """Hybrid whose layers take mechanisms in turn; a turn that repeats itself is shortened.

    Args:
        turn: mechanism of each layer, two or more different ones.
        parts: row of each mechanism, in the order of their first layers.
    """
    rows = list(parts)
    period = next(n for n in range(1, len(turn) + 1) if len(turn) % n == 0 and list(turn) == list(turn[:n]) * (len(turn) // n))
    options = {f"{row.attention}.{name}": value for row in rows for name, value in row.options.items()}
    taken = [row.implementation for row in rows]
    attention = "+".join(f"{times}{name}" for times, name in _runs(turn[:period]))
    return RowName(attention, options, taken[0] if len(set(taken)) == 1 else "+".join(taken))


def _runs(turn: Iterable[str]) -> list[tuple[str, str]]:
    """Neighbouring layers of one mechanism: their count with ``*``, empty for one layer, and the mechanism."""
    counted = [(len(list(run)), name) for name, run in groupby(turn)]
    return [(f"{count}*" if count > 1 else "", name) for count, name in counted]


def written(value: Any) -> str:
    """The value of an option as a row has it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.name if isinstance(value, Enum) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)

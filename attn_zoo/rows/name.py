"""Name of a row in a table, read and printed: a mechanism, or a hybrid of several, with its options and implementation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby, product
from typing import Any, Protocol

NAME = re.compile(r"[^\s:,|=@*+'\"\[\](){}]+")
"""Pattern for the name of a mechanism, implementation or option."""
TIMES = re.compile(r"([1-9]\d{0,3})\s*\*\s*(.*)", re.DOTALL)
"""Pattern for a part of a hybrid such as ``3*linformer``: the number of layers, ``*``, and their mechanism with any options."""
_PLAIN = re.compile(r"[\w.+/-]+")
FORM = (
    "NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...], such as linformer:sdpa[projected_length=64], or a hybrid, whose layers "
    "take several mechanisms in turn, such as 3*linformer+softmax"
)


@dataclass(frozen=True, slots=True)
class RowName:
    """Name of a row: a mechanism, or a hybrid (a network whose layers have different mechanisms), with options and an
    implementation."""

    attention: str
    """Name of the mechanism; for a hybrid the pattern of its layers, such as ``3*linformer+softmax``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Given options; all others have their defaults."""
    implementation: str = "auto"
    """Name of the implementation. A hybrid has one name for all mechanisms, or one per mechanism, joined by ``+`` in the order
    of the pattern."""

    def __str__(self) -> str:
        if self.is_hybrid:
            parts = {part.attention: str(part) for part in self.parts()}
            return "+".join(f"{times}{parts[name]}" for times, name in _runs(self.turn))
        implementation = "" if self.implementation == "auto" else f":{self.implementation}"
        options = ",".join(f"{name}={written(value)}" for name, value in self.options.items())
        return f"{self.attention}{implementation}" + (f"[{options}]" if options else "")

    def names(self, attention: str, options: Mapping[str, Any], implementation: str) -> bool:
        """Return True if a layer with this mechanism, these options and this implementation matches the row.

        Options that the row leaves out match any value, and the row's implementation ``auto`` matches any implementation.
        """
        same = all(name in options and written(options[name]) == written(value) for name, value in self.options.items())
        return attention == self.attention and same and self.implementation in ("auto", implementation)

    @property
    def is_hybrid(self) -> bool:
        """True if the layers of the row's network use different mechanisms."""
        return "+" in self.attention

    @property
    def turn(self) -> tuple[str, ...]:
        """Mechanism of each layer until the pattern of a hybrid repeats: ``3*linformer+softmax`` has four entries. A row that is
        not a hybrid has one entry.

        Raises:
            ValueError: ``attention`` is not a valid pattern of a hybrid.
        """
        found = self._pattern()
        if self.is_hybrid and not all(NAME.fullmatch(name) for name, _ in found):
            wanted = "parts joined by +, each NAME or COUNT*NAME, such as 3*linformer+softmax"
            raise ValueError(f"a hybrid must have {wanted}; got {self.attention!r}")
        return tuple(name for name, times in found for _ in range(times))

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Mechanisms of the row, each once, in the order of their first layers. If ``attention`` is not a valid pattern of a
        hybrid, they are its parts."""
        return tuple(dict(self._pattern()))

    def _pattern(self) -> list[tuple[str, int]]:
        """Return the mechanism and the number of layers of each part of ``attention``, whether they are valid or not."""
        if not self.is_hybrid:
            return [(self.attention, 1)]
        found = [(TIMES.fullmatch(part), part) for part in self.attention.split("+")]
        return [(times[2], int(times[1])) if times else (part, 1) for times, part in found]

    def parts(self) -> list[RowName]:
        """Return one row for each mechanism of a hybrid, in the order of their first layers. For any other row, return the row
        itself.

        Raises:
            UnknownNameError: an option belongs to no mechanism of the hybrid.
            ValueError: the number of implementations is neither one nor the number of mechanisms.
        """
        if not self.is_hybrid:
            return [self]
        names = list(dict.fromkeys(self.turn))
        options: dict[str, dict[str, Any]] = {name: {} for name in names}
        for key, value in self.options.items():
            owner, _, option = key.partition(".")
            if owner not in options or not option:
                from attn_zoo.contract import UnknownNameError  # imported here because it loads PyTorch

                raise UnknownNameError(f"option of the hybrid {self.attention}", key, [f"{name}.OPTION" for name in names])
            options[owner][option] = value
        taken = self.implementation.split("+")
        taken = taken * len(names) if len(taken) == 1 else taken
        if len(taken) != len(names):
            raise ValueError(
                f"the hybrid {self.attention} must have one implementation for all of its {len(names)} mechanisms, or one for "
                f"each, joined by +; got {self.implementation!r}"
            )
        return [RowName(name, options[name], one) for name, one in zip(names, taken, strict=True)]

    def changed(self, change: Callable[[RowName], RowName]) -> RowName:
        """Return the result of the function ``change`` for this row. For a hybrid, the function changes the row of each
        mechanism."""
        return hybrid_of(self.turn, map(change, self.parts())) if self.is_hybrid else change(self)

    def layers(self, depth: int) -> list[RowName]:
        """Return the row of each layer of a network with ``depth`` layers.

        Raises:
            ValueError: the network has fewer layers than the pattern of the hybrid.
        """
        turn, parts = self.turn, {part.attention: part for part in self.parts()}
        if self.is_hybrid and depth < len(turn):
            raise ValueError(
                f"the hybrid {self.attention} needs at least {len(turn)} layers with weights of their own, but the network "
                f"has {depth}. Choose a deeper network, or a hybrid of fewer layers"
            )
        return [parts[turn[at % len(turn)]] for at in range(depth)]


class _Run(Protocol):
    @property
    def attention(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def implementation(self) -> str: ...


def row_of(run: _Run) -> RowName:
    """Return the name of a run's row: its mechanism or hybrid, with options and implementation."""
    return RowName(run.attention, run.options, run.implementation)


def hybrid_of(turn: Sequence[str], parts: Iterable[RowName]) -> RowName:
    """Return the row of the hybrid whose layers follow the pattern ``turn``. If ``turn`` repeats a shorter pattern, the row names
    the shorter one.

    Args:
        turn: mechanism of each layer; at least two of them differ.
        parts: row of each mechanism, in the order of their first layers.
    """
    rows = list(parts)
    period = next(n for n in range(1, len(turn) + 1) if len(turn) % n == 0 and list(turn) == list(turn[:n]) * (len(turn) // n))
    options = {f"{row.attention}.{name}": value for row in rows for name, value in row.options.items()}
    taken = [row.implementation for row in rows]
    attention = "+".join(f"{times}{name}" for times, name in _runs(turn[:period]))
    return RowName(attention, options, taken[0] if len(set(taken)) == 1 else "+".join(taken))


def read_rows(text: str) -> list[RowName]:
    """Return the rows that a text names: one, or several if an option has alternative values. Options remain text.

    Raises:
        ValueError: the text is not a row.
    """
    if len(pieces := split(text, "+")) > 1:
        return _read_hybrids(pieces, text)
    head, bracket, inside = text.strip().partition("[")
    name, colon, implementation = (part.strip() for part in head.partition(":"))
    named = NAME.fullmatch(name) and (not colon or NAME.fullmatch(implementation))
    if not named or (bracket and not inside.endswith("]")):
        raise ValueError(f"a configuration must be written {FORM}; got {text!r}")
    values: dict[str, list[str]] = {}
    for pair in split(inside[:-1]) if bracket else []:
        option, _, value = (part.strip() for part in pair.partition("="))
        if not NAME.fullmatch(option) or not value:
            raise ValueError(f"options in brackets must be written OPTION=VALUE, separated by commas; got {pair!r} in {text!r}")
        if option in values:
            raise ValueError(f"each option must be given once, but {option} is given twice in {text!r}. Leave one of them out")
        values[option] = [_read(part, text) for part in split(value, "|")]
    return [RowName(name, dict(zip(values, chosen, strict=True)), implementation or "auto") for chosen in product(*values.values())]


def _read_hybrids(pieces: Sequence[str], text: str) -> list[RowName]:
    """Return the hybrids of a text from its pieces between ``+``. If a mechanism is repeated, its options must be given in only one
    piece, or be the same in all."""
    turn: list[str] = []
    given: dict[str, list[RowName]] = {}
    for piece in pieces:
        times = TIMES.fullmatch(piece)
        rows = read_rows(times[2] if times else piece)
        name = rows[0].attention
        bare = [RowName(name)]
        if given.get(name, bare) != bare and rows not in (bare, given[name]):
            raise ValueError(
                f"{name} must have the same options in all layers of a hybrid, but has different options in {text!r}. Give its "
                "options once"
            )
        turn += [name] * (int(times[1]) if times else 1)
        given[name] = given[name] if rows == bare and name in given else rows
    if len(given) == 1:
        raise ValueError(
            f"a hybrid must have at least two different mechanisms, but all layers of {text!r} are {turn[0]}. Write {turn[0]}"
        )
    return [hybrid_of(turn, parts) for parts in product(*given.values())]


def split(text: str, separator: str = ",") -> list[str]:
    """Return the parts of a text between separators that are outside of brackets and quotes. An empty text has no parts.

    Raises:
        ValueError: a bracket or quote is not closed, or is closed without being open.
    """
    parts, open_brackets, quote, escaped = [""], 0, "", False
    for character in text:
        if quote:
            quote, escaped = ("" if character == quote and not escaped else quote), character == "\\" and not escaped
        elif character in "'\"":
            quote = character
        else:
            open_brackets += (character in "[({") - (character in "])}")
        if open_brackets < 0:
            break
        if character == separator and not open_brackets and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if open_brackets or quote:
        raise ValueError(f"brackets and quotes must come in pairs; got {text!r}. Write a configuration as {FORM}")
    return [part.strip() for part in parts] if text.strip() else []


def _runs(turn: Iterable[str]) -> list[tuple[str, str]]:
    """Return groups of neighbouring layers with the same mechanism, as a count with ``*`` (empty for one layer) and the
    mechanism.
    """
    counted = [(len(list(run)), name) for name, run in groupby(turn)]
    return [(f"{count}*" if count > 1 else "", name) for count, name in counted]


def written(value: Any) -> str:
    """Return the value of an option as text, as it stands in the name of a row."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.name if isinstance(value, Enum) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _read(part: str, text: str) -> str:
    """Return a value without its quotes."""
    if not part:
        raise ValueError(f"there must be a value on both sides of each '|'; got {text!r}")
    if part[0] == '"':
        try:
            return str(json.loads(part))
        except ValueError as error:
            raise ValueError(f"a value in double quotes must be valid JSON; got {part} in {text!r}") from error
    return part[1:-1] if part[0] == "'" else part

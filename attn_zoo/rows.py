"""Rows by name: ``NAME[:IMPLEMENTATION][[OPTION=VALUE,...]]``, such as ``linformer:sdpa[projected_length=64]``, read and printed.

Every command names a mechanism, its hyperparameters and its implementation this way, and tables print the same words. In a list,
rows stand between commas, and ``OPTION=A|B`` stands for a row with each of the values. Loads without PyTorch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import product
from typing import Any

FORM = "NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...], such as linformer:sdpa[projected_length=64]"

_NAME = re.compile(r"[^\s:,|=@'\"\[\](){}]+")
_PLAIN = re.compile(r"[\w.+/-]+")


@dataclass(frozen=True, slots=True)
class RowName:
    """A mechanism, the hyperparameters that are given, and an implementation."""

    attention: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that are given; the others take their defaults."""
    implementation: str = "auto"

    def __str__(self) -> str:
        implementation = "" if self.implementation == "auto" else f":{self.implementation}"
        options = ",".join(f"{name}={written(value)}" for name, value in self.options.items())
        return f"{self.attention}{implementation}" + (f"[{options}]" if options else "")

    def names(self, attention: str, options: Mapping[str, Any], implementation: str) -> bool:
        """Whether a layer is what this row says; where it says nothing, any is."""
        same = all(name in options and written(options[name]) == written(value) for name, value in self.options.items())
        return attention == self.attention and same and self.implementation in ("auto", implementation)


def rows_of(texts: str | Iterable[str], *, plain: str = "") -> list[RowName]:
    """Rows that a text or several name, their options in the types of the mechanism's own.

    Args:
        texts: rows with commas between them; ``OPTION=A|B`` stands for a row with each value.
        plain: why no row may name an implementation, for a command that runs the plain form of all.

    Raises:
        UnknownNameError: no such attention, implementation or option.
        ValueError: a text is no row, a row is named twice, none is named, or an option breaks its rule.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    read = [row for text in given for part in split(text) for row in read_rows(part)]
    rows = list(map(typed, read))
    if not rows:
        raise ValueError(f"name at least one row: {FORM}")
    if plain and (named := [row for row in rows if row.implementation != "auto"]):
        raise ValueError(f"{named[0]}: {plain}; leave :{named[0].implementation} away")
    written = list(map(str, rows))
    for at, name in enumerate(written):
        if name in written[:at]:
            raise ValueError(f"{name} is named twice; rows of a list are different")
    return rows


def read_rows(text: str) -> list[RowName]:
    """The row of a text, or the rows where an option has alternatives; options stay text.

    Raises:
        ValueError: the text is no row.
    """
    head, bracket, inside = text.strip().partition("[")
    name, colon, implementation = (part.strip() for part in head.partition(":"))
    named = _NAME.fullmatch(name) and (not colon or _NAME.fullmatch(implementation))
    if not named or (bracket and not inside.endswith("]")):
        raise ValueError(f"a row is {FORM}; got {text!r}")
    values: dict[str, list[str]] = {}
    for pair in split(inside[:-1]) if bracket else []:
        option, _, value = (part.strip() for part in pair.partition("="))
        if not _NAME.fullmatch(option) or not value:
            raise ValueError(f"options of a row are OPTION=VALUE with commas between them; got {pair!r} in {text!r}")
        if option in values:
            raise ValueError(f"option {option} is given twice in {text!r}")
        values[option] = [_read(part, text) for part in split(value, "|")]
    return [RowName(name, dict(zip(values, chosen, strict=True)), implementation or "auto") for chosen in product(*values.values())]


def split(text: str, separator: str = ",") -> list[str]:
    """Parts of a text between separators outside brackets and quotes; none of a text that is empty.

    Raises:
        ValueError: a bracket or quote is not closed, or closed without being open.
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
        raise ValueError(f"brackets and quotes of a row stand in pairs; got {text!r}. A row is {FORM}")
    return [part.strip() for part in parts] if text.strip() else []


def typed(row: RowName) -> RowName:
    """The row with its options in the types of the mechanism's own.

    Raises:
        UnknownNameError: no such attention, implementation or option.
        ValueError: an option has the wrong type or breaks its rule.
    """
    from attn_zoo.contract import UnknownNameError  # here, as it loads PyTorch
    from attn_zoo.registry import card, stated_options

    entry = card(row.attention)
    if row.implementation not in (known := ("auto", *entry.implementations)):
        raise UnknownNameError(f"implementation of {row.attention}", row.implementation, known)
    options = typed_options(f"attention {row.attention}", entry.options, row.options)
    stated_options(entry, options)  # the rules of the mechanism
    plain = {name: value.name if isinstance(value, Enum) else value for name, value in options.items()}
    return RowName(row.attention, plain, row.implementation)


def typed_options(owner: str, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Given values of fields of a dataclass in the fields' types; text becomes a number, truth value or member of an enumeration.

    Raises:
        UnknownNameError: no such field.
        ValueError: a value cannot be converted.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from attn_zoo.contract import UnknownNameError

    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise UnknownNameError(f"option of {owner}", name, known)
    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, False)  # as that of a frozen dataclass is
    for name, value in given.items():
        try:
            node[name] = value
        except OmegaConfBaseException as error:
            raise ValueError(f"{owner}, option {name}: {str(error).splitlines()[0]}") from error
    container = OmegaConf.to_container(node)
    assert isinstance(container, dict)
    return {name: container[name] for name in given}


def hyperparameters(rows: Sequence[RowName]) -> list[str | None]:
    """For each row the one option along which rows of its mechanism and implementation make a curve, or None."""
    found: list[str | None] = []
    for row in rows:
        alike = [other.options for other in rows if (other.attention, other.implementation) == (row.attention, row.implementation)]
        names = dict.fromkeys(name for options in alike for name in options)
        varied = [name for name in names if len({str(options.get(name)) for options in alike}) > 1]
        found.append(varied[0] if len(varied) == 1 else None)
    return found


def _read(part: str, text: str) -> str:
    """A value without its quotes."""
    if not part:
        raise ValueError(f"a value is missing between '|' in {text!r}")
    if part[0] == '"':
        try:
            return str(json.loads(part))
        except ValueError as error:
            raise ValueError(f"a value in double quotes is written as in JSON; got {part} in {text!r}") from error
    return part[1:-1] if part[0] == "'" else part


def written(value: Any) -> str:
    """The value of an option as a row has it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.name if isinstance(value, Enum) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)

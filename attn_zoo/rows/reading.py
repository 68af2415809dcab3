"""Rows of registered mechanisms, from text or arguments. Options are converted to the types that the mechanisms declare."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Any

from attn_zoo.rows.name import FORM, RowName, read_rows, split


def rows_of(texts: str | Iterable[str], *, plain: str = "", hybrids: bool = False) -> list[RowName]:
    """Return the rows that one or more texts name. Their options have the types that the mechanisms declare.

    Args:
        texts: rows separated by commas; ``OPTION=A|B`` gives one row for each value.
        plain: reason why rows must not name an implementation, for the error message. If it is empty, rows may name one.
        hybrids: True to allow hybrids, which need a network of several layers.

    Raises:
        UnknownNameError: a mechanism, implementation or option is unknown.
        ValueError: a text is not a row, no row is named, a row is named twice, an option breaks its rule, a row names an
            implementation although ``plain`` is given, or a row is a hybrid although ``hybrids`` is False.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    read = [row for text in given for part in split(text) for row in read_rows(part)]
    rows = list(map(typed, read))
    if not rows:
        raise ValueError(f"at least one configuration must be named. Write it as {FORM}")
    if plain and (named := [row for row in rows if row.implementation != "auto"]):
        raise ValueError(f"{named[0]}: {plain}. Leave out :{named[0].implementation}")
    if not hybrids and (mixed := [row for row in rows if row.is_hybrid]):
        parts = " and ".join(map(str, mixed[0].parts()))
        raise ValueError(f"this command needs single mechanisms, but {mixed[0]} is a hybrid. Name {parts} separately")
    for at, row in enumerate(rows):
        if row in rows[:at]:
            raise ValueError(f"the configurations of a list must be different, but {row} is named twice. Leave one of them out")
    return rows


def only_row(key: str, text: str, *, hybrids: bool = False) -> RowName:
    """Return the only row that a text names. ``rows_of`` describes how a row is written.

    Args:
        key: key or option of the command line, for messages.

    Raises:
        UnknownNameError: as in ``rows_of``.
        ValueError: as in ``rows_of``, or the text names several rows.
    """
    row, *others = rows_of(text, hybrids=hybrids)
    if others:
        raise ValueError(f"{key} must name one configuration; got {1 + len(others)} in {text!r}")
    return row


def row_of_arguments(attention: str, implementation: str, options: Mapping[str, Any]) -> RowName:
    """Return the row for the arguments of a function. ``attention`` can be a hybrid, written as on the command line.

    Raises:
        UnknownNameError: a hybrid names an unknown mechanism, implementation or option.
        ValueError: the hybrid is malformed, an option has alternative values, or an option breaks its rule.
    """
    if "+" not in attention:
        return RowName(attention, options, implementation)
    rows = rows_of(attention, hybrids=True)
    if len(rows) > 1:
        raise ValueError(f"a model must have one configuration; got {len(rows)} in {attention!r}")
    taken = rows[0].implementation if implementation == "auto" else implementation
    return replace(rows[0], options={**rows[0].options, **options}, implementation=taken)


def typed(row: RowName) -> RowName:
    """Return the row with options of the types that its mechanism declares, after checking their values.

    Raises:
        UnknownNameError: the mechanism, an implementation or an option is unknown.
        ValueError: an option has the wrong type or breaks its rule.
    """
    return row.changed(_typed)


def _typed(row: RowName) -> RowName:
    from attn_zoo.contract import UnknownNameError  # imported here because it loads PyTorch
    from attn_zoo.registry import card, stated_options

    entry = card(row.attention)
    if row.implementation not in (known := ("auto", *entry.implementations)):
        raise UnknownNameError(f"implementation of {row.attention}", row.implementation, known)
    options = convert_options(row).options
    stated_options(entry, options)  # checks the rules of the mechanism
    return replace(row, options={name: value.name if isinstance(value, Enum) else value for name, value in options.items()})


def attention_version(attention: str) -> int:
    """Return the version on the card of a mechanism. For a hybrid, return 1 plus the sum of (version - 1) over its mechanisms."""
    from attn_zoo.registry import card

    return 1 + sum(card(name).version - 1 for name in dict.fromkeys(RowName(attention).turn))


def convert_options(row: RowName) -> RowName:
    """Return the row with options converted by ``typed_options``. The mechanism's rules for their values are not checked.

    Raises:
        UnknownNameError: the mechanism or an option is unknown.
        ValueError: an option cannot be converted.
    """
    from attn_zoo.contract.options import typed_options  # imported here because it loads PyTorch
    from attn_zoo.registry import card

    def convert(part: RowName) -> RowName:
        return replace(part, options=typed_options(f"attention {part.attention}", card(part.attention).options, part.options))

    return row.changed(convert)


def option(default: Any, words: str) -> Any:
    """Return a dataclass field for one key of the command line, with its default and its help text (``words``)."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata={"help": words})
    return field(default=default, metadata={"help": words})


def hyperparameters(rows: Sequence[RowName]) -> list[str | None]:
    """Return, for each row, the name of the option that varies among the rows with the same mechanism and implementation.

    If no option or several options vary, the name is None.
    """
    found: list[str | None] = []
    for row in rows:
        alike = [other.options for other in rows if (other.attention, other.implementation) == (row.attention, row.implementation)]
        names = dict.fromkeys(name for options in alike for name in options)
        varied = [name for name in names if len({str(options.get(name)) for options in alike}) > 1]
        found.append(varied[0] if len(varied) == 1 else None)
    return found

"""Parsing of row names from text or arguments. Options are converted to the types that the mechanisms declare."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import product
from typing import Any, get_args, get_origin, get_type_hints

from attn_zoo.rows.name import NAME, TIMES, RowName, hybrid_of

FORM = (
    "NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...], such as linformer:sdpa[projected_length=64], or a hybrid, whose layers "
    "take several mechanisms in turn, such as 3*linformer+softmax"
)


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


def attention_version(row: RowName) -> int:
    """Return the version on the card of a row's mechanism. For a hybrid, return 1 plus the sum of (version - 1) over its
    mechanisms.
    """
    from attn_zoo.registry import card

    return 1 + sum(card(part.attention).version - 1 for part in row.parts())


def convert_options(row: RowName) -> RowName:
    """Return the row with options converted by ``typed_options``. The mechanism's rules for their values are not checked.

    Raises:
        UnknownNameError: the mechanism or an option is unknown.
        ValueError: an option cannot be converted.
    """
    from attn_zoo.registry import card

    def convert(part: RowName) -> RowName:
        return replace(part, options=typed_options(f"attention {part.attention}", card(part.attention).options, part.options))

    return row.changed(convert)


def option(default: Any, words: str) -> Any:
    """Return a dataclass field for one key of the command line, with its default and its help text (``words``)."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy.copy(default), metadata={"help": words})
    return field(default=default, metadata={"help": words})


def typed_options(owner: str, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` (values by name of field) with values of the types that the dataclass ``kind`` declares. Text becomes a
    number, a truth value or a member of an enumeration.

    Args:
        owner: name of the mechanism or task, for messages.

    Raises:
        UnknownNameError: a name is not a field.
        ValueError: a value cannot be converted.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from attn_zoo.contract import UnknownNameError

    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise UnknownNameError(f"option of {owner}", name, known)
    hints = _hints(kind)
    loose = {name: value for name, value in given.items() if type(value) is not hints[name] or isinstance(value, str)}
    if not loose:  # OmegaConf takes milliseconds
        return dict(given)
    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, False)  # nodes of frozen dataclasses are read-only
    for name, value in loose.items():
        try:
            node[name] = value
        except OmegaConfBaseException as error:
            raise ValueError(wrong_value(f"{owner}, option {name}", kind, error, name)) from error
    container = OmegaConf.to_container(node)
    assert isinstance(container, dict)
    return {name: container[name] if name in loose else value for name, value in given.items()}


_hints = cache(get_type_hints)


def wrong_value(label: str, kind: type, error: Any, key: str = "") -> str:
    """Return the error message for a value that OmegaConf cannot convert to the type of its field.

    Args:
        label: name of the field for the message.
        kind: dataclass that has the field, possibly in a nested dataclass.
        key: key of the field, with dots for nested dataclasses; by default the key that the error states.
    """
    *above, last = re.sub(r"\[.*", "", key or error.full_key).split(".")
    for name in above:
        kind = get_type_hints(kind).get(name, Any)
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    return f"{label} must be {_kind_in_words(hints.get(last))}; got {error.value!r}"


def _kind_in_words(kind: Any) -> str:
    """Return in words which values a field of a type takes."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if type(None) in get_args(kind):
        return f"{' or '.join(map(_kind_in_words, parts))} or null"
    if get_origin(kind) is list:
        each = {int: "[64,128]", float: "[0.1,0.2]"}.get(parts[0], "[a,b]")
        return f"a list of {_PLURALS.get(parts[0], 'values')}, such as {each}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(kind.__members__)}"
    return _KINDS.get(get_origin(kind) or kind, "a value of another type")


_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "of the form {KEY: VALUE}"}
_PLURALS = {int: "integers", float: "numbers", str: "texts"}


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

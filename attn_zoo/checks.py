"""Checks of single arguments: type, bounds or name. A check raises a ValueError that names the argument, the rule and the
value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

MOST = 2**31 - 1
"""Upper bound of counts such as lengths, widths and steps."""

BOUND = "bound"
"""Key of an option's ``Bound`` in the metadata of its dataclass field (see ``contract.options``)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VALUES = ("true", "false", "null", "nan", "inf", "infinity")
"""Words that the command line reads as values, not as names."""
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def check_whole(name: str, value: object, least: int = 1, most: int = MOST) -> None:
    """Raise a ValueError unless a value is an integer from ``least`` to ``most``. True and 2.0 are not integers here.

    Args:
        name: name of the argument, for the message.
    """
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be an integer >= {least}; got {value!r}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}; got {value}")


def check_shared_heads(owner: str, key_value_heads: object, heads: int) -> None:
    """Raise a ValueError unless each head of keys and values is shared by equally many heads of queries.

    Args:
        owner: name of the layer or mechanism, for the message.
        key_value_heads: number of heads of keys and values; 0 means as many as ``heads``.
        heads: number of heads of queries.
    """
    check_whole(f"{owner}.key_value_heads", key_value_heads, 0)
    assert isinstance(key_value_heads, int)
    if key_value_heads and heads % key_value_heads:
        raise ValueError(
            f"{owner}.key_value_heads must divide {owner}.heads, because each head of keys and values serves equally many heads of "
            f"queries; got {key_value_heads} for {heads} heads. Set 0 for as many as heads"
        )


def check_seed(value: object) -> None:
    """Raise a ValueError unless a seed is an integer from 0 to 2**63 - 1."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2**63 - 1; got {value!r}")


def check_number(name: str, value: object, least: float = -math.inf, *, above: float = -math.inf) -> None:
    """Raise a ValueError unless a value is a finite number within bounds. Each bound is optional.

    Args:
        name: name of the argument, for the message.
        least: lower bound that the value may equal.
        above: lower bound that the value must exceed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least:g}; got {value}")
    if not value > above:
        raise ValueError(f"{name} must be above {above:g}; got {value}")


def check_flag(name: str, value: object) -> None:
    """Raise a ValueError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {value!r}")


def check_text(name: str, value: object, known: Collection[str] = ()) -> None:
    """Raise a ValueError unless a value is a string and, if ``known`` is given, one of ``known``."""
    if not isinstance(value, str) or (known and value not in known):
        raise ValueError(f"{name} must be {' or '.join(map(repr, known)) or 'a string'}; got {value!r}")


def check_name(kind: str, name: object) -> None:
    """Raise a ValueError unless a name is valid on a command line and in a file name.

    Args:
        kind: kind of thing that has the name, for the message.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() in _VALUES:
        rule = "an identifier of at most 64 ASCII letters, digits and underscores, without a digit at its beginning"
        raise ValueError(f"the name of {kind} must be {rule}, and not one of {', '.join(_VALUES)}; got {name!a}")


def check_printed(owner: str, name: str, text: object) -> None:
    """Raise a ValueError unless a field of a card is text without control characters, which could change the terminal.

    Args:
        owner: mechanism or task of the card, for the message.
        name: name of the field, for the message.
        text: value of the field.
    """
    if not isinstance(text, str):
        raise ValueError(f"{owner}: {name} must be a string; got {text!r}")
    if _CONTROL.search(text):
        raise ValueError(f"{owner}: {name} must not contain control characters, because it is printed; got {text!a}")


def check_types(owner: str, kind: Any, given: Mapping[str, Any] | None = None) -> None:
    """Raise a ValueError unless the values of a dataclass's fields have the types of their annotations: int, float, bool or
    str.

    Args:
        owner: name of the thing that has the fields, for the message.
        kind: the dataclass, or an instance of it if ``given`` is None.
        given: values by name of the field; None to check the values of the instance.
    """
    for option, annotation in _annotations(kind if isinstance(kind, type) else type(kind)):
        if given is not None and option not in given:
            continue
        value = getattr(kind, option) if given is None else given[option]
        name = f"{owner}.{option}"
        if annotation == "int" and type(value) is not int and (bound := kind.__dataclass_fields__[option].metadata.get(BOUND)):
            raise ValueError(f"{name} must be an integer and {bound.words}; got {value!r}")
        if annotation == "int" and (type(value) is not int or abs(value) > MOST):
            raise ValueError(f"{name} must be an integer from -{MOST} to {MOST}; got {value!r}")
        if annotation == "float":
            check_number(name, value)
        if annotation == "bool":
            check_flag(name, value)
        if annotation == "str":
            check_text(name, value)


@cache
def _annotations(kind: Any) -> list[tuple[str, str]]:
    """Return the names of a dataclass's fields and of their types. They are cached, because each record of a table needs them."""
    types = ((field.name, field.type) for field in fields(kind))
    return [(name, given if isinstance(given, str) else getattr(given, "__name__", "")) for name, given in types]

"""Checks of options. Their errors name the option, its rule and its value."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

Choice = TypeVar("Choice", bound=Enum)


def require_range(name: str, value: float, low: float, high: float, meaning: str) -> None:
    """Check that ``value``, the value of the option ``name``, is from ``low`` to ``high``.

    Args:
        meaning: verb phrase for the message, such as "counts tokens".

    Raises:
        ValueError: the value is outside this range.
    """
    if not low <= value <= high:
        raise ValueError(f"{name} {meaning} and must be from {low:,} to {high:,}; got {value}")


def choice(name: str, value: object, kind: type[Choice]) -> Choice:
    """Return the member of the enumeration ``kind`` that has this value. ``name`` is the name of the option, for the error
    message.

    Raises:
        ValueError: no member has this value.
    """
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be {either(member.value for member in kind)}; got {value!r}") from None


def either(values: Iterable[object]) -> str:
    """Return two or more alternatives as a text such as ``a, b or c``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}"

"""Checks of options. Their errors name the option, its rule and its value."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

Choice = TypeVar("Choice", bound=Enum)


def require_range(name: str, value: float, low: float, high: float, meaning: str) -> None:
    """Check that the value of the option ``name`` is from ``low`` to ``high``.

    Args:
        meaning: what the option is, as a verb phrase such as "counts tokens", for the message.

    Raises:
        ValueError: the value is outside this range; the message states the option, its meaning, and its value.
    """
    if not low <= value <= high:
        raise ValueError(f"{name} {meaning} and must be from {low:,} to {high:,}; got {value}")


def choice(name: str, value: object, kind: type[Choice]) -> Choice:
    """Return the member of the enumeration ``kind`` that has this value. ``name`` is the name of the option, for the error
    message.

    Raises:
        ValueError: no member has this value; the message lists all values.
    """
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be {either(member.value for member in kind)}; got {value!r}") from None


def either(values: Iterable[object]) -> str:
    """Return two or more alternatives as a text such as ``a, b or c``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}"

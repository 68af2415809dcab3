"""Rules that entries share for their options: bounds, defaults that follow the length, and options added after records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from typing import Any

from attn_zoo.contract.claims import Geometry

_LATER = "added_later"
_RULE = "by_length"


@dataclass(frozen=True, slots=True)
class LengthRule:
    """Default of an option as a function of the geometry."""

    words: str
    """The rule as tables print it: ``min(256, n/4)``, with n keys and heads of width d."""
    number: Callable[[Geometry], int]


def by_length(words: str, number: Callable[[Geometry], int]) -> Any:
    """Field of an options dataclass whose default is computed from the geometry.

    The number must obey the rules of the options at every geometry, so that no length is refused by default. Where such an
    option is not given, ``registry.attention_options`` fills it in.

    Args:
        words: the rule as tables print it.
        number: the rule.
    """
    return field(kw_only=True, metadata={_RULE: LengthRule(words, number)})


def length_rules(options: type) -> Mapping[str, LengthRule]:
    """Rules of those fields of an options dataclass whose default follows the length."""
    return {option.name: option.metadata[_RULE] for option in fields(options) if _RULE in option.metadata}


def added_later(default: Any) -> Any:
    """Field of an options dataclass for an option added after records of the entry were committed.

    A spec leaves it out at its default, which must not change any result, so that the ids of older records hold.
    """
    return field(default=default, metadata={_LATER: True})


def left_out(option: Field[Any], value: object) -> bool:
    """True where a spec leaves out an option of this value."""
    return bool(option.metadata.get(_LATER)) and value == option.default


def plain_options(options: Any) -> dict[str, Any]:
    """Convert options to plain data: an enum member becomes its name, an option ``added_later`` is left out at its default."""
    given = {
        option.name: getattr(options, option.name)
        for option in fields(options)
        if not left_out(option, getattr(options, option.name))
    }
    return {name: value.name if isinstance(value, Enum) else value for name, value in given.items()}


def check_dropout(owner: str, rate: float) -> None:
    """Refuse a dropout rate outside [0, 1).

    Raises:
        ValueError: naming the mechanism, the rule and the rate.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{owner}.dropout is the share of weights set to zero, so it lies in [0, 1); got {rate}")


def check_counts(owner: str, **counts: int) -> None:
    """Refuse counts below 1.

    Raises:
        ValueError: naming the mechanism, the option, the rule and the number.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{owner}.{name} counts something, so it is at least 1; got {count}")

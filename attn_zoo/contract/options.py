"""Rules for options: types, bounds, defaults that depend on the length, and options that were added later."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from attn_zoo.checks import BOUND
from attn_zoo.contract.claims import Geometry
from attn_zoo.contract.errors import UnknownNameError

_LATER = "added_later"
_RULE = "by_length"


@dataclass(frozen=True, slots=True)
class Bound:
    """Rule that the values of an option must obey. Other values raise a ValueError."""

    holds: Callable[[Any], bool]
    words: str
    """Rule as the error message states it after the name of the option: ``must be at least 0, because it counts blocks``."""
    advice: Callable[[Any], str] = lambda value: ""
    """Function that maps a rejected value to the last part of the error message: what to write instead."""


def at_least(least: int, counted: str = "", advice: str = "") -> Bound:
    """Return the bound of an option that counts something, which must be ``least`` or more.

    Args:
        counted: what the option counts, for the error message.
        advice: what to do instead, for the error message.
    """
    reason = f", because it counts {counted}" if counted else ""
    return Bound(lambda count: count >= least, f"must be at least {least}{reason}", lambda _: advice)


def above_zero(role: str) -> Bound:
    """Return the bound of an option that must be finite and above 0.

    ``role`` states what the option does, for the error message, such as ``divides scores``.
    """
    return Bound(lambda number: 0 < number < math.inf, f"must be above 0, because it {role}")


def odd(counted: str, least: int = 1, advice: str = "") -> Bound:
    """Return the rule that an option must be odd and at least ``least``, such as the width of a window around a position.

    Args:
        counted: what the width counts, for the error message.
        least: smallest allowed width.
        advice: what to do instead, for the error message.
    """
    words = f"must be odd and at least {least}, because it counts {counted}"
    return Bound(lambda width: width >= least and width % 2 == 1, words, lambda width: f"Write {max(least, width + 1)}{advice}")


COUNT = at_least(1)
RATE = Bound(lambda rate: 0 <= rate < 1, "must be at least 0 and less than 1, because it is the share of weights set to zero")
REDRAW = Bound(lambda calls: calls >= 0, "must be at least 1 (a number of training calls) or 0 (never)")
WINDOW = replace(
    odd("the keys that a query sees, its own position included"),
    advice=lambda window: f"Write {max(1, window + 1)} to see {max(0, window // 2)} positions on either side",
)
WIDE = (("window", "is at least the number of tokens ({n}), so hardly any token is out of reach"),)
"""Value of ``Attention.saturates`` for mechanisms with a window. A window as wide as the input hides hardly any key."""


def bounded(default: Any, bound: Bound = COUNT) -> Any:
    """Return a dataclass field for an option with this default, whose values must obey ``bound``."""
    return field(default=default, metadata={BOUND: bound})


def check_bounds(owner: str, options: Any) -> None:
    """Raise a ValueError if any option in ``options`` breaks its bound. ``owner`` is the name of the mechanism, for the
    message.
    """
    for option in fields(options):
        bound, value = option.metadata.get(BOUND), getattr(options, option.name)
        if bound is not None and not bound.holds(value):
            advice = bound.advice(value)
            raise ValueError(f"{owner}.{option.name} {bound.words}; got {value}" + (f". {advice}" if advice else ""))


@dataclass
class NoOptions:
    """Options dataclass without any field, for mechanisms that have no options."""


@dataclass
class DropoutOptions:
    """Base class for the options of mechanisms with attention weights, to which dropout applies."""

    dropout: float = field(default=0.0, kw_only=True, metadata={BOUND: RATE})
    """Probability of setting an attention weight to zero in training."""


@dataclass
class SinkOptions:
    """Base class for the options of mechanisms whose softmax can have sinks, which are learned scores that belong to no key."""

    sinks: bool = field(default=False, kw_only=True, metadata={_LATER: True})
    """If true, the denominator of the softmax has one more term per head: the exponential of a learned number that starts at 0.
    This sink has no key, no value and no factor 1/√d. It lets a query attend to nothing.
    """


@dataclass(frozen=True, slots=True)
class LengthRule:
    """Rule that computes the default of an option from the sizes of the mechanism, such as the number of keys."""

    words: str
    """Rule as tables print it, such as ``min(256, n/4)``. n is the number of keys, and d the number of channels of a head."""
    number: Callable[[Geometry], int]


def by_length(words: str, number: Callable[[Geometry], int], bound: Bound = COUNT) -> Any:
    """Return a dataclass field for an option whose default is computed from the geometry.

    The default must be valid at every geometry. If the option is not given, ``registry.attention_options`` computes its value.

    Args:
        words: the rule as tables print it.
        number: function that computes the default from the geometry.
        bound: rule for values that are given explicitly.
    """
    return field(kw_only=True, metadata={_RULE: LengthRule(words, number), BOUND: bound})


def share_of_length(parts: int, *, most: int, least: int = 1, bound: Bound = COUNT) -> Any:
    """Return a dataclass field for an option whose default is n / ``parts``, rounded down, where n is the number of keys. The
    default is at least ``least`` and at most ``most``.
    """
    return by_length(f"min({most}, n/{parts})", lambda g: max(least, min(most, g.keys // parts)), bound)


def window_by_length() -> Any:
    """Return a dataclass field for the width of a window, which must be odd. By default, the window reaches n / 8 keys to each
    side, but at most 256. n is the number of keys.
    """
    return by_length("2 min(256, n/8) + 1", lambda g: 2 * min(256, g.keys // 8) + 1, WINDOW)


def length_rules(options: type) -> Mapping[str, LengthRule]:
    """Return the ``LengthRule`` of each option whose default depends on the length, by name of the option."""
    return {option.name: option.metadata[_RULE] for option in fields(options) if _RULE in option.metadata}


def added_later(default: Any) -> Any:
    """Return a dataclass field for an option that was added after runs had already been recorded without it.

    Its default must not change any result. The description of a run leaves the option out if its value is the default. The id of a
    run is computed from this description, so older ids do not change.
    """
    return field(default=default, metadata={_LATER: True})


def left_out(option: Field[Any], value: object) -> bool:
    """Return True if the description of a run leaves this option out, because it was added later and ``value`` is its default."""
    return bool(option.metadata.get(_LATER)) and value == option.default


def plain_options(options: Any) -> dict[str, Any]:
    """Return options as a dictionary of plain values. An enum member becomes its name. An option that was declared with
    ``added_later`` is left out if its value is the default.
    """
    plain = {}
    for option in fields(options):
        value = getattr(options, option.name)
        if not left_out(option, value):
            plain[option.name] = value.name if isinstance(value, Enum) else value
    return plain


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
        if hints[name] is bool and str(value).lower() not in _TRUTHS:  # OmegaConf takes every number except 0 for true
            raise ValueError(f"{owner}, option {name} must be {_KINDS[bool]}; got {value!r}")
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
_TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")
_PLURALS = {int: "integers", float: "numbers", str: "texts"}

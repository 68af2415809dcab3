"""Types of a record's fields as plain data, and bounds of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from attn_zoo.records.bounds import AT_LEAST_ONE, beyond_bounds
from attn_zoo.records.errors import RecordError
from attn_zoo.records.spec import Budget, ModelSpec

LARGEST = 2.0**64
"""Bound of every number in a record; tables could not square or sum much larger ones."""


Fault = tuple[str, str]
"""Path from the checked value to the faulty one, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Kind of a single value."""

    words: str
    types: tuple[type, ...]
    least: float = -LARGEST

    def fault(self, value: Any) -> Fault | None:
        """Fault of a value of another type or beyond the bounds; None where there is none."""
        if type(value) not in self.types:
            return "", f"must be a {self.words}, not {_shown(value)}"
        if type(value) is not str and not self.least <= value <= LARGEST:
            return "", f"must be a {self.words} between {self.least:g} and {LARGEST:g}, not {_shown(value)}"
        return None


@dataclass(frozen=True, slots=True)
class Items:
    """Kind of a list with items of one kind."""

    kind: Kind

    def fault(self, value: Any) -> Fault | None:
        """First fault of the list or an item; None where there is none."""
        if not isinstance(value, list | tuple):
            return "", f"must be a list, not {_shown(value)}"
        for at, item in enumerate(value):
            if found := self.kind.fault(item):
                return f"[{at}]{found[0]}", found[1]
        return None


@dataclass(frozen=True, slots=True)
class Fields:
    """Kind of a mapping."""

    required: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Kind] = field(default_factory=dict)
    others: Kind | None = None
    """Kind of the values of all other keys; None if no other key is allowed."""
    _named: Mapping[str, Kind] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {**self.optional, **self.required})

    def fault(self, value: Any) -> Fault | None:
        """First missing key, unknown key or fault of a value; None where there is none."""
        if not isinstance(value, Mapping):
            return "", f"must be a mapping, not {_shown(value)}"
        for name in self.required:
            if name not in value:
                return "", f"lacks {name!r}"
        named, others = self._named, self.others
        for name, item in value.items():
            kind = named.get(name, others)
            if kind is None:
                return "", f"has an unknown field {_shown(name)}"
            if found := kind.fault(item):
                return f".{name}{found[0]}", found[1]
        return None


@dataclass(frozen=True, slots=True)
class OrNone:
    """Kind of a value that may be None."""

    kind: Kind

    def fault(self, value: Any) -> Fault | None:
        """Fault of a value that is not None."""
        return None if value is None else self.kind.fault(value)


Kind = Leaf | Items | Fields | OrNone

TEXT, FLAG = Leaf("text", (str,)), Leaf("truth value", (bool,))
NUMBER, AMOUNT = Leaf("number", (int, float)), Leaf("number", (int, float), 0.0)
WHOLE, COUNT = Leaf("whole number", (int,)), Leaf("whole number", (int,), 0.0)
COUNT_FROM_1 = Leaf("whole number", (int,), 1.0)
ABOVE_ZERO = Leaf("number", (int, float), math.ulp(0.0))
SCALAR = OrNone(Leaf("number, text or truth value", (str, bool, int, float)))
FREE = Fields(others=SCALAR)
"""Mapping of names to single values."""
_BY_ANNOTATION: Mapping[str, Kind] = {"int": WHOLE, "float": NUMBER, "str": TEXT, "bool": FLAG}


def _typed(kind: type) -> Mapping[str, Kind]:
    return {option.name: _BY_ANNOTATION[str(option.type)] for option in fields(kind)}


_SPEC = Fields(
    required={
        **{"attention": TEXT, "task": TEXT, "options": FREE, "task_options": FREE, "implementation": TEXT},
        **{"model": Fields(optional=_typed(ModelSpec)), "budget": Fields(optional=_typed(Budget))},
        **{"seed": WHOLE, "device": TEXT, "precision": TEXT},
    },
    optional={"attention_version": COUNT},
)
_ATTENTION_CARD = Fields(
    {"name": TEXT, "title": TEXT},
    {
        "control": FLAG,
        "length_rules": Fields(others=TEXT),
        **dict.fromkeys(("paper", "equation", "time", "memory", "origin"), TEXT),
    },
    SCALAR,
)
_TASK_CARD = Fields(
    {**dict.fromkeys(("name", "title", "version", "metric"), TEXT), "length": OrNone(COUNT)},
    {
        **dict.fromkeys(("summary", "source", "licence", "problem", "criterion"), TEXT),
        **{"higher_is_better": FLAG, "data": OrNone(TEXT), "causal": OrNone(FLAG), "classes": OrNone(COUNT)},
    },
    SCALAR,
)
_ENVIRONMENT = Fields(
    optional={
        **dict.fromkeys(("cpu", "gpu", "torch", "started", "command", "commit", "backend", "cuda"), OrNone(TEXT)),
        **{"threads": COUNT, "processes": COUNT, "cores": OrNone(COUNT), "memory_bytes": COUNT, "dirty": OrNone(FLAG)},
        **{"denormals_flushed": FLAG, "resumed": Items(Fields(optional={"plugins": FREE}, others=SCALAR))},
        **dict.fromkeys(("plugins", "settings"), FREE),
    },
    others=SCALAR,
)
_TUNING = Fields(
    {"study": TEXT, "space": Fields(others=TEXT)},
    {**dict.fromkeys(("trial", "trials", "failed", "best_trial", "seed"), COUNT), "best_valid": NUMBER},
)
_POINT = Fields({"step": COUNT}, dict.fromkeys(("train_seconds", "train_loss", "valid"), OrNone(NUMBER)))
_RECORD = Fields(
    {
        **{"schema": COUNT, "protocol": TEXT, "run_id": TEXT, "status": TEXT, "reason": OrNone(TEXT), "spec": _SPEC},
        **{"attention_card": _ATTENTION_CARD, "task_card": _TASK_CARD, "environment": _ENVIRONMENT},
        "data": Fields(others=Fields({"digest": TEXT, "examples": COUNT})),
        **{"scores": Fields(others=NUMBER), "chance": OrNone(NUMBER), "curve": Items(_POINT)},
        **{"counted": Fields(optional=dict.fromkeys(AT_LEAST_ONE, COUNT_FROM_1), others=COUNT)},
        **{"measured": Fields(optional={"step_seconds_iqr": AMOUNT}, others=ABOVE_ZERO)},
        **{"stopped": OrNone(TEXT), "reached": Fields(others=OrNone(Fields(others=AMOUNT))), "flat": OrNone(FLAG)},
        **{"implementation": OrNone(TEXT), "warnings": Items(TEXT), "tuning": OrNone(_TUNING)},
    }
)


def check_shape(data: Mapping[str, Any]) -> None:
    """Check types of all fields, and sizes of all numbers, in the plain data of a record of the present schema.

    Raises:
        RecordError: there is a fault; the message names the first.
    """
    if found := _RECORD.fault(data):
        raise RecordError(f"the record{found[0]} {found[1]}")
    if words := next(beyond_bounds(data), None):
        raise RecordError(words)


def _shown(value: Any) -> str:
    """Value in a message, at most 80 letters long."""
    text = f"a number of {value.bit_length():,} bits" if type(value) is int and abs(value) > LARGEST else ascii(value)
    return text if len(text) <= 80 else f"{text[:79]}…"

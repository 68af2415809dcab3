"""Mechanisms with their options, from the words of a command: ``NAME.OPTION=VALUE`` and ``NAME.OPTION=V1,V2``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.cli.subjects import label, subjects_of
from attn_zoo.contract import UnknownNameError
from attn_zoo.registry import attentions


@dataclass(frozen=True, slots=True)
class Choice:
    """One mechanism with one set of options."""

    attention: str
    options: dict[str, Any]
    dial: str | None
    """Option along which it is one of several."""
    label: str


def choices_of(names: Sequence[str], settings: Sequence[str], dials: Sequence[str]) -> list[Choice]:
    """What is to be compared: each mechanism as its options are set, or once for every value of each of its dials.

    Args:
        names: mechanisms, or ``all``.
        settings: ``NAME.OPTION=VALUE`` for all that is done with the mechanism.
        dials: ``NAME.OPTION=V1,V2``.

    Raises:
        UnknownNameError: no such attention or option, or one that is not among ``names``.
        ValueError: a word is no such thing, something is said twice, or an option breaks its rule.
    """
    chosen = list(attentions()) if list(names) == ["all"] else list(names)
    subjects_of(chosen, {})  # refuses unknown and repeated names
    fixed: dict[str, dict[str, str]] = {}
    for word in settings:
        name, option, value = _parts("--set", "NAME.OPTION=VALUE", word, chosen)
        if fixed.setdefault(name, {}).setdefault(option, value) is not value:
            raise ValueError(f"--set gives {name}.{option} twice")
    turned: dict[str, dict[str, list[str]]] = {}
    for word in dials:
        name, option, value = _parts("--dial", "NAME.OPTION=V1,V2", word, chosen)
        values = [part.strip() for part in value.split(",")]
        if "" in values or len(set(values)) < len(values):
            raise ValueError(f"--dial takes different values with commas between them, NAME.OPTION=V1,V2; got {word!r}")
        if option in fixed.get(name, {}) or option in turned.get(name, {}):
            raise ValueError(f"{name}.{option} is given twice, by --dial and by --set or another --dial")
        turned.setdefault(name, {})[option] = values
    found = []
    for name in chosen:
        own = fixed.get(name, {})
        if name not in turned:
            found.append(_choice(name, own, None))
        for option, values in turned.get(name, {}).items():
            found += [_choice(name, {**own, option: value}, option) for value in values]
    return found


def _choice(name: str, given: dict[str, str], dial: str | None) -> Choice:
    (subject,) = subjects_of([name], {name: given})
    words = label(subject)
    if dial is not None and f" {dial}=" not in words:  # the value that is the default, too
        words += f" {dial}={subject.options[dial]}"
    return Choice(name, dict(subject.options), dial, words)


def _parts(flag: str, form: str, word: str, chosen: Sequence[str]) -> tuple[str, str, str]:
    left, equals, value = word.partition("=")
    name, dot, option = left.partition(".")
    if not (equals and dot and name and option and value):
        raise ValueError(f"{flag} takes {form}; got {word!r}")
    if name not in chosen:
        raise UnknownNameError("attention among those compared", name, chosen)
    return name, option, value

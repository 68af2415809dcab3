"""Layers as the command line names them: ``NAME`` (with ``auto``) or ``NAME:IMPLEMENTATION``, with options of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.bench import Subject
from attn_zoo.registry import card, stated_options


def subjects_of(texts: Sequence[str], settings: Mapping[str, Any]) -> list[Subject]:
    """The layers that ``NAME`` or ``NAME:IMPLEMENTATION`` ask for, with their own of the options.

    Raises:
        UnknownNameError: no such attention, implementation or option, or options of an attention that is not among them.
        ValueError: there is none, one twice, or an option breaks its rule.
    """
    names = [text.partition(":")[0] for text in texts]
    for owner in settings:
        if owner not in names:
            raise UnknownNameError("attention among attentions=[...]", str(owner), names)
    chosen = []
    for name, text in zip(names, texts, strict=True):
        implementation = text.partition(":")[2] or "auto"
        known = ("auto", *card(name).implementations)
        if implementation not in known:
            raise UnknownNameError(f"implementation of {name}", implementation, known)
        chosen.append(Subject(name, _options(name, settings.get(name, {})), implementation))
    if not chosen:
        raise ValueError("attentions=[...] must name at least one attention")
    if len(set(texts)) < len(texts):
        raise ValueError(f"attentions names one of them twice; got {list(texts)}")
    return chosen


def _options(name: str, given: Any) -> dict[str, Any]:
    """Options of an attention, the given ones in their right types; defaults that follow the length are left out."""
    if not isinstance(given, dict):
        raise ValueError(f"options are set one by one, set.{name}.OPTION=VALUE; got set.{name}={given}")
    kind = card(name).options
    for option in given:
        if option not in (known := [f.name for f in fields(kind)]):
            raise UnknownNameError(f"option of attention {name}", option, known)
    try:
        typed = OmegaConf.merge(OmegaConf.structured(kind), given)
    except OmegaConfBaseException as error:
        raise ValueError(f"set.{name}: {error}") from error
    return stated_options(card(name), {option: typed[option] for option in given})


def label_of(subject: Subject) -> str:
    """Name of a layer in tables: its attention, its implementation unless auto, and options that are not the defaults."""
    defaults = stated_options(card(subject.attention), {})
    changed = [f"{key}={value}" for key, value in subject.options.items() if defaults.get(key) != value]
    kernel = [] if subject.implementation == "auto" else [f"({subject.implementation})"]
    return " ".join([subject.attention, *kernel, *changed])

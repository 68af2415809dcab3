"""Layers to measure, from rows of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attn_zoo.cost.bench import Subject
from attn_zoo.registry import card, stated_options
from attn_zoo.rows import RowName, rows_of


def subjects_of(texts: Sequence[str], settings: Mapping[str, Any] | None = None) -> list[Subject]:
    """The layers that rows name, with every option but those whose default follows the length.

    Args:
        settings: options beside the rows, which ``attn-zoo measure`` took in earlier versions.

    Raises:
        UnknownNameError: no such attention, implementation or option.
        ValueError: a text is no row, a row is named twice, none is named, or an option breaks its rule.
    """
    if settings:
        raise ValueError(f"options stand in the row, attentions=[NAME[OPTION=VALUE]]; got set={dict(settings)}")
    rows = rows_of(texts)
    return [Subject(row.attention, stated_options(card(row.attention), row.options), row.implementation) for row in rows]


def label(subject: Subject) -> str:
    """Row of a layer as a table names it: without options that are the defaults."""
    defaults = stated_options(card(subject.attention), {})
    changed = {key: value for key, value in subject.options.items() if defaults.get(key) != value}
    return str(RowName(subject.attention, changed, subject.implementation))

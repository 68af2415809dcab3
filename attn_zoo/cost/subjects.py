"""Layers to measure, from rows of the command line."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.cost.bench import Subject
from attn_zoo.registry import card, stated_options
from attn_zoo.rows import RowName, rows_of


def subjects_of(texts: Sequence[str]) -> dict[str, Subject]:
    """The layers that rows name, with every option but those whose default follows the length, by their rows in tables.

    Raises:
        UnknownNameError: no such attention, implementation or option.
        ValueError: a text is no row, a row is named twice, none is named, or an option breaks its rule.
    """
    found = {}
    for row in rows_of(texts):
        entry = card(row.attention)
        defaults = stated_options(entry, {})
        subject = Subject(row.attention, stated_options(entry, row.options), row.implementation)
        changed = {key: value for key, value in subject.options.items() if defaults.get(key) != value}
        found[str(RowName(row.attention, changed, row.implementation))] = subject
    return found

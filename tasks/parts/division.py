"""Division of labelled rows into three splits without common content, in an order that does not depend on labels.

Order and division depend on a hash of the rows' content only, not on their order in a file, so that equal data in different
layouts give equal examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

Row = tuple[bytes, int]
"""Content of an example as bytes, and its class."""


class Division(NamedTuple):
    """Row indices of each split. Those of train and valid refer to the training rows, those of test to the test rows."""

    train: list[int]
    valid: list[int]
    test: list[int]


def divide(train: Sequence[Row], test: Sequence[Row], valid: int) -> Division:
    """Cut a validation split from the training rows, with the same proportions of classes.

    Training rows that also occur in the test rows are left out, and so are duplicates. The test split is complete, as published,
    with its duplicates.

    Args:
        train, test: published rows.
        valid: number of validation rows.

    Raises:
        ValueError: a class would have no training row.
    """
    tested = {content for content, _ in test}
    rows: dict[bytes, int] = {}
    for place in hashed_order(train):
        if train[place][0] not in tested:
            rows.setdefault(train[place][0], place)
    places = list(rows.values())
    chosen = set(_in_proportion(places, train, valid))
    return Division(
        [place for place in places if place not in chosen], [place for place in places if place in chosen], hashed_order(test)
    )


def hashed_order(rows: Sequence[Row]) -> list[int]:
    """Return the indices of the rows, ordered by a hash of their content."""
    keys = [(hashlib.sha256(content).digest(), label) for content, label in rows]
    return sorted(range(len(rows)), key=keys.__getitem__)


def _in_proportion(places: Sequence[int], rows: Sequence[Row], count: int) -> list[int]:
    """Return the first indices of each class, ``count`` in total, with the same proportions of classes."""
    by_class: dict[int, list[int]] = {}
    for place in places:
        by_class.setdefault(rows[place][1], []).append(place)
    chosen: list[int] = []
    seen = 0
    for label in sorted(by_class):
        own = by_class[label]
        before, seen = seen, seen + len(own)
        share = count * seen // len(places) - count * before // len(places)
        if share >= len(own):
            raise ValueError(
                f"a validation split of {count} leaves no training example of class {label}, which has {len(own)} examples; "
                f"ask for fewer"
            )
        chosen += own[:share]
    return chosen

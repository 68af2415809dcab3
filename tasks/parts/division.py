"""Dividing labelled rows into three splits that share no content, in an order that tells nothing.

Order and division follow from the rows' content alone, by a hash: not from the order in which a file lists
them, so that the same data in another layout are the same examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

Row = tuple[bytes, int]
"""What a model is shown of an example, as bytes, and its class."""


class Division(NamedTuple):
    """Places of the rows of each split: those of train and valid in the training rows, those of test in the test rows."""

    train: list[int]
    valid: list[int]
    test: list[int]


def divide(train: Sequence[Row], test: Sequence[Row], valid: int) -> Division:
    """Cut a validation split from the training rows, in the proportions of the classes.

    Training rows that also stand in test are left out, and of equal ones one stays. The test is taken
    whole, as published, with the rows that stand in it twice.

    Args:
        valid: rows to cut.

    Raises:
        ValueError: no training row of some class would be left.
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
    """Places of the rows, ordered by a hash of what they hold."""
    keys = [(hashlib.sha256(content).digest(), label) for content, label in rows]
    return sorted(range(len(rows)), key=keys.__getitem__)


def _in_proportion(places: Sequence[int], rows: Sequence[Row], count: int) -> list[int]:
    """The first so many places of each class, ``count`` in all."""
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
                f"a validation split of {count} leaves no training example of class {label}, of which there are {len(own)}; "
                f"ask for fewer"
            )
        chosen += own[:share]
    return chosen

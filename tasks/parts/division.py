"""Division of labelled data into three splits without common content.

Examples are ordered by a hash of their content, so that the same data in another file format give the same splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

Row = tuple[bytes, int]
"""Content of an example as bytes, and its class."""


class Division(NamedTuple):
    """Indices of the examples of each split. The indices of ``train`` and ``valid`` refer to the published training split, and the
    indices of ``test`` to the published test split."""

    train: list[int]
    valid: list[int]
    test: list[int]


def divide(train: Sequence[Row], test: Sequence[Row], valid: int) -> Division:
    """Return the division of published data into three splits. The validation split is cut from the training data, with the same
    proportions of classes.

    Training examples that also occur in the test data are left out, and so are duplicates. The test split stays complete, with its
    duplicates.

    Args:
        train, test: published training and test examples.
        valid: number of validation examples.

    Raises:
        ValueError: a class would have no training example.
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
    """Return the indices of the examples, ordered by a hash of their content."""
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
                f"a validation split of {count} examples leaves no training example of class {label}, which has only "
                f"{len(own)}. Ask for fewer validation examples"
            )
        chosen += own[:share]
    return chosen

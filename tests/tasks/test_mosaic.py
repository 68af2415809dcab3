"""Mosaic of digits: an oracle solves it from its images alone; counts of digits or single positions do not."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from attn_zoo.tasks import mosaic
from attn_zoo.tasks.digits import divided
from torch import Tensor

from attn_zoo import build_task
from attn_zoo.contract import SPLITS, Split, Task

SMALL = {"train": 400, "valid": 50, "test": 50}


@lru_cache(maxsize=1)
def known() -> dict[bytes, str]:
    """Map each cell's image to its meaning: ``mark 3``, or ``digit 7 of train``."""
    found = {mark.tobytes(): f"mark {number}" for number, mark in enumerate(mosaic.MARKS)} | {bytes(64): "blank"}
    for split in SPLITS:
        part = divided(0)[split]
        found |= {image.tobytes(): f"digit {label} of {split}" for image, label in zip(part.levels, part.labels, strict=True)}
    assert len(found) == 8 + 1 + 1797, "no mark is a digit, and no digit blank"
    return found


def cells(task: Task, split: Split) -> list[list[str]]:
    """Return the meaning of each cell of each mosaic, row by row."""
    examples = task.examples(split)
    images = examples.batch(range(len(examples))).inputs
    levels = torch.unique(images)
    assert len(levels) == 17, "grey levels 0 to 16"
    whole = torch.searchsorted(levels, images).numpy().astype(np.uint8)
    grid = whole.shape[-1] // 8
    parts = whole.reshape(-1, grid, 8, grid, 8).transpose(0, 1, 3, 2, 4).reshape(-1, grid**2, 64)
    return [[known()[cell.tobytes()] for cell in one] for one in parts]


def labels(task: Task, split: Split) -> Tensor:
    return task.examples(split).labels()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"marks": 2},
        {"grid": 5, "marks": 8},
        {"grid": 4, "marks": 5},
        {"grid": 4, "marks": 7, "kinds": 8},
        {"kinds": 4, "question_row": True},
        {"grid": 4, "marks": 6, "kinds": 6, "question_row": True},
    ],
)
def test_a_mosaic_is_solved_by_reading(options):
    task = build_task("mosaic", **SMALL, **options)
    o = task.options
    for split in SPLITS:
        for read, label in zip(cells(task, split), labels(task, split).tolist(), strict=True):
            places = [at for at, what in enumerate(read) if at and what.startswith("mark")]
            assert len({read[at] for at in places}) == len(places) == o.marks
            assert all(at % o.grid < o.grid - 1 for at in places), "right of a mark there is a cell"
            beside = [read[at + 1] for at in places]
            assert len(set(beside)) == o.marks and all(what.startswith("digit") for what in beside)
            (at,) = [at for at in places if read[at] == read[0]]
            assert read[at + 1] == f"digit {label} of {split}", "each split shows digits of its own"


def test_a_mosaic_tells_nothing_by_counts_or_by_place():
    task = build_task("mosaic", marks=2, train=4000, valid=50, test=50)
    read, answers = cells(task, "train"), labels(task, "train").numpy()
    digits = np.array([[int(what.split()[1]) if what.startswith("digit") else -1 for what in one] for one in read])
    counts = np.stack([(digits == digit).sum(axis=1) for digit in range(10)], axis=1)
    assert counts.max() - counts.min() == 1, "every digit is equally frequent, up to those left over"
    answer_is_over = np.take_along_axis(counts, answers[:, None], axis=1)[:, 0] == counts.max()
    assert answer_is_over.mean() == pytest.approx((counts.max() == counts).mean(), abs=0.03)
    assert (np.bincount(answers) / 4000).max() < 0.12
    assert max((digits[:, at] == answers).mean() for at in range(36)) < 0.16, "one place in 17 holds the answer, the others do not"
    first = [next(at for at, what in enumerate(one) if at and what.startswith("mark")) for one in read]
    assert (digits[np.arange(4000), np.array(first) + 1] == answers).mean() == pytest.approx(0.5, abs=0.04), "of two marks"
    asked = np.array([int(one[0].split()[1]) for one in read])
    assert all((np.bincount(answers[asked == mark], minlength=10) / (asked == mark).sum()).max() < 0.17 for mark in range(2))


@pytest.mark.parametrize(("marks", "options"), [(5, {}), (2, {"question_row": True}), (7, {"kinds": 8}), (6, {"kinds": 9})])
def test_a_small_mosaic_tells_nothing_by_counts(marks, options):
    """With a mark more, the answer would be among the digits that occur, and others would be missing."""
    task = build_task("mosaic", grid=4, marks=marks, **SMALL, **options)
    for read in cells(task, "train"):
        counts = np.bincount([int(what.split()[1]) for what in read if what.startswith("digit")], minlength=10)
        assert (counts > 0).sum() == task.options.kinds and np.ptp(counts[counts > 0]) <= 1
    with pytest.raises(ValueError, match=f"must be from 1 to {marks}; got {marks + 1}"):
        build_task("mosaic", grid=4, marks=marks + 1, **options)


def test_a_mosaic_of_few_kinds_tells_which_digits_are_candidates_and_no_more():
    task = build_task("mosaic", kinds=4, question_row=True, train=4000, valid=50, test=50)
    read, answers = cells(task, "train"), labels(task, "train").numpy()
    assert all(one[1:6] == ["blank"] * 5 and "blank" not in one[6:] for one in read)
    digits = np.array([[int(what.split()[1]) if what.startswith("digit") else -1 for what in one] for one in read])
    counts = np.stack([(digits == digit).sum(axis=1) for digit in range(10)], axis=1)
    assert ((counts > 0).sum(axis=1) == 4).all() and (np.take_along_axis(counts, answers[:, None], axis=1) > 0).all()
    assert np.where(counts, counts, 99).min() == 7 and counts.max() == 8, "29 cells for 4 digits"
    is_most_frequent = np.take_along_axis(counts, answers[:, None], axis=1)[:, 0] == 8
    assert is_most_frequent.mean() == pytest.approx(0.25, abs=0.03), "one digit of four is over, whichever the answer is"
    assert max((digits[:, at] == answers).mean() for at in range(36)) < 0.31, "one place in 15 is the answer, others one of four"


def test_marks_differ_and_have_the_levels_of_digits():
    assert len({mark.tobytes() for mark in mosaic.MARKS}) == len(mosaic.MARKS) == 8
    assert set(np.unique(mosaic.MARKS)) == {0, mosaic.BRIGHTEST}
    assert divided(0)["train"].levels.max() == mosaic.BRIGHTEST

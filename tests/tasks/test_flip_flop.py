"""Flip-flop: a memory of one symbol solves it, and parts of the test split differ in the distance to the last write."""

from __future__ import annotations

import pytest
import torch
from attn_zoo.tasks import flip_flop
from oracles import assert_solved, everything, most_frequent

from attn_zoo import build_task
from attn_zoo.contract import UNASKED

SMALL = {"train": 600, "valid": 60, "test": 90}


@pytest.mark.parametrize("options", [{}, {"length": 40, "symbols": 9}, {"length": 6, "symbols": 50, "ignored": 0.5}])
def test_it_is_solved_by_remembering_the_latest_write(options):
    task = build_task("flip_flop", **SMALL, **options)

    def oracle(ids):
        assert ids[0] == flip_flop.WRITE and ids[-2] == flip_flop.READ
        answers, held = {}, -1
        for at in range(0, len(ids), 2):
            symbol = ids[at + 1] - flip_flop.FIRST_SYMBOL
            if ids[at] == flip_flop.WRITE:
                held = symbol
            if ids[at] == flip_flop.READ:
                assert symbol == held
                answers[at] = held
        return answers

    assert_solved(task, oracle)


def test_parts_of_the_test_ignore_more_and_less():
    task = build_task("flip_flop", symbols=16, train=2000, test=1500)
    (trained, _), (ids, labels) = (everything(task.examples(split)) for split in ("train", "test"))
    inner = slice(2, -2, 2)  # the first instruction always writes, the last reads
    parts = task.slices("test")
    assert list(parts) == list(flip_flop.PARTS)
    assert torch.stack(list(parts.values())).sum(0).eq(1).all() and [int(part.sum()) for part in parts.values()] == [500] * 3
    shares = [(ids[part][:, inner] == flip_flop.IGNORE).float().mean() for part in parts.values()]
    assert shares == pytest.approx([0.8, 0.98, 0.1], abs=0.01)
    assert (trained[:, inner] == flip_flop.IGNORE).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (trained[:, inner] == flip_flop.READ).float().mean() == pytest.approx(0.1, abs=0.01)
    assert task.slices("train")["in distribution"].all()
    rows, at = (labels != UNASKED).nonzero(as_tuple=True)
    before = ids[rows, (at - 1).clamp(min=0)] - flip_flop.FIRST_SYMBOL
    near = [float((before == labels[rows, at])[part[rows]].float().mean()) for part in parts.values()]
    assert near[2] > 0.85 and near[1] < near[0] < 0.35, "the symbol right before is the answer where hardly any is ignored"


def test_neither_place_nor_frequency_tells_the_answer():
    task = build_task("flip_flop", symbols=8, train=4000)
    _, labels = everything(task.examples("train"))
    _, at = (labels != UNASKED).nonzero(as_tuple=True)
    assert most_frequent(task.examples("train"), torch.zeros_like(at)) < 1 / 8 + 0.02
    assert most_frequent(task.examples("train"), at) < 1 / 8 + 0.06

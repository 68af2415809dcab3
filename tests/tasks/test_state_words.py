"""State tracking: applying the words one after another gives the labelled states."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from oracles import assert_solved, everything

from attn_zoo import build_task
from attn_zoo.contract import UNASKED

SMALL = {"train": 400, "valid": 50, "test": 50}


@pytest.mark.parametrize(
    ("group", "things", "swaps"),
    [("parity", 2, False), *((g, n, swaps) for g, n in (("s3", 3), ("s5", 5)) for swaps in (False, True))],
)
def test_it_is_solved_by_moving_things(group, things, swaps):
    task = build_task("state_words", group=group, swaps=swaps, length=20, test_length=50, **SMALL)
    elements = list(permutations(range(things)))
    used = set()

    def oracle(ids):
        places, answers = tuple(range(things)), {}
        for at, token in enumerate(ids):
            element = elements[token - 1]
            used.add(element)
            places = tuple(element[place] for place in places)
            answers[at] = elements.index(places)
        return answers

    assert_solved(task, oracle)
    moved = [sum(a != b for a, b in enumerate(element)) for element in used]
    assert set(moved) == {0, 2} if swaps else used == set(elements)
    assert task.spec.classes == len(elements)


def test_states_are_even_at_every_position():
    task = build_task("state_words", group="s3", train=6000)
    _, labels = everything(task.examples("train"))
    assert (labels != UNASKED).all()
    for at in (0, 1, 31):
        assert (labels[:, at].bincount(minlength=6) / 6000 - 1 / 6).abs().max() < 0.02


@pytest.mark.parametrize(
    ("test_length", "names"),
    [
        (32, ["positions 1-32"]),
        (128, ["positions 1-32", "positions 33-64", "positions 65-128"]),
        (100, ["positions 1-32", "positions 33-64", "positions 65-100"]),
    ],
)
def test_longer_words_are_scored_by_position(test_length, names):
    task = build_task("state_words", test_length=test_length, **SMALL)
    assert task.spec.length == test_length
    assert everything(task.examples("train"))[0].shape == (400, 32)
    parts = task.slices("test")
    assert list(parts) == names
    assert torch.stack(list(parts.values())).sum(0).eq(1).all(), "every position belongs to one part"
    low, high = names[-1].removeprefix("positions ").split("-")
    assert parts[names[-1]][7].nonzero()[:, 0].tolist() == list(range(int(low) - 1, int(high)))
    assert not task.slices("train")

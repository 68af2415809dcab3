"""Fuzzy recall: an oracle that parses motifs solves it, and single tokens do not."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from oracles import assert_solved, everything, most_frequent

from attn_zoo import build_task
from attn_zoo.contract import UNASKED

SMALL = {"train": 600, "valid": 60, "test": 60}


def motifs(ids: list[int], first_value: int) -> list[tuple[int, list[int], list[int]]]:
    """Return the position of each pair's value with the tokens of key and value; a run of value tokens ends a pair."""
    runs = [(kind, list(run)) for kind, run in groupby(ids, lambda token: (token > 1) + (token >= first_value))]
    if runs[-1][0] == 0:
        runs.pop()
    assert [kind for kind, _ in runs] == [1, 2] * (len(runs) // 2), "keys and values take turns"
    found, at = [], 0
    for (_, key), (_, value) in zip(runs[::2], runs[1::2], strict=True):
        found.append((at + len(key), key, value))
        at += len(key) + len(value)
    return found


@pytest.mark.parametrize("options", [{}, {"length": 40, "pairs": 4, "vocabulary": 10, "longest": 2}, {"longest": 1, "length": 20}])
def test_it_is_solved_by_looking_up_motifs(options):
    task = build_task("fuzzy_recall", **SMALL, **options)
    o = task.options
    first_value = 2 + o.vocabulary // 2

    def oracle(ids):
        known: dict[tuple[int, ...], list[int]] = {}
        answers: dict[int, int] = {}
        for at, key, value in motifs(ids, first_value):
            assert max(len(key), len(value)) <= o.longest
            if tuple(key) in known:
                assert known[tuple(key)] == value
                answers |= {at - 1 + place: token - first_value for place, token in enumerate(value)}
            known[tuple(key)] = value
        assert len(known) <= o.pairs and len({tuple(value) for value in known.values()}) == len(known)
        return answers

    assert_solved(task, oracle)


def test_sizes_are_equally_frequent_and_little_room_is_left():
    task = build_task("fuzzy_recall", train=2000)
    ids, _ = everything(task.examples("train"))
    found = [len(motif) for row in ids[:500].tolist() for _, *pair in motifs(row, 10) for motif in pair]
    shares = torch.tensor(found).bincount(minlength=4)[1:] / len(found)
    assert (shares - 1 / 3).abs().max() < 0.02
    assert ((ids == 1).sum(1) < 6).all()


def test_neither_place_nor_single_tokens_tell_the_answer():
    task = build_task("fuzzy_recall", train=3000)
    ids, labels = everything(task.examples("train"))
    rows, at = (labels != UNASKED).nonzero(as_tuple=True)
    for hint in (torch.zeros_like(at), at, ids[rows, at]):
        assert most_frequent(task.examples("train"), hint) < 1 / 8 + 0.05
    by_token = 0
    for row, place in zip(rows[:4000].tolist(), at[:4000].tolist(), strict=True):
        before = (ids[row, :place] == ids[row, place]).nonzero()[:, 0]
        followers = ids[row, before + 1] - 10
        by_token += bool(len(followers)) and int(followers[-1]) == int(labels[row, place])
    assert by_token / 4000 < 0.5, "the follower of the latest equal token is not enough"

"""Needle: an oracle that finds the keys solves it, the hay is of the stated kind, and longer test inputs are scored apart."""

from __future__ import annotations

import pytest
import torch
from attn_zoo.tasks import needle
from oracles import assert_solved, everything, most_frequent

from attn_zoo import build_task
from attn_zoo.contract import UNASKED

SMALL = {"train": 600, "valid": 60, "test": 120}


@pytest.mark.parametrize(
    "options",
    [{}, {"length": 16, "needles": 4, "vocabulary": 8, "hay": 8}, {"needles": 1, "longer": 1}, {"longer": 1, "causal": False}],
)
def test_it_is_solved_by_finding_the_keys_in_the_hay(options):
    task = build_task("needle", **SMALL, **options)
    o = task.options
    first_key, first_value = 1 + o.hay, 1 + o.hay + o.vocabulary // 2

    def oracle(ids):
        at = [place for place, token in enumerate(ids) if first_key <= token < first_value]
        needles = {ids[place]: ids[place + 1] - first_value for place in at[: o.needles]}
        assert len(needles) == len(set(needles.values())) == o.needles and min(needles.values()) >= 0
        asked = at[o.needles :]
        assert asked == list(range(asked[0], asked[0] + o.needles)) and asked[-1] + 1 in (o.length, 2 * o.length, 4 * o.length)
        assert sorted(ids[place] for place in asked) == sorted(needles)
        return {place: needles[ids[place]] for place in asked}

    assert_solved(task, oracle)


def test_parts_are_kinds_of_hay_and_lengths():
    task = build_task("needle", length=32, train=1000, test=600)
    assert task.spec.length == 128 and everything(task.examples("train"))[0].shape == (1000, 32)
    ids, labels = everything(task.examples("test"))
    parts = task.slices("test")
    lengths = [f"{kind}, {length} tokens" for kind in needle.KINDS for length in (32, 64, 128)]
    assert list(parts) == lengths and all(int(part.sum()) == 100 for part in parts.values())
    for name, part in parts.items():
        length = int(name.split()[1])
        assert ((labels[part] != UNASKED).nonzero()[:, 1] >= length - 4).all() and (labels[part][:, length - 1] != UNASKED).all()
        hay = torch.where(ids[part] <= task.options.hay, ids[part], 0)
        different = [len(set(row.tolist()) - {0}) for row in hay]
        assert set(different) == {needle.PHRASE} if name.startswith("repetitive") else min(different) > needle.PHRASE
    assert list(task.slices("train")) == ["repetitive, 32 tokens", "diverse, 32 tokens"]


def test_needles_lie_anywhere_and_only_their_keys_tell_the_values():
    task = build_task("needle", train=4000)
    ids, labels = everything(task.examples("train"))
    rows, at = (labels != UNASKED).nonzero(as_tuple=True)
    for hint in (torch.zeros_like(at), at, ids[rows, at]):
        assert most_frequent(task.examples("train"), hint) < 1 / 32 + 0.04
    places = (ids >= 1 + 64 + 32).nonzero()[:, 1].bincount(minlength=64)[1:60] / 16_000
    assert (places - 1 / 59).abs().max() < 0.006
    values = torch.stack([row[row >= 97] - 97 for row in ids])
    for number in range(4):  # each needle is asked equally often at each query position
        assert (values == labels[:, 60 + number, None]).float().mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.03)

"""Memorisation: one table gives every answer of every split, and another seed gives another table."""

from __future__ import annotations

import pytest
from attn_zoo.tasks import memorise
from oracles import assert_solved, everything

from attn_zoo import build_task
from attn_zoo.contract import UNASKED


def table_of(task) -> dict[int, int]:
    """Return the table of keys and values that the labels of the training examples give."""
    ids, labels = everything(task.examples("train"))
    return dict(zip(ids[:, ::2].flatten().tolist(), labels[:, 1::2].flatten().tolist(), strict=True))


@pytest.mark.parametrize("options", [{}, {"length": 12, "vocabulary": 20, "train": 200, "valid": 50, "test": 50}])
def test_one_table_solves_all_splits(options):
    task = build_task("memorise", **options)
    table = table_of(task)
    assert sorted(table.values()) == list(range(task.options.vocabulary // 2)), "each key has a value of its own"

    def oracle(ids):
        assert set(ids[1::2]) == {memorise.BLANK}
        return {at: table[ids[at - 1]] for at in range(1, len(ids), 2)}

    assert_solved(task, oracle)
    assert (everything(task.examples("test"))[1][:, ::2] == UNASKED).all()


def test_the_sizes_are_the_published_ones():
    task = build_task("memorise")
    assert [len(task.examples(split)) for split in ("train", "test")] == [256, 1280]
    assert everything(task.examples("train"))[0].shape == (256, 32)


def test_another_seed_is_another_table():
    one, other = (table_of(build_task("memorise", data_seed=seed)) for seed in (0, 1))
    assert sum(one[key] == other[key] for key in one) < 10

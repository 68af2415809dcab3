"""ListOps: every label worked out again from the tokens, and none of the flaws of the published pipelines."""

from __future__ import annotations

import hashlib
import statistics
from typing import Any

import pytest
import torch
from attn_zoo.tasks import listops

from attn_zoo import build_task
from attn_zoo.contract import SPLITS


def value_of(text: str) -> int:
    """An evaluator of its own: a stack over the words, medians by the standard library."""
    stack: list[list[Any]] = [[]]
    for word in text.split():
        if word.startswith("["):
            stack.append([word])
        elif word == "]":
            assert len(stack) > 1, "brackets do not match"
            operator, *values = stack.pop()
            result = {
                "[MIN": lambda v: min(v),
                "[MAX": lambda v: max(v),
                "[MED": lambda v: int(statistics.median(v)),
                "[SM": lambda v: sum(v) % 10,
            }[operator](values)
            stack[-1].append(result)
        else:
            stack[-1].append(int(word))
    assert len(stack) == 1, "brackets do not match"
    assert len(stack[0]) == 1, "more than one expression"
    return stack[0][0]


@pytest.mark.parametrize(
    "options", [{}, {"length": 500, "train": 300, "valid": 50, "test": 50}, {"length": 64, "max_depth": 3, "max_arguments": 5}]
)
def test_every_label_is_the_value_of_its_expression(options):
    task = build_task("listops", **options)
    for split in SPLITS:
        batch = task.examples(split).batch(range(min(2000, len(task.examples(split)))))
        for ids, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
            assert value_of(listops.render(ids)) == label


def test_examples_worked_by_hand():
    assert value_of("[MAX 4 [MIN 7 2 ] 1 ]") == 4
    assert value_of("[MED 1 2 4 9 ]") == 3
    assert value_of("[SM 9 9 [MED 5 ] ]") == 3


def test_brackets_are_kept_and_nothing_is_cut():
    """The published pipeline dropped brackets and cut at 512 tokens for months."""
    task = build_task("listops", length=1000, train=100, valid=20, test=20)
    batch = task.examples("train").batch(range(100))
    assert batch.valid is not None
    lengths = batch.valid.sum(1)
    assert lengths.max() > 900
    assert lengths.min() >= 250
    for ids, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
        words = listops.render(ids).split()
        assert words[-1] == "]"
        assert sum(w.startswith("[") for w in words) == words.count("]")
        assert value_of(" ".join(words)) == label


def test_the_flaws_of_published_pipelines_would_be_noticed():
    """Cut at 512, robbed of the last token or of its brackets, an expression has no value for our evaluator."""
    batch = build_task("listops", length=1000, train=100, valid=20, test=20).examples("train").batch(range(100))
    assert batch.valid is not None
    words = listops.render(batch.inputs[int(batch.valid.sum(1).argmax())]).split()
    assert len(words) > 900
    for damaged in (words[:512], words[:-1], words[1:], [w for w in words if w != "]"], [w for w in words if w.isdigit()]):
        with pytest.raises(AssertionError, match=r"brackets do not match|more than one expression"):
            value_of(" ".join(damaged))


def test_the_vocabulary_has_one_id_a_symbol_and_renders():
    assert " ".join(listops.VOCABULARY) == "_ 0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]"
    assert listops.render(torch.tensor([12, 5, 11, 8, 3, 15, 2, 15, 0, 0])) == "[MAX 4 [MIN 7 2 ] 1 ]"


@pytest.mark.parametrize(("length", "missing"), [(64, 0.07), (2000, 0.02)])
def test_lengths_spread_between_the_shortest_and_the_longest(length, missing):
    """Nearly evenly, short by what the docstring says; drawn blindly, most would be close to the shortest."""
    train = build_task("listops", length=length, train=1000, valid=10, test=10).examples("train")
    valid = train.batch(range(1000)).valid
    assert valid is not None
    lengths = valid.sum(1).float()
    assert lengths.min() >= length / 4
    assert lengths.max() <= length
    assert lengths.mean().item() == pytest.approx((1 - missing) * length * 5 / 8, rel=0.03)
    quarters = torch.histc(lengths, bins=4, min=length / 4, max=length) / 1000
    assert quarters.min() > 0.15


def test_depth_and_arguments_keep_their_limits():
    task = build_task("listops", length=100, max_depth=3, max_arguments=6, train=500, valid=10, test=10)
    for ids in task.examples("train").batch(range(500)).inputs:
        depth, deepest, counts = 0, 0, [0]
        for word in listops.render(ids).split():
            if word.startswith("["):
                depth += 1
                deepest = max(deepest, depth)
                counts[-1] += 1
                counts.append(0)
            elif word == "]":
                depth -= 1
                assert 2 <= counts.pop() <= 6
            else:
                counts[-1] += 1
        assert deepest <= 3


def test_the_same_bytes_on_every_machine():
    found = build_task("listops").examples("test").digest()
    assert found == "195e14e301b38888eeeb5fe88dc2c12f2830f5222d7af9de04837f167e192b4c", (
        "the examples changed; raise the task's version, then this digest"
    )


def test_values_are_spread_over_the_classes():
    labels = build_task("listops").examples("train").labels()
    shares = torch.bincount(labels, minlength=10) / len(labels)
    assert shares.min() > 0.05
    assert shares.max() < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 3}, "16 to 16,384"),
        ({"shortest": 1.5}, "share of length"),
        ({"max_depth": 0}, "at least 1"),
        ({"max_arguments": 1}, "at least 2"),
        ({"length": 64, "max_depth": 1, "max_arguments": 5}, "make at most 7 tokens"),
        ({"train": 0}, "at least 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_task("listops", **options)


def test_too_many_short_expressions_end_with_an_error():
    task = build_task("listops", length=16, shortest=0.3, max_depth=1, max_arguments=14, train=200_000)
    task.options.length = 6
    with pytest.raises(ValueError, match="all there are"):
        task.examples("train")


def test_digest_is_of_content():
    one, other = (build_task("listops", train=50, valid=20, test=20, data_seed=s).examples("test").digest() for s in (0, 1))
    assert one != other
    assert len(one) == len(hashlib.sha256().hexdigest())

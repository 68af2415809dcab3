"""Diagnostic tasks: an oracle solves each from its tokens alone, and simple statistics, such as token counts, do not."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from attn_zoo.tasks import copying, haystack, induction, mqar, selective
from attn_zoo.tasks.parts import generated
from oracles import assert_solved, everything, most_frequent, text_of
from torch import Tensor

from attn_zoo import build_task, task_card
from attn_zoo.contract import UNASKED, Split, Task, Tokens


def bag_of_tokens_accuracy(task: Task, steps: int = 300) -> float:
    """Test accuracy of a linear model on token counts, for tasks that ask the last position."""
    assert isinstance(task.spec.inputs, Tokens)
    vocabulary, classes = task.spec.inputs.vocabulary, task.spec.classes
    (x, y), (tx, ty) = (everything(task.examples(split)) for split in ("train", "test"))
    y, ty = y[:, -1], ty[:, -1]
    x, tx = (torch.stack([torch.bincount(row, minlength=vocabulary) for row in ids]).float() for ids in (x, tx))
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    torch.manual_seed(0)
    model = torch.nn.Linear(vocabulary, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model((x - mean) / deviation), y).backward()
        optimizer.step()
    return float((model((tx - mean) / deviation).argmax(1) == ty).float().mean())


def depths_of(task: Task, split: Split) -> Tensor:
    assert isinstance(task, haystack.Haystack)
    return task.depths(split)


def mqar_answers(ids: list[int], first_key: int, first_value: int) -> dict[int, int]:
    """Return the answer at each query position; the pairs end where an odd position holds no value."""
    end = next((at for at in range(0, len(ids), 2) if ids[at + 1] < first_value), len(ids))
    pairs = dict(zip(ids[:end:2], ids[1:end:2], strict=True))
    assert all(value >= first_value > key >= first_key for key, value in pairs.items())
    assert len(set(pairs.values())) == len(pairs) == end // 2
    queries = {at: ids[at] for at in range(end, len(ids)) if ids[at] >= first_key}
    assert sorted(queries.values()) == sorted(pairs), "each key is asked once"
    assert all(at % 2 == 0 for at in queries)
    return {at: pairs[key] - first_value for at, key in queries.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"train": 500, "valid": 50, "test": 50},
        {"length": 40, "pairs": 6, "vocabulary": 20, "fillers": 5, "alpha": 1.0, "train": 500},
        {"length": 16, "pairs": 4, "vocabulary": 8, "train": 500, "valid": 50, "test": 50},
    ],
)
def test_mqar_is_solved_by_looking_up_pairs(options):
    task = build_task("mqar", **options)
    first_key, first_value = 1 + task.options.fillers, 1 + task.options.fillers + task.options.vocabulary // 2
    assert_solved(task, lambda ids: mqar_answers(ids, first_key, first_value))


def test_mqar_tells_nothing_but_by_the_pairs():
    task = build_task("mqar", length=64, pairs=8, vocabulary=32, train=4000)
    ids, labels = everything(task.examples("train"))
    rows, at = (labels != UNASKED).nonzero(as_tuple=True)
    asked, keys = labels[rows, at], ids[rows, at]
    for hint in (torch.zeros_like(at), at, keys):  # no hint, the query's position, its key
        assert most_frequent(task.examples("train"), hint) < 1 / 16 + 0.04
    values = ids[:, 1:16:2] - (2 + 16)
    for pair in range(8):  # each pair is asked equally often, also by the first query
        share = (values[rows, pair] == asked).float()
        assert share.mean() == pytest.approx(1 / 8, abs=0.001)
        assert share[at == at.min()].mean() == pytest.approx(1 / 8, abs=0.03)


def test_mqar_as_a_ladder_trains_on_mixed_pairs_and_scores_each_number_apart():
    options = {"length": 32, "pairs": 6, "vocabulary": 32, "causal": True, "train": 3000, "valid": 50, "test": 400}
    task = build_task("mqar", fewest_pairs=3, most_pairs=12, **options)
    assert task.spec.length == 48
    assert_solved(task, lambda ids: mqar_answers(ids, first_key=2, first_value=18))
    (_, trained), (ids, tested) = (everything(task.examples(split)) for split in ("train", "test"))
    counts = (trained != UNASKED).sum(1)
    assert (counts.bincount(minlength=7)[3:7] / 3000 - 1 / 4).abs().max() < 0.02 and trained.shape[1] == 32
    parts = task.slices("test")
    assert list(parts) == ["3 pairs", "6 pairs", "12 pairs"]
    for number, members in zip((3, 6, 12), parts.values(), strict=True):
        assert ((tested[members] != UNASKED).sum(1) == number).all() and abs(int(members.sum()) - 400 / 3) < 1
        assert (ids[members][:, max(32, 4 * number) :] == 1).all(), "filler after what is as long as in training"
    assert not build_task("mqar").slices("test")
    mixed = build_task("mqar", fewest_pairs=3, **options)
    assert mixed.spec.length == 32 and set((everything(mixed.examples("test"))[1] != UNASKED).sum(1).tolist()) == {3, 4, 5, 6}


def test_mqar_gaps_follow_the_power_law():
    weights = mqar.gap_weights(4, -1.0)
    assert weights.tolist() == [2**32, 2**32 // 4, 2**32 // 9, 2**32 // 16]
    assert set(mqar.gap_weights(9, 1.0).tolist()) == {2**32}
    drawn = generated.weighted_subsets(np.random.RandomState(0), 20_000, 1, weights)[:, 0]
    assert np.bincount(drawn) / 20_000 == pytest.approx(weights / weights.sum(), abs=0.01)
    drawn = generated.weighted_subsets(np.random.RandomState(0), 500, 4, weights)
    assert (np.sort(drawn, axis=1) == np.arange(4)).all(), "never twice the same place"
    near, even = (
        (build_task("mqar", alpha=alpha, length=128, pairs=4, train=2000).examples("train").labels() != UNASKED)
        .nonzero()[:, 1]
        .float()
        .mean()
        for alpha in (0.01, 1.0)
    )
    assert near < even - 15


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
def test_copying_is_solved_by_reading_off_the_symbols(scattered, backwards):
    order = "reversed" if backwards else "forward"
    task = build_task("copying", scattered=scattered, order=order, train=500, valid=50, test=50)
    o = task.options

    def oracle(ids):
        delimiter = ids.index(copying.DELIMITER)
        symbols = [token - copying.FIRST_SYMBOL for token in ids[:delimiter] if token != copying.BLANK]
        assert set(ids[delimiter + 1 :]) == {copying.BLANK}
        return dict(zip(range(delimiter + 1, o.length), symbols[:: -1 if backwards else 1], strict=True))

    assert_solved(task, oracle)


def test_copying_takes_the_order_and_the_symbols():
    task = build_task("copying", train=4000)
    ids, labels = everything(task.examples("train"))
    answers = labels[:, -16:]
    assert most_frequent(task.examples("train"), torch.arange(16).repeat(4000)) < 1 / 16 + 0.02
    first = torch.stack([row[row > copying.BLANK] - copying.FIRST_SYMBOL for row in ids])
    in_bag = first.mode(dim=1).values[:, None].expand_as(answers)
    assert float((in_bag == answers).float().mean()) < 0.22
    assert float((first.flip(1) == answers).float().mean()) < 1 / 16 + 0.02
    fixed = torch.stack([ids[:, at] - copying.FIRST_SYMBOL for at in range(47)], dim=1)
    best = max(float((fixed == answers[:, [n]]).float().mean(0).max()) for n in range(16))
    assert best < 0.45, "one fixed place a blank must not be enough when symbols are scattered"


def test_copying_of_one_piece_asks_for_one_place_a_blank_out_of_reach_of_neighbours():
    level = task_card("copying").levels["profile_encoder"]
    task = build_task("copying", **{**level.options, "train": 4000})
    ids, labels = everything(task.examples("train"))
    asked = (labels[0] != UNASKED).nonzero().flatten()
    sources = asked - asked[0]
    assert torch.equal(ids[:, sources] - copying.FIRST_SYMBOL, labels[:, asked]), "each blank has its own place"
    assert int((asked - sources).min()) > 32, "further off than windows, and than two layers of short convolutions"
    in_bag = (ids[:, sources] - copying.FIRST_SYMBOL).mode(dim=1).values[:, None]
    assert float((in_bag == labels[:, asked]).float().mean()) < 0.2, "counts of symbols tell little"


@pytest.mark.parametrize("occurrences", [1, 2, 5])
def test_induction_is_solved_by_the_latest_occurrence(occurrences):
    task = build_task("induction", occurrences=occurrences, train=1000, valid=50, test=50)

    def oracle(ids):
        before = [at for at, token in enumerate(ids[:-1]) if token == ids[-1]]
        assert len(before) == occurrences
        return {len(ids) - 1: ids[before[-1] + 1] - induction.FIRST_SYMBOL}

    assert_solved(task, oracle)


@pytest.mark.parametrize("causal", [False, True])
def test_induction_takes_the_earlier_occurrence(causal):
    task = build_task("induction", causal=causal, train=6000)
    assert task.spec.causal is causal
    ids, labels = everything(task.examples("train"))
    answers = labels[:, -1]
    for hint in (torch.zeros_like(answers), ids[:, -1], ids[:, -2]):
        assert most_frequent(task.examples("train"), hint) < 1 / 15 + 0.05
    places = (ids[:, :-1] == ids[:, -1:]).nonzero()[:, 1]
    assert places.min() == 0
    assert places.max() == 61
    counts = torch.stack([torch.bincount(row, minlength=17) for row in ids[:, :-1] - 1])
    guess = counts.scatter(1, ids[:, -1:] - 1, 0).argmax(1)
    assert float((guess == answers).float().mean()) < 0.15


@pytest.mark.parametrize("unmarked", ["balanced", "independent"])
@pytest.mark.parametrize(
    ("kind", "marked", "modulus"), [("sum", 3, 10), ("majority", 5, 4), ("majority", 12, 4), ("majority", 1, 2), ("sum", 1, 3)]
)
def test_selective_is_solved_by_the_marked_digits(kind, marked, modulus, unmarked):
    task = build_task("selective", kind=kind, marked=marked, modulus=modulus, unmarked=unmarked, train=500, valid=50, test=50)

    def oracle(ids):
        digits = [token - selective.FIRST_DIGIT for before, token in pairwise(ids) if before == selective.MARK]
        assert len(digits) == marked == ids.count(selective.MARK)
        assert ids[-1] == selective.ASK
        if kind == "sum":
            return {len(ids) - 1: sum(digits) % modulus}
        (first, most), *rest = Counter(digits).most_common()
        assert not rest or rest[0][1] < most, "no tie"
        return {len(ids) - 1: first}

    assert_solved(task, oracle)


def test_a_block_without_a_clear_majority_is_drawn_again():
    """Three marked digits out of a thousand rarely agree, so some blocks hold no example at all."""
    task: Any = build_task("selective", marked=3, modulus=1000, length=3010, train=1, valid=1, test=1)
    random = np.random.RandomState(0)
    found = [len(task.draw(random, 8, "test")[0]) for _ in range(3)]
    assert found == [0, 0, 0]


@pytest.mark.parametrize("options", [{}, {"kind": "sum", "marked": 3, "modulus": 10}, {"length": 80, "marked": 15}])
def test_selective_tells_nothing_by_counts_or_by_the_last_token(options):
    task = build_task("selective", train=6000, **options)
    ids, labels = everything(task.examples("train"))
    classes, labels = task.spec.classes, labels[:, -1]
    counts = torch.stack([torch.bincount(row, minlength=classes + 3)[3:] for row in ids])
    assert (counts.max(1).values - counts.min(1).values).max() <= 1, "every digit is equally frequent, up to those left over"
    assert bag_of_tokens_accuracy(task) < 1 / classes + 0.04
    assert most_frequent(task.examples("train"), ids[:, -2]) < 1 / classes + 0.06
    shares = labels.bincount(minlength=classes) / len(labels)
    assert shares.max() < 1 / classes + 0.03


def test_selective_with_independent_digits_tells_half_by_counts():
    task = build_task("selective", length=80, marked=15, unmarked="independent", train=6000)
    ids, labels = everything(task.examples("train"))
    counts = torch.stack([torch.bincount(row, minlength=7)[3:] for row in ids])
    tied = counts == counts.max(1, keepdim=True).values
    right = (tied / tied.sum(1, keepdim=True)).gather(1, labels[:, -1:]).mean()  # ties are broken at random
    assert 0.45 < right < 0.53 and most_frequent(task.examples("train"), ids[:, -2]) < 0.31
    assert labels[:, -1].bincount(minlength=4).max() / len(labels) < 0.28


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"values": "letters", "distractors": 3, "length": 512},
        {"distractors": 0},
        {"distractors": 12},
        {"shallowest": 1.0},
        {"deepest": 0.0},
    ],
)
def test_haystack_is_solved_by_reading(options):
    task = build_task("haystack", train=300, valid=50, test=50, **options)
    o = task.options
    alphabet = haystack.ALPHABETS[o.values]

    def oracle(ids):
        text = text_of(torch.tensor(ids))
        assert len(text) == o.length
        said = re.fullmatch(r".*what is (.)\?", text)
        assert said
        needles = dict(re.findall(r"([A-Z]) is (.)\. ", text))
        assert len(needles) == o.distractors + 1
        return {o.length - 1: alphabet.index(needles[said[1]])}

    assert_solved(task, oracle)


@pytest.mark.parametrize("options", [{"distractors": 1}, {"distractors": 4}, {"distractors": 0, "length": 96}])
def test_a_haystack_tells_nothing_by_counts(options):
    task = build_task("haystack", **options, train=4000)
    ids, labels = everything(task.examples("train"))
    labels = labels[:, -1]
    digits = torch.stack([(ids == ord(digit) + 1).sum(1) for digit in "0123456789"])
    assert (digits == 1).all(), "every digit once, in a needle or alone"
    assert bag_of_tokens_accuracy(task, steps=100) < 0.15
    assert (labels.bincount(minlength=10) / len(labels)).max() < 0.13
    places = (ids >= ord("0") + 1) & (ids <= ord("9") + 1)
    last = ids[torch.arange(len(ids)), task.spec.length - 1 - places.flip(1).int().argmax(1)] - ord("0") - 1
    assert float((last == labels).float().mean()) < 0.2, "the last digit is not the answer"


def test_needles_lie_at_the_depth_asked_for():
    for low, high in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.0, 1.0), (0.2, 0.4)):
        task = build_task("haystack", shallowest=low, deepest=high, length=512, train=2000, valid=20, test=20)
        depths = depths_of(task, "train")
        assert depths.shape == (2000,)
        assert depths.min() >= low - 0.02
        assert depths.max() <= high + 0.02
        assert depths.mean() == pytest.approx((low + high) / 2, abs=0.015)
        for ids, depth in list(zip(everything(task.examples("train"))[0], depths, strict=True))[:50]:
            text = text_of(ids)
            assert text.index(f"{text[-2]} is ") == pytest.approx(float(depth) * (512 - 10 - 8 - 1), abs=1)
    quarters = torch.histc(depths_of(build_task("haystack", train=4000), "train"), bins=4, min=0, max=1) / 4000
    assert quarters.min() > 0.2


@pytest.mark.parametrize("name", ["mqar", "copying", "induction", "selective", "haystack", "pathfinder"])
def test_the_test_split_stays_whatever_the_size_of_the_others(name):
    small = {"side": 16, "contour": 6, "distractors": 2, "turn": 60} if name == "pathfinder" else {}
    sizes = [{"train": 30, "valid": 4}, {"train": 20, "valid": 6}]
    first, second = (build_task(name, test=20, **size, **small).examples("test").digest() for size in sizes)
    assert first == second


def test_too_few_different_examples_end_with_an_error():
    task = build_task("induction", length=4, vocabulary=3, train=1000)
    with pytest.raises(ValueError, match="different examples were found"):
        task.examples("train")


def test_subsets_hold_different_numbers_in_random_order():
    for size, of in ((3, 6), (2, 100), (6, 6)):
        found = generated.subsets(np.random.RandomState(1), 4000, size, of)
        assert found.shape == (4000, size)
        assert all(len(set(row)) == size for row in found.tolist())
        for column in found.T:
            assert np.bincount(column, minlength=of) == pytest.approx(4000 / of, rel=0.5 if of < 50 else 0.9)


def test_scores_are_recorded_by_depth():
    task = build_task("haystack", length=128, train=50, valid=50, test=400)
    parts = task.slices("test")
    assert list(parts) == ["depth 0.0-0.2", "depth 0.2-0.4", "depth 0.4-0.6", "depth 0.6-0.8", "depth 0.8-1.0"]
    assert torch.stack(list(parts.values())).sum(0).eq(1).all(), "every example belongs to one depth"
    depths = depths_of(task, "test")
    assert depths[parts["depth 0.4-0.6"]].min() >= 0.4 and depths[parts["depth 0.4-0.6"]].max() <= 0.6
    fixed = build_task("haystack", length=128, shallowest=1.0, deepest=1.0, train=50, valid=50, test=60).slices("test")
    assert int(fixed["depth 0.8-1.0"].sum()) == 60

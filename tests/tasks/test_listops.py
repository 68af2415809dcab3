"""ListOps: every label is recomputed from the tokens, and the flaws of published pipelines are absent."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from attn_zoo.tasks import listops
from attn_zoo.tasks.datasets import listops as published
from attn_zoo.tasks.parts import expressions

from attn_zoo import build_task, task_card
from attn_zoo.contract import SPLITS, DamagedDataError, MissingDataError


def value_of(text: str) -> int:
    """Evaluate an expression independently of the task's code, with a stack over the words and medians by the standard library."""
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


def test_the_flaws_of_published_pipelines_would_be_noticed():
    """``value_of`` rejects an expression cut at 512 tokens, or without its first token, last token or brackets."""
    batch = build_task("listops", length=1000, train=100, valid=20, test=20).examples("train").batch(range(100))
    assert batch.valid is not None
    words = listops.render(batch.inputs[int(batch.valid.sum(1).argmax())]).split()
    assert len(words) > 900
    for damaged in (words[:512], words[:-1], words[1:], [w for w in words if w != "]"], [w for w in words if w.isdigit()]):
        with pytest.raises(AssertionError, match=r"brackets do not match|more than one expression"):
            value_of(" ".join(damaged))


def test_the_vocabulary_has_one_id_a_symbol_and_renders():
    assert " ".join(expressions.VOCABULARY) == "_ 0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]"
    assert listops.render(torch.tensor([12, 5, 11, 8, 3, 15, 2, 15, 0, 0])) == "[MAX 4 [MIN 7 2 ] 1 ]"


@pytest.mark.parametrize(("length", "missing"), [(64, 0.07), (2000, 0.02)])
def test_lengths_spread_between_the_shortest_and_the_longest(length, missing):
    """Lengths are nearly uniform, less the shortfall in the task's docstring; trees drawn without a length are mostly short."""
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


def test_values_are_spread_over_the_classes():
    labels = build_task("listops").examples("train").labels()
    shares = torch.bincount(labels, minlength=10) / len(labels)
    assert shares.min() > 0.05
    assert shares.max() < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 1 2 ] ]", "every closing bracket must have an opening bracket"),
        ("[MAX 1 [MIN 2 3 ]", "1 are open"),
        ("[MAX ]", "at least one argument"),
        ("[MAX 1 2 ] 3", "one expression; got 2"),
        ("", "one expression; got 0"),
    ],
)
def test_what_is_no_expression_has_no_value(text, message):
    with pytest.raises(ValueError, match=message):
        expressions.value_of([expressions.VOCABULARY.index(word) for word in text.split()])


def published_form(text: str) -> str:
    """Add the round brackets of the published files, which join each argument, and the end, to everything before it."""
    lists: list[str] = []
    for word in text.split():
        if word.startswith("["):
            lists.append(word)
            continue
        done = word
        if word == "]":
            done = f"( {lists.pop()} ] )"
        if not lists:
            return done
        lists[-1] = f"( {lists[-1]} {done} )"
    raise AssertionError("brackets do not match")


@pytest.fixture
def released(monkeypatch, tmp_path):
    """Files like the published ones, with 30, 10 and 10 short expressions, one of which is in both train and test."""
    rows = {"train": 30, "valid": 10, "test": 10}
    monkeypatch.setenv("ATTN_ZOO_CACHE", "off")
    monkeypatch.setattr(published, "ROWS", rows)
    monkeypatch.setattr(listops, "ROWS", rows)
    monkeypatch.setattr(published, "SHORTEST", 4)
    folder = tmp_path / "lra_release" / "listops-1000"
    folder.mkdir(parents=True)
    author = listops._Author("released", 8, 40, 4, 5)
    texts = [listops.render(torch.tensor(list(author.fresh()[0]))) for _ in range(50)]
    texts[3] = texts[45]
    for split, at in (("train", 0), ("valid", 30), ("test", 40)):
        lines = [f"{published_form(text)}\t{value_of(text)}" for text in texts[at : at + rows[split]]]
        write(folder / published.FILES[split], lines)
    listops._published.cache_clear()
    yield folder, texts
    listops._published.cache_clear()


def write(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\r\n" for line in ["Source\tTarget", *lines]).encode())


def lra(folder: Path, **options):
    sizes = {"train": 30, "valid": 10, "test": 10}
    return build_task("listops", files="lra", length=2000, root=str(folder.parent.parent), **{**sizes, **options})


def test_the_files_of_long_range_arena_are_read_whole(released):
    folder, texts = released
    task = lra(folder)
    assert task.data_title == "LRA ListOps"
    assert task.spec.length == 2000
    parts = [task.examples(split) for split in SPLITS]
    assert [len(part) for part in parts] == [29, 10, 10], "what stands in test as well is left out of train"
    found = [listops.render(row) for part in parts for row in part.batch(range(len(part))).inputs]
    assert found == [text for at, text in enumerate(texts) if at != 3]
    assert [label for part in parts for label in part.labels().tolist()] == [value_of(text) for text in found]
    assert all(text.count("[") == text.count("]") > 0 for text in found), "brackets survive"
    few = lra(folder, train=7).examples("train")
    assert len(few) == 7
    assert few.batch(range(7)).inputs.equal(parts[0].batch(range(7)).inputs)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda source, value: f"{source}\t{(int(value) + 1) % 10}", r"basic_train.tsv, line 6: the value of the expression is"),
        (lambda source, value: f"{source[: len(source) // 2]}", r"basic_train.tsv, line 6: "),
        (
            lambda source, value: source.replace(" ] )", " )", 1) + f"\t{value}",
            r"line 6: (every bracket must be closed|there must be .* brackets)",
        ),
        (lambda source, value: source.replace("( ", "", 1) + f"\t{value}", r"line 6: there must be \d+ opening and"),
        (lambda source, value: source.replace("[", "") + f"\t{value}", r"line 6: '\w+' is not a symbol of ListOps"),
        (lambda source, value: f"{source}\t", r"line 6: .*the file says ''"),
        (lambda source, value: "( ( ( [MAX 1 ) 2 ) ] )\t2", r"line 6: the expression must have 6 to 1999 tokens; got 4"),
    ],
)
def test_a_damaged_line_is_named(released, monkeypatch, damage, message):
    folder, _ = released
    monkeypatch.setattr(published, "SHORTEST", 6)
    path = folder / "basic_train.tsv"
    lines = path.read_text().splitlines()[1:]
    lines[4] = damage(*lines[4].split("\t"))
    write(path, lines)
    with pytest.raises(DamagedDataError, match=message):
        lra(folder).examples("train")


def test_files_cut_short_or_missing_are_named(released):
    folder, _ = released
    path = folder / "basic_val.tsv"
    lines = path.read_text().splitlines()[1:]
    write(path, lines[:-2])
    with pytest.raises(DamagedDataError, match=r"basic_val.tsv must hold 10 expressions, but holds 8; it is cut short"):
        lra(folder).examples("train")
    write(path, [*lines, *lines])
    with pytest.raises(DamagedDataError, match=r"basic_val.tsv must hold 10 expressions, but holds more"):
        lra(folder).examples("train")
    path.write_text("\n".join(lines))
    with pytest.raises(DamagedDataError, match=r"basic_val.tsv must begin with"):
        lra(folder).examples("train")
    path.unlink()
    with pytest.raises(MissingDataError, match=r"basic_val.tsv is missing"):
        lra(folder).examples("train")


def test_levels_stand_in_order_and_the_largest_is_the_published_one():
    levels = task_card("listops").levels
    assert list(levels) == ["quick", "smoke", "cpu", "lra"]
    theirs = build_task("listops", **levels["lra"].options).options
    assert (theirs.length, theirs.train, theirs.valid, theirs.test) == (2000, 96_000, 2_000, 2_000)
    assert (levels["lra"].model["depth"], levels["lra"].model["dim"], levels["lra"].model["heads"]) == (6, 512, 8)


def test_what_is_kept_in_the_cache_is_what_was_drawn(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path))
    options = {"length": 100, "train": 50, "valid": 10, "test": 10}
    drawn = [build_task("listops", **options).examples(split).digest() for split in SPLITS]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(listops, "_WORTH_KEEPING", 0)
    for _ in range(2):
        listops._generate.cache_clear()
        assert [build_task("listops", **options).examples(split).digest() for split in SPLITS] == drawn
        assert len(list(tmp_path.iterdir())) == 1
    listops._generate.cache_clear()


@pytest.mark.data
def test_the_real_files_have_their_known_content():
    task = build_task("listops", files="lra", length=2000, train=96_000, valid=2_000)
    try:
        assert len(task.examples("test")) == 2_000
    except MissingDataError as missing:
        pytest.skip(str(missing).split(";")[0])
    assert len(task.examples("train")) > 95_000


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


def test_a_generated_expression_has_its_value_by_the_evaluator_that_reads_files():
    batch = build_task("listops").examples("test").batch(range(500))
    for ids, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
        assert expressions.value_of(ids[ids > 0].tolist()) == label

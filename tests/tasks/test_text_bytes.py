"""Byte-level text: ids, splits that share nothing, and the same examples from every layout of IMDB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from attn_zoo.tasks.datasets import imdb
from attn_zoo.tasks.parts.byte_tokens import byte_tokens, pad
from attn_zoo.tasks.parts.division import divide

from attn_zoo import build_task
from attn_zoo.contract import DamagedDataError, MissingDataError

Rows = list[tuple[int, str]]

TRAIN: Rows = [(label, f"{'bad' if label else 'good'} film, number {n}, seen with é") for label in (0, 1) for n in range(20)]
TEST: Rows = [(label, f"test {label} of {n}") for label in (0, 1) for n in range(5)]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(imdb, "COUNTS", {"train": len(TRAIN), "test": len(TEST)})


def as_jsonl(root: Path, train: Rows = TRAIN, test: Rows = TEST) -> str:
    (root / "imdb").mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"label": label, "id": "x", "text": text}) + "\n" for label, text in rows]
        (root / f"imdb/{part}.jsonl").write_text("".join(lines))
    return str(root)


def as_folders(root: Path) -> str:
    for part, rows in (("train", TRAIN), ("test", TEST)):
        for number, (label, text) in enumerate(rows):
            folder = root / "aclImdb" / part / ("neg", "pos")[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}_{label}.txt").write_bytes(text.encode())
    return str(root)


def build(root: str, **options):
    return build_task("text", **{"root": root, "length": 32, "valid": 6, **options})


def shown(examples) -> list[str]:
    batch = examples.batch(range(len(examples)))
    return [bytes((row[real] - 1).tolist()).decode(errors="replace") for row, real in zip(batch.inputs, batch.valid, strict=True)]


def test_a_byte_is_its_value_and_one_and_padding_is_nothing_else():
    assert list(byte_tokens("aé\0", 10)) == [98, 0xC3 + 1, 0xA9 + 1, 1]
    assert list(byte_tokens("aé", 2)) == [98, 0xC3 + 1], "cut by bytes, even within a character"
    assert pad([byte_tokens("ab", 5), [7] * 9], 3, torch.zeros(0).numpy().dtype.type).tolist() == [[98, 99, 0], [7, 7, 7]]
    assert max(byte_tokens("\U0010ffff", 9)) <= 245, "no byte of UTF-8 is beyond what a byte can hold after one is added"


def test_every_layout_gives_the_same_examples(tmp_path):
    one, two = build(as_jsonl(tmp_path / "one")), build(as_folders(tmp_path / "two"))
    turned = build(as_jsonl(tmp_path / "three", TRAIN[::-1], TEST[::-1]))
    for split in ("train", "valid", "test"):
        assert one.examples(split).digest() == two.examples(split).digest() == turned.examples(split).digest()
    assert [len(one.examples(split)) for split in ("train", "valid", "test")] == [34, 6, 10]
    assert torch.bincount(one.examples("valid").labels()).tolist() == [3, 3]


def test_splits_share_no_text_as_the_model_sees_it_and_the_test_stays_whole(tmp_path):
    """Reviews with the same first bytes are identical for a model that reads only those."""
    again = "test 0 of 0" + " " * 30
    train = [*TRAIN[:-3], (1, again + "and more"), (0, TRAIN[0][1]), (0, TRAIN[1][1] + " " * 40)]
    test = [*TEST[:-1], (0, again + "and other"), (1, TEST[0][1])][-len(TEST) :]
    root = as_jsonl(tmp_path, train, test)
    task = build(root)
    texts = {split: shown(task.examples(split)) for split in ("train", "valid", "test")}
    assert len(texts["test"]) == len(test)
    assert not set(texts["train"]) & set(texts["valid"]) and not set(texts["test"]) & {*texts["train"], *texts["valid"]}
    assert len(set(texts["train"])) == len(texts["train"])
    assert len(texts["train"]) + len(texts["valid"]) == len({text.encode()[:32] for _, text in train} - {again.encode()[:32]})


def test_the_first_training_rows_are_taken_and_nothing_else_changes(tmp_path):
    root = as_jsonl(tmp_path)
    few, all_of_them = build(root, train=5), build(root)
    assert shown(few.examples("train")) == shown(all_of_them.examples("train"))[:5]
    for split in ("valid", "test"):
        assert few.examples(split).digest() == all_of_them.examples(split).digest()


def test_what_is_missing_or_not_whole_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"IMDB: no data found below .*aclImdb/train/neg"):
        build(str(tmp_path)).examples("train")
    root = as_jsonl(tmp_path, TRAIN[1:])
    with pytest.raises(DamagedDataError, match=r"train\.jsonl must hold 40 examples, as published, but holds 39"):
        build(root).examples("test")
    Path(root, "imdb/test.jsonl").unlink()
    with pytest.raises(MissingDataError, match=r"test\.jsonl\.xz is missing"):
        build(root).examples("test")
    assert build(root).spec.length == 32, "the shape of the task is known without data"


def test_the_cache_knows_the_files(tmp_path):
    before = build(as_jsonl(tmp_path)).examples("test").digest()
    as_jsonl(tmp_path, TRAIN, [(label, text.upper()) for label, text in TEST])
    assert build(str(tmp_path), valid=7).examples("test").digest() != before


@pytest.mark.extras
def test_downloading_keeps_what_can_be_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = {"train": TRAIN, "test": TEST}
    asked = []

    def load_dataset(name, config=None, *, split):
        asked.append(name)
        return datasets.Dataset.from_dict({"text": [text for _, text in rows[split]], "label": [label for label, _ in rows[split]]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    imdb.IMDB.download(tmp_path / "got")
    assert set(asked) == {"stanfordnlp/imdb"}
    expected = build(as_jsonl(tmp_path / "own")).examples("train").digest()
    assert build(str(tmp_path / "got")).examples("train").digest() == expected


def test_validation_keeps_the_proportions_and_leaves_every_class_something():
    rows = [(f"{n}".encode(), int(n % 4 == 0)) for n in range(400)]
    division = divide(rows, [], 100)
    assert sum(rows[place][1] for place in division.valid) == 25 and len(division.train) == 300
    with pytest.raises(ValueError, match="leaves no training example of class 0"):
        divide(rows[:8], [], 8)

"""Retrieval: cleaning of posts, drawing of pairs, and the files of AAN."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from attn_zoo.tasks.datasets import posts
from attn_zoo.tasks.retrieval import Files, draw_pairs
from oracles import text_of

from attn_zoo import build_task
from attn_zoo.contract import DamagedDataError, MissingDataError, Pairs

WORDS = (("rocket", "orbit", "moon", "launch", "thrust", "payload"), ("goal", "puck", "skate", "ice", "rink", "penalty"))
PLACES = {"sci.space": 0, "rec.sport.hockey": 1}


def post(group: str, number: int, part: str) -> str:
    draw = Random(f"{group} {number} {part}").random
    told = " ".join(WORDS[PLACES[group]][int(draw() * 6)] for _ in range(30))
    return (
        f"From: someone\nNewsgroups: {group}\nSubject: Re: {group}\n\nIn article <1@x> you write:\n> quoted\n{told}\n-- \nmy name\n"
    )


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(posts, "COUNTS", {"train": 80, "test": 40})


def rows(part: str) -> list[dict[str, str]]:
    count = {"train": 40, "test": 20}[part]
    return [{"group": group, "id": str(n), "text": post(group, n, part)} for group in PLACES for n in range(count)]


def as_jsonl(root: Path) -> str:
    (root / "20news").mkdir(parents=True)
    for part in ("train", "test"):
        (root / f"20news/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(part)))
    return str(root)


def build(root: str, **options):
    return build_task("retrieval", **{"root": root, "length": 128, "train": 300, "valid": 8, "test": 100, **options})


def documents(examples) -> list[tuple[str, str]]:
    batch = examples.batch(range(len(examples)))
    return [(text_of(one), text_of(other)) for one, other in batch.inputs]


def test_only_what_the_author_wrote_is_left_of_a_post():
    text = (
        "From: a@b.c\nNewsgroups: sci.space\n\nIn article <1993@x>, b@c.d (B) writes:\n>quoted\n> >twice\nBB> with initials\n"
        "| barred\n: colon\nFirst words.\n\nSomebody wrote:\nx > y is no quotation\nsee sci.space and SCI.SPACE for more\n\n\n\n"
        "Last.\n"
        "--\nMy Name\nMy address\n"
    )
    assert posts.body(text) == "First words.\n\nx > y is no quotation\nsee  and  for more\n\nLast."
    assert posts.body("From: a\n\n" + "--\n" + "line\n" * 30).count("line") == 30, "a rule far from the end begins no signature"
    assert posts.body("no header at all") == ""


def test_pairs_are_balanced_different_and_tell_nothing_by_one_document():
    groups = [place % 5 for place in range(400)]
    pairs = draw_pairs(groups, 4000, Random("x").random)
    assert len({frozenset(pair[:2]) for pair in pairs}) == 4000
    assert all((groups[one] == groups[two]) == bool(label) and one != two for one, two, label in pairs)
    assert Counter(label for *_, label in pairs) == {0: 2000, 1: 2000}
    for side in (0, 1):
        share = np.array([[sum(groups[p[side]] == g and p[2] == label for p in pairs) for g in range(5)] for label in (0, 1)])
        assert abs(share[0] - share[1]).max() < 120, "a group stands as often in pairs of either class"
    assert draw_pairs(groups, 50, Random("x").random) == draw_pairs(groups, 50, Random("x").random)
    with pytest.raises(ValueError, match="4 documents cannot make 20 different pairs"):
        draw_pairs([0, 0, 1, 1], 20, Random("x").random)


def test_the_label_says_whether_the_groups_are_one(tmp_path):
    task = build(as_jsonl(tmp_path))
    assert isinstance(task.spec.inputs, Pairs) and task.spec.length == 128
    for split, count in (("train", 300), ("valid", 8), ("test", 100)):
        examples = task.examples(split)
        assert len(examples) == count and int(examples.labels().sum()) == count // 2
        for pair, label in zip(documents(examples), examples.labels().tolist(), strict=True):
            of_space = [any(word in text for word in WORDS[0]) for text in pair]
            assert (of_space[0] == of_space[1]) == bool(label)
            assert not any(cue in text for text in pair for cue in ("sci.", "From", ">", "name"))


def test_no_document_stands_in_two_splits(tmp_path):
    task = build(as_jsonl(tmp_path))
    texts = {split: {text for pair in documents(task.examples(split)) for text in pair} for split in ("train", "valid", "test")}
    assert not texts["train"] & texts["valid"] and not texts["test"] & (texts["train"] | texts["valid"])


def test_every_layout_and_the_download_give_the_same_pairs(tmp_path, monkeypatch):
    expected = build(as_jsonl(tmp_path / "one")).examples("train").digest()
    for part in ("train", "test"):
        for row in rows(part):
            path = tmp_path / "two" / f"20news-bydate-{part}" / row["group"] / row["id"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(row["text"].encode("latin-1"))
    assert build(str(tmp_path / "two")).examples("train").digest() == expected

    def fetch_20newsgroups(*, data_home, subset, shuffle, remove):
        assert not shuffle and remove == () and Path(data_home).is_dir()
        found = rows(subset)
        names = list(PLACES)
        target = [names.index(row["group"]) for row in found]
        files = [f"/somewhere/{row['group']}/{row['id']}" for row in found]
        return SimpleNamespace(data=[row["text"] for row in found], target=target, target_names=names, filenames=files)

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fetch_20newsgroups)
    assert posts.NEWSGROUPS.download is not None
    posts.NEWSGROUPS.download(tmp_path / "three")
    assert build(str(tmp_path / "three")).examples("train").digest() == expected
    assert (tmp_path / "three/20news/train.jsonl").read_bytes() == (tmp_path / "one/20news/train.jsonl").read_bytes()


def test_the_seed_draws_other_pairs_and_the_title_names_the_stand_in(tmp_path):
    root = as_jsonl(tmp_path)
    assert build(root).examples("test").digest() != build(root, data_seed=1).examples("test").digest()
    assert build(root).data_title == "20 Newsgroups pairs (stand-in for AAN)"
    assert build(root, files="aan").data_title == "AAN" and build(root, files="aan").options.files is Files.aan
    (tmp_path / "20news/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows("test")[1:]))
    with pytest.raises(DamagedDataError, match="must hold 40 examples, as published, but holds 39"):
        build(root, data_seed=2).examples("test")


def as_aan(root: Path, train: str = "") -> str:
    folder = root / "lra_release/lra_release/tsv_data"
    folder.mkdir(parents=True, exist_ok=True)
    lines = {
        "train": ["0.0\t1\t2\ttext one\ttext two", "1.0\t3\t4\tsame\tother", "1.0\t5\t6\tin test\tas well", "0.0\t7\t8\tx\ty"],
        "eval": ["1.0\t1\t9\tvalid one\t'quoted' \"text", "0.0\t2\t9\tvalid\ttwo"],
        "test": ["1.0\t6\t5\tas well\tin test", "0.0\t9\t9\tplain\ttext", "0.0\t9\t9\tplain\ttext"],
    }
    for part, kept in lines.items():
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(kept) + "\n" + (train if part == "train" else ""))
    return str(root)


def test_the_released_pairs_are_read_as_they_are(tmp_path):
    task = build(as_aan(tmp_path), files="aan", train=0, length=16)
    assert [len(task.examples(split)) for split in ("train", "valid", "test")] == [3, 2, 3]
    assert {frozenset(pair) for pair in documents(task.examples("train"))} == {
        frozenset(pair) for pair in (("text one", "text two"), ("same", "other"), ("x", "y"))
    }, "the pair that stands in the test, in the other order, is left out"
    found = dict(zip(documents(task.examples("valid")), task.examples("valid").labels().tolist(), strict=True))
    assert found == {("valid one", "'quoted' \"text"): 1, ("valid", "two"): 0}
    assert len(build(str(tmp_path), files="aan", train=2, length=16).examples("train")) == 2
    with pytest.raises(ValueError, match=r"train must be at most 3, the number of examples left .*; got 4"):
        build(str(tmp_path), files="aan", train=4, length=16).examples("train")
    cut = as_aan(tmp_path / "cut", train="1.0\t3\t4\tcut of")
    with pytest.raises(DamagedDataError, match=r"AAN: .*train\.tsv, line 5 must have 5 columns, but has 4"):
        build(cut, files="aan", train=0, length=16).examples("train")
    with pytest.raises(MissingDataError, match=r"AAN: no data found .*new_aan_pairs\.train\.tsv.*lra_release\.gz"):
        build(str(tmp_path / "none"), files="aan").examples("train")

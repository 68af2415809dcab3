"""SST-2, QNLI, QQP, MRPC and IMDB by tokens: file layouts, splits, tokenisers, and messages about damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from attn_zoo.tasks.datasets import glue
from attn_zoo.tasks.parts.rows import joined
from attn_zoo.tasks.parts.tokenisers import FIRST, SEPARATOR, ByteTokeniser, Tokens, make_tokeniser
from attn_zoo.tasks.sentences import Options

from attn_zoo import build_task
from attn_zoo.contract import MissingDataError, task

PLACES = {
    "sst2": ("SST-2", ("sentence",), ("train", "dev")),
    "qnli": ("QNLI", ("question", "sentence"), ("train", "dev")),
    "qqp": ("QQP", ("question1", "question2"), ("train", "dev")),
    "mrpc": ("MRPC", ("sentence1", "sentence2"), ("train", "test")),
}
Row = tuple[int, tuple[str, ...]]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        glue, "COUNTS", {f"{name}/{part}": 40 if part == "train" else 10 for name in PLACES for part in PLACES[name][2]}
    )


def rows(name: str, part: str) -> list[Row]:
    texts = len(PLACES[name][1])
    count = 40 if part == "train" else 10
    return [(n % 2, tuple(f"{part} says {n} of {side}, “né”" for side in range(texts))) for n in range(count)]


def as_jsonl(root: Path, name: str, parts: tuple[str, ...] = ()) -> str:
    fields = PLACES[name][1]
    (root / name).mkdir(parents=True, exist_ok=True)
    for part in parts or PLACES[name][2]:
        found = [dict(zip(("label", *fields), (label, *texts), strict=True)) for label, texts in rows(name, part)]
        (root / name / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(root)


def as_tables(root: Path, name: str) -> str:
    folder = root / "glue" / PLACES[name][0]
    folder.mkdir(parents=True)
    for part in PLACES[name][2]:
        lines = ["header"]
        for n, (label, texts) in enumerate(rows(name, part)):
            if name == "sst2":
                lines.append(f"{texts[0]}\t{label}")
            elif name == "qnli":
                lines.append("\t".join([str(n), *texts, ("entailment", "not_entailment")[label]]))
            elif name == "qqp":
                lines += ["\t".join([str(n), "1", "2", *texts, str(label)]), "a broken line\tof the published file"]
            else:
                lines.append("\t".join([str(label), "1", "2", *texts]))
        file = f"msr_paraphrase_{part}.txt" if name == "mrpc" else f"{part}.tsv"
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8-sig" if name == "mrpc" else "utf-8")
    return str(root)


def digests(name: str, root: str, **options) -> list[str]:
    built = build_task(name, root=root, length=64, valid=4, **options)
    return [built.examples(split).digest() for split in task.SPLITS]


@pytest.mark.parametrize("name", PLACES)
def test_every_layout_gives_the_same_examples(tmp_path, name):
    assert digests(name, as_jsonl(tmp_path / "one", name)) == digests(name, as_tables(tmp_path / "two", name))
    built = build_task(name, root=str(tmp_path / "one"), length=64, valid=4)
    assert [len(built.examples(split)) for split in task.SPLITS] == [36, 4, 10]
    assert built.card.metric == ("f1" if name in ("qqp", "mrpc") else "accuracy")


@pytest.mark.extras
@pytest.mark.parametrize("name", PLACES)
def test_downloads_are_kept_as_json_lines(tmp_path, name, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(whose, config=None, *, split):
        asked.append((whose, config, split))
        part = {"validation": "dev", "train+validation": "train"}.get(split, split)
        found = rows(name, part)
        columns = {field: [texts[side] for _, texts in found] for side, field in enumerate(PLACES[name][1])}
        return datasets.Dataset.from_dict({**columns, "label": [label for label, _ in found], "idx": list(range(len(found)))})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    download = build_task(name).card.datasets[0].download
    assert download is not None
    download(tmp_path / "got")
    assert {(whose, config) for whose, config, _ in asked} == {("nyu-mll/glue", name)}
    assert digests(name, str(tmp_path / "got")) == digests(name, as_jsonl(tmp_path / "own", name))


def test_qnli_without_its_training_part_is_divided_here_and_says_so(tmp_path):
    root = as_jsonl(tmp_path, "qnli", ("dev",))
    with pytest.raises(MissingDataError, match=r"train\.jsonl\.xz is missing"):
        build_task("qnli", root=root).examples("train")
    built = build_task("qnli", root=root, files="dev", valid=2)
    assert [len(built.examples(split)) for split in task.SPLITS] == [6, 2, 2]
    assert built.data_title == "QNLI (its dev part alone, divided here)"
    assert build_task("qnli").data_title == "QNLI"
    with pytest.raises(ValueError, match=r"qnli\.files must be published or dev"):
        build_task("qnli", files="test")


def test_two_texts_are_parted_and_the_longer_is_cut():
    for one, two, length in product(range(6), range(6), range(3, 9)):
        found = joined([[10 + n for n in range(one)], [20 + n for n in range(two)]], length)
        assert len(found) == min(length, one + two + 1)
        place = found.index(SEPARATOR)
        assert found[:place] == [10 + n for n in range(place)]
        assert found[place + 1 :] == [20 + n for n in range(len(found) - place - 1)]
        kept = place, len(found) - place - 1
        if one + two + 1 > length:
            assert abs(kept[0] - kept[1]) <= 1 or (one, two)[kept.index(min(kept))] == min(kept), "a text is cut below the other"
    assert joined([[1, 2, 3]], 2) == [1, 2]


def test_rows_that_tokens_make_equal_are_one(tmp_path):
    """Texts that differ only after the cut have equal tokens."""
    (tmp_path / "sst2").mkdir()
    texts = {"train": [f"a phrase {n}" for n in range(38)] + ["another phrase", "the tested phrase"], "dev": ["the tested"] * 10}
    for part, kept in texts.items():
        found = [json.dumps({"label": n % 2, "sentence": text}) + "\n" for n, text in enumerate(kept)]
        (tmp_path / f"sst2/{part}.jsonl").write_text("".join(found))
    built = build_task("sst2", root=str(tmp_path), length=10, valid=4)
    splits = {split: built.examples(split) for split in task.SPLITS}
    rows = {split: list(map(tuple, found.batch(range(len(found))).inputs.tolist())) for split, found in splits.items()}
    assert 0 < len(rows["train"]) == len(set(rows["train"])) <= 11, "ten beginnings of phrases, and another"
    assert not set(rows["train"]) & {*rows["valid"], *rows["test"]} and not set(rows["valid"]) & set(rows["test"])
    assert len(rows["test"]) == 10


def test_bytes_need_no_library_and_know_their_words():
    (found,) = ByteTokeniser().encode_words(["né  is\tin"])
    assert bytes(i - FIRST for i in found.ids).decode() == "né  is\tin"
    assert list(found.words) == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert min(ByteTokeniser().encode(["\0"])[0]) == FIRST and max(ByteTokeniser().encode(["\U0010ffff"])[0]) < 256
    assert Options().ids == 259 == ByteTokeniser().vocabulary


CORPUS = [" ".join(f"{'ab' if (n * k) % 3 else 'Ba'}{(n * k) % 17} né{k}" for k in range(1, 9)) for n in range(200)]
_VOCABULARY = """
import hashlib, json, sys
from attn_zoo.tasks.parts.tokenisers import Tokens, make_tokeniser
corpus = json.load(sys.stdin)
found = make_tokeniser(Tokens.bpe, 400, lambda: corpus)
print(hashlib.sha256(json.dumps(found._inner.get_vocab(), sort_keys=True).encode()).hexdigest()[:16])
"""


@pytest.mark.process
def test_learned_tokens_are_the_same_in_every_process():
    pytest.importorskip("tokenizers")
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _VOCABULARY]
    done = subprocess.run(command, input=json.dumps(CORPUS), capture_output=True, text=True, env=environment, check=True)
    found = make_tokeniser(Tokens.bpe, 400, lambda: CORPUS)._inner.get_vocab()
    assert done.stdout.strip() == hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    assert done.stdout.strip() == "4df2d56cf78a67ae", "learned ids changed: raise the tasks' versions"


@pytest.mark.extras
def test_learned_tokens_are_ids_within_bounds():
    pytest.importorskip("tokenizers")
    made = make_tokeniser(Tokens.bpe, 400, lambda: CORPUS)
    ids = [i for row in made.encode(CORPUS) for i in row]
    assert min(ids) >= FIRST and max(ids) < made.vocabulary <= 400
    assert len(set(ids)) > 20 and len(ids) < sum(len(text.encode()) for text in CORPUS)
    words = made.encode_words(CORPUS[:1])[0]
    assert list(words.ids) == list(made.encode(CORPUS[:1])[0]) and len(words.ids) == len(words.words) and len(set(words.words)) > 8


@pytest.mark.extras
def test_tokens_are_learned_from_the_training_split_alone(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    seen = []
    from attn_zoo.tasks import sentences

    def spy(tokens, vocabulary, texts):
        seen.extend(texts())
        return make_tokeniser(tokens, vocabulary, lambda: seen)

    monkeypatch.setattr(sentences, "make_tokeniser", spy)
    digests("mrpc", as_jsonl(tmp_path, "mrpc"), tokens="bpe")
    assert len(seen) == 72 and all(text.startswith("train") for text in seen)

"""Masked language modelling: masked tokens, whole words, splits by author, and files of every layout."""

from __future__ import annotations

import json
from pathlib import Path
from platform import python_version
from random import Random

import numpy as np
import pytest
import torch
from attn_zoo.tasks import masked_language
from attn_zoo.tasks.datasets import running_text
from attn_zoo.tasks.datasets.running_text import Document, articles, python_files, read_files
from attn_zoo.tasks.masked_language import NEAR, first_of_word, mask, shown_far_away
from attn_zoo.tasks.parts.running import divided
from attn_zoo.tasks.parts.tokenisers import FIRST, MASK

from attn_zoo import build_task
from attn_zoo.contract import UNASKED, DamagedDataError, MissingDataError, task


def prose(seed: str, words: int = 120) -> str:
    draw = Random(seed).random
    return " ".join("".join("etaoinshrdlu"[int(draw() * 12)] for _ in range(1 + int(draw() * 7))) for _ in range(words))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> str:
    (tmp_path / "texts/deep").mkdir(parents=True)
    for n in range(10):
        (tmp_path / ("texts/deep" if n % 2 else "texts") / f"{n}.txt").write_text(prose(str(n)))
    return str(tmp_path / "texts")


def build(path: str, **options):
    return build_task("masked_language", files="folder", path=path, length=32, **options)


def everything(examples):
    batch = examples.batch(range(len(examples)))
    return batch.inputs, batch.labels, batch.valid


def restored(inputs, labels):
    """Restore the unmasked text: the label at asked positions, the input elsewhere."""
    return torch.where(labels == UNASKED, inputs, labels)


def test_fifteen_in_a_hundred_are_asked_and_most_of_them_hidden():
    ids = np.random.RandomState(0).randint(FIRST, 200, (2000, 100)).astype(np.int16)
    ids[:, 90:] = 0
    seen, labels = mask(ids, np.broadcast_to(np.arange(100), ids.shape), 200, 0.15, [1])
    asked = labels != UNASKED
    assert (asked.sum(axis=1) == 13).all() and not asked[:, 90:].any(), "15 % of 90, rounded down, and no padding"
    assert (labels[asked] == ids[asked]).all() and (seen[~asked] == ids[~asked]).all()
    assert seen.dtype == labels.dtype == np.int16 and (seen[asked] > 0).all() and seen.max() < 200
    assert (seen[asked] == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (seen[asked] == ids[asked]).mean() == pytest.approx(0.1 + 0.1 / 197, abs=0.01)
    assert asked[:, :90].mean(axis=0) == pytest.approx(13 / 90, abs=0.04), "every place is asked as often"
    assert (mask(ids, np.broadcast_to(np.arange(100), ids.shape), 200, 0.15, [1]).ids == seen).all()
    assert (mask(ids, np.broadcast_to(np.arange(100), ids.shape), 200, 0.15, [2]).ids != seen).any()


def test_whole_words_are_asked_for_whole_and_only_until_there_are_enough():
    draw = np.random.RandomState(1)
    words = first_of_word(np.sort(draw.randint(0, 25, (500, 64)), axis=1))
    ids = draw.randint(FIRST, 300, (500, 64))
    _, labels = mask(ids, words, 300, 0.15, [3])
    asked = labels != UNASKED
    assert (asked == np.take_along_axis(asked, words, axis=1)).all(), "a token is asked if the first of its word is"
    longest = max(int(np.bincount(row).max()) for row in words)
    assert (asked.sum(axis=1) >= 9).all() and (asked.sum(axis=1) < 9 + longest).all()


def test_the_first_token_of_a_word():
    assert first_of_word(np.array([[0, 0, 1, 2, 2, 2, -1, -2]])).tolist() == [[0, 0, 2, 3, 3, 3, 6, 7]]


def test_repeated_tokens_are_shown_far_away_and_nowhere_nearer():
    draw = np.random.RandomState(2)
    ids, wanted = draw.randint(FIRST, 40, (50, 64)), draw.random_sample(40) < 0.5
    labels = np.where(draw.random_sample(ids.shape) < 0.15, ids, UNASKED)
    seen = np.where(labels == UNASKED, ids, draw.randint(0, 40, ids.shape))
    found = shown_far_away(seen, labels, wanted)
    for row, place in np.ndindex(*ids.shape):
        shown = [abs(at - place) for at in range(64) if ids[row, at] == ids[row, place] and labels[row, at] == UNASKED]
        far = bool(shown) and min(shown) > NEAR
        assert found[row, place] == (labels[row, place] != UNASKED and wanted[ids[row, place]] and far)
    assert 20 < found.sum() < (labels != UNASKED).sum() / 2


def test_the_repeated_part_is_of_rare_tokens(folder, monkeypatch):
    built = build(folder)
    assert not built.slices("test")["repeated"].any(), "each letter of this prose is frequent"
    monkeypatch.setattr(masked_language, "RARE", 1.0)
    inputs, labels, _ = everything(built.examples("test"))
    parts = built.slices("test")
    wanted = shown_far_away(inputs.numpy(), labels.numpy(), np.ones(built.spec.classes, dtype=bool))
    assert wanted.any() and (parts["repeated"].numpy() == wanted).all()
    assert torch.equal(parts["repeated"] ^ parts["rest"], labels != UNASKED), "each predicted token is in one part, others in none"


def test_sequences_hold_the_text_and_never_two(folder):
    built = build(folder)
    assert built.spec.labels == "position" and built.spec.classes == 259 and built.card.metric == "perplexity"
    texts = {str(n): prose(str(n)) for n in range(10)}
    where: dict[str, set[str]] = {split: set() for split in task.SPLITS}
    total = 0
    for split in task.SPLITS:
        inputs, labels, valid = everything(built.examples(split))
        for ids, real in zip(restored(inputs, labels), valid, strict=True):
            piece = bytes((ids[real] - FIRST).tolist()).decode()
            owners = {name for name, text in texts.items() if piece in text}
            assert len(owners) == 1 and len(piece) > 16, "sequences are of nearly equal length, without a short rest"
            where[split] |= owners
            total += len(piece)
    assert total == sum(map(len, texts.values())), "no token is lost"
    assert [len(where[split]) for split in task.SPLITS] == [8, 1, 1] and len(set.union(*where.values())) == 10


def test_training_masks_are_drawn_as_often_as_asked_and_evaluation_is_fixed(folder):
    one, three = build(folder), build(folder, draws=3)
    assert len(three.examples("train")) == 3 * len(one.examples("train"))
    inputs, labels, _ = everything(three.examples("train"))
    texts = [tuple(row) for row in restored(inputs, labels).tolist()]
    assert all(texts.count(text) == 3 for text in set(texts))
    assert len({tuple(row) for row in inputs.tolist()}) == len(texts), "each copy has a mask of its own"
    for split in ("valid", "test"):
        assert one.examples(split).digest() == three.examples(split).digest()
    other = build(folder, data_seed=1)
    assert other.examples("test").digest() != one.examples("test").digest()
    assert len(build(folder, train=5, draws=2).examples("train")) == 10


def test_a_sequence_of_a_later_split_is_not_trained_on(folder):
    header = prose("licence")[:128]  # four sequences, with which every file begins
    for path in Path(folder).rglob("*.txt"):
        path.write_text((header + path.read_text())[:384])
    task = build(folder)
    texts = {split: [tuple(row) for row in restored(*everything(task.examples(split))[:2]).tolist()] for split in ("train", "test")}
    assert len(texts["test"]) % 12 == 0 and len(texts["train"]) % 8 == 0 and not {*texts["train"]} & {*texts["test"]}


def test_evaluation_on_fewer_tokens_takes_the_same_text_at_every_length(folder):
    def texts(length: int, **options: int) -> dict[str, str]:
        built = build_task("masked_language", files="folder", path=folder, length=length, **options)
        pieces = {}
        for split in ("valid", "test"):
            inputs, labels, valid = everything(built.examples(split))
            rows = zip(restored(inputs, labels), valid, strict=True)
            pieces[split] = {bytes((ids[real] - FIRST).tolist()).decode() for ids, real in rows}
        whole = {split: next(prose(str(n)) for n in range(10) if min(pieces[split]) in prose(str(n))) for split in pieces}
        return {split: "".join(sorted(pieces[split], key=whole[split].index)) for split in pieces}

    short, long = texts(32, valid_tokens=100, test_tokens=200), texts(64, valid_tokens=100, test_tokens=200)
    assert short == long and {split: len(text) for split, text in short.items()} == {"valid": 100, "test": 200}
    whole = texts(32)
    assert all(whole[split].startswith(short[split]) and len(whole[split]) > 200 for split in whole)
    assert texts(32, valid_tokens=10**6) == whole
    train = [build(folder, **options).examples("train").digest() for options in ({}, {"valid_tokens": 100})]
    assert train[0] == train[1]
    with pytest.raises(ValueError, match=r"masked_language\.test_tokens must be 0 \(all\) or a number of tokens; got -1"):
        build(folder, test_tokens=-1)


def test_whole_words_of_bytes(folder):
    inputs, labels, valid = everything(build(folder, whole_words=True).examples("train"))
    for ids, asked, real in zip(restored(inputs, labels), labels != UNASKED, valid, strict=True):
        text = bytes((ids[real] - FIRST).tolist())
        inside = [place for place in range(1, len(text)) if text[place : place + 1] != b" "]
        assert all(asked[place] == asked[place - 1] for place in inside), "a word and the space before it are asked for together"


@pytest.mark.extras
def test_learned_tokens_and_their_words(folder):
    pytest.importorskip("tokenizers")
    built = build(folder, tokens="bpe", vocabulary=300, whole_words=True)
    inputs, labels, _ = everything(built.examples("test"))
    assert built.spec.classes == 300 and int(inputs.max()) < 300 and int(labels.max()) < 300
    share = float((labels != UNASKED).sum() / (inputs != 0).sum())
    assert 0.1 < share < 0.3


def test_texts_of_an_author_stay_together():
    library = {"all": [Document(f"author {n % 16}", f"text {n}") for n in range(64)]}
    found = divided(library)
    owner = {text: int(text.split()[1]) % 16 for texts in found.values() for text in texts}
    owners = {split: {owner[text] for text in texts} for split, texts in found.items()}
    assert [len(owners[split]) for split in task.SPLITS] == [12, 2, 2] and len(set.union(*owners.values())) == 16
    assert divided({"all": library["all"][::-1]})["test"][::-1] == found["test"], "the order of the file decides nothing"
    with pytest.raises(ValueError, match="at least one author or file for each split, but the texts have only 2"):
        divided({"all": library["all"][:2]})


def wikitext(root: Path, monkeypatch, parts=("train", "valid", "test"), name="{}.txt") -> str:
    (root / "wikitext-2").mkdir(parents=True)
    counts = {}
    for part in ("train", "valid", "test"):
        pages = [f" \n = {part} {n} = \n \n = = Section = = \n \n {prose(f'{part} {n}')} \n" for n in range(6)]
        counts[part] = sum(len(line.split()) + 1 for line in "".join(pages).splitlines())
        if part in parts:
            (root / "wikitext-2" / name.format(part)).write_text("".join(pages))
    monkeypatch.setattr(running_text, "TOKENS", counts)
    return str(root)


def test_wikitext_keeps_its_parts_or_says_that_it_has_not_all(tmp_path, monkeypatch):
    whole = wikitext(tmp_path / "one", monkeypatch)
    tokens = wikitext(tmp_path / "two", monkeypatch, name="wiki.{}.tokens")
    built = build_task("masked_language", root=whole, length=64)
    assert built.examples("train").digest() == build_task("masked_language", root=tokens, length=64).examples("train").digest()
    inputs, labels, valid = everything(built.examples("train"))
    text = b"".join(bytes((ids[real] - FIRST).tolist()) for ids, real in zip(restored(inputs, labels), valid, strict=True)).decode()
    assert all(f"= train {n} =" in text or f"train {n}" in text for n in range(6)) and "valid" not in text

    part = wikitext(tmp_path / "three", monkeypatch, parts=("valid", "test"))
    with pytest.raises(MissingDataError, match=r"train\.txt\.xz is missing"):
        build_task("masked_language", root=part, length=64).examples("train")
    (Path(whole) / "wikitext-2/test.txt").write_text(" = Title = \n cut off")
    with pytest.raises(DamagedDataError, match=r"test\.txt must hold \d+ words, as published, but holds 7"):
        build_task("masked_language", root=whole, length=32).examples("test")


def test_articles_begin_at_their_titles():
    found = articles(" \n = One = \n \n = = Section = = \n a = b \n = Two ( too ) = \n words \n")
    assert [document.text.split("\n")[0] for document in found] == [" = One = ", " = Two ( too ) = "]
    assert articles("no title")[0].text == "no title"


@pytest.mark.extras
def test_wikitext_is_fetched_as_it_was_published(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    own = Path(wikitext(tmp_path / "own", monkeypatch)) / "wikitext-2"

    def load_dataset(name, config=None, *, split):
        assert (name, config) == ("Salesforce/wikitext", "wikitext-2-v1")
        lines = (own / f"{'valid' if split == 'validation' else split}.txt").read_text().splitlines(keepends=True)
        return datasets.Dataset.from_dict({"text": [line if line.strip() else "" for line in lines]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert running_text.WIKITEXT2.download is not None
    running_text.WIKITEXT2.download(tmp_path / "got")
    for part in ("train", "valid", "test"):
        assert (tmp_path / f"got/wikitext-2/{part}.txt").read_bytes() == (own / f"{part}.txt").read_bytes()


def test_novels_are_divided_by_author(tmp_path):
    (tmp_path / "novels").mkdir()
    books = [{"id": f"Author{n % 8}_Title{n}_1900", "text": prose(str(n))} for n in range(16)]
    (tmp_path / "novels/novels.jsonl").write_text("".join(json.dumps(book) + "\n" for book in books))
    built = build_task("masked_language", root=str(tmp_path), files="novels", length=64)
    sizes = [len(built.examples(split)) for split in task.SPLITS]
    assert sizes[0] > 4 * sizes[1] and built.data_title == "English novels"
    with pytest.raises(MissingDataError, match="Write one novel a line"):
        build_task("masked_language", root=str(tmp_path / "none"), files="novels").examples("train")


def test_the_standard_library_is_divided_by_file(tmp_path, monkeypatch):
    read = ("a.py", "json/a.py", "json/b.py", "os.py")
    left_out = ("site-packages/d.py", "json/tests/e.py", "tkinter/f.py", "_sysconfigdata__linux.py", "notes.txt")
    for name in (*read, *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(prose(name))
    found = python_files(tmp_path)
    assert [name for name, _ in found] == list(read)
    texts = divided(read_files(found))
    assert sorted(len(texts[split]) for split in task.SPLITS) == [1, 1, 2]
    monkeypatch.setattr("attn_zoo.tasks.parts.running.python_files", lambda: found)
    built = build_task("masked_language", files="python", length=32)
    assert min(len(built.examples(split)) for split in task.SPLITS) > 0
    assert built.data_title == f"standard library of Python {python_version()}"
    with pytest.raises(MissingDataError, match="holds only 0 files of it"):
        python_files(tmp_path / "nowhere")


def test_the_standard_library_is_text_of_some_size():
    named = python_files()
    assert len(named) > 300 and {"argparse.py", "json/decoder.py", "typing.py"} <= {name for name, _ in named}
    documents = read_files(named)["all"]
    assert sum(len(document.text) for document in documents) > 5e6


def test_folders_without_enough_texts_are_named(tmp_path, folder):
    with pytest.raises(MissingDataError, match="at least three text files"):
        build(str(tmp_path / "none")).examples("train")
    (Path(folder) / "0.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedDataError, match=r"0\.txt is not whole UTF-8 text"):
        build(folder, data_seed=5).examples("train")

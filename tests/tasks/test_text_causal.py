"""Causal language modelling: the next token, sequences within one text, and tokens that repeat a rare run."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from attn_zoo.tasks.causal_language import stood_before
from attn_zoo.tasks.parts.tokenisers import FIRST
from oracles import everything
from torch import Tensor

from attn_zoo import build_task
from attn_zoo.contract import SPLITS, MissingDataError


def prose(seed: str, words: int = 400) -> str:
    draw = Random(seed).random
    return " ".join("".join("etaoinshrdlu"[int(draw() * 12)] for _ in range(1 + int(draw() * 7))) for _ in range(words))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> str:
    (tmp_path / "texts").mkdir()
    for n in range(10):
        words = prose(str(n)).split()
        words[::20] = [prose(f"name {n}", 4).replace(" ", "").title()] * len(words[::20])  # a name that recurs in the text
        (tmp_path / f"texts/{n}.txt").write_text(" ".join(words))
    return str(tmp_path / "texts")


def build(path: str, **options):
    return build_task("causal_language", files="folder", path=path, **{"length": 32, **options})


def test_every_position_asks_for_the_next_byte_of_one_text(folder):
    task = build(folder, length=64)
    texts = [(open(f"{folder}/{n}.txt").read()) for n in range(10)]  # noqa: SIM115
    read = 0
    for split in SPLITS:
        ids, labels = everything(task.examples(split))
        assert ids.shape[1] == 64 and torch.equal(ids[:, 1:], labels[:, :-1])
        for row, last in zip(ids, labels[:, -1], strict=True):
            text = bytes([*(row - FIRST).tolist(), int(last) - FIRST]).decode()
            assert any(text in whole for whole in texts)
        read += ids.numel()
    assert sum(map(len, texts)) - 10 * 65 < read <= sum(map(len, texts)), "only what is left over is not read"
    assert task.spec.causal and task.spec.classes == 259


def test_files_of_one_name_in_several_folders_are_several_texts(tmp_path):
    for book in "abc":
        (tmp_path / "books" / book).mkdir(parents=True)
        (tmp_path / "books" / book / "text.txt").write_text(prose(book))
    assert all(len(build(str(tmp_path / "books")).examples(split)) > 0 for split in SPLITS), "each split has a text of its own"


def test_repeated_is_what_ends_a_rare_run_that_stood_before(folder):
    task = build(folder, length=128, run=6, rare=3)
    trained = [bytes(row.tolist()) for row in whole_sequences(*everything(task.examples("train")))]
    for split in SPLITS:
        parts = task.slices(split)
        assert torch.equal(parts["rest"], ~parts["repeated"])
        for row, repeated in zip(whole_sequences(*everything(task.examples(split))), parts["repeated"], strict=True):
            text = bytes(row.tolist())
            for at in range(128):
                run = text[max(0, at - 4) : at + 2]
                before = len(run) == 6 and text.find(run) < at - 4
                assert bool(repeated[at]) == (before and sum(occurrences(other, run) for other in trained) <= 3)
    assert task.slices("test")["repeated"].any()


def whole_sequences(ids: Tensor, labels: Tensor) -> Tensor:
    """Return the sequences, each with the token that follows its last."""
    return torch.cat([ids[:, :1], labels], dim=1)


def occurrences(text: bytes, run: bytes) -> int:
    """Count the occurrences of a run in a text, including overlapping ones."""
    return sum(text.startswith(run, at) for at in range(len(text)))


def test_a_number_stands_before():
    codes = np.array([[1, 2, 1, 1, 3, 2], [5, 5, 4, 4, 4, 5]])
    assert stood_before(codes).tolist() == [[False, False, True, True, False, True], [False, True, False, True, True, True]]


def test_no_training_sequence_stands_in_a_later_split(folder):
    for n in range(10):  # all texts are the same
        open(f"{folder}/{n}.txt", "w").write(prose("same"))  # noqa: SIM115
    with pytest.raises(ValueError, match=r"every sequence of valid also occurs in a later split.*\. Give other texts"):
        build(folder).examples("train")


def test_texts_that_are_too_short_are_refused(folder):
    with pytest.raises(
        ValueError, match=r"each split must have a text of at least 16385 tokens, but one split has no such text. Give longer texts"
    ):
        build(folder, length=16_384).examples("test")


@pytest.mark.extras
def test_pieces_of_words_and_fewer_sequences(folder):
    pytest.importorskip("tokenizers")
    task = build(folder, tokens="bpe", vocabulary=300, train=20)
    assert len(task.examples("train")) == 20 and task.spec.classes == 300
    assert task.slices("test")["repeated"].any()


def test_missing_texts_say_what_to_do(tmp_path):
    with pytest.raises(MissingDataError, match="novels"):
        build_task("causal_language", root=str(tmp_path), files="novels").examples("train")

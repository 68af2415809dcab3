"""Texts of a transplant as passages, which are token sequences of one length: to learn from, to test on, and labelled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attn_zoo.analysis.text import cut, default_text, read_text, short_path, stretches
from attn_zoo.contract import DamagedDataError
from attn_zoo.data import read_jsonl
from attn_zoo.data.labelled_text import LabelledText
from attn_zoo.transplant.setting import SHORTEST, Setting

TELLING = 20
"""A line of the test text with at least this number of characters is removed from the training texts. Shorter lines, such as
headings, are kept."""
_PARTS = 4
"""Number of parts into which the default text is cut. The last part is the test text."""


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """Token sequences of one length, padded at their ends."""

    ids: Int[Tensor, "passages length"]
    valid: Bool[Tensor, "passages length"]
    """True for a real token."""

    @classmethod
    def whole(cls, ids: Int[Tensor, "passages length"]) -> Passages:
        """Return passages without padding."""
        return cls(ids, torch.ones_like(ids, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Passages:
        """Select passages by slice, indices or mask."""
        return Passages(self.ids[rows], self.valid[rows])

    def trimmed(self) -> Passages:
        """Return the passages without the padding that all of them have at the end."""
        longest = int(self.valid.sum(dim=1).max())
        return Passages(self.ids[:, :longest], self.valid[:, :longest])

    def batches(self, size: int) -> Iterator[Passages]:
        """Yield batches of at most ``size`` passages, in order."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def call(self) -> dict[str, Tensor]:
        """Return the passages as keyword arguments of a model of the library transformers."""
        return {"input_ids": self.ids, "attention_mask": self.valid.to(torch.long)}


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Labelled texts of one classification task, for training and for testing."""

    name: str
    title: str
    train: Passages
    train_labels: Int[Tensor, " train"]
    test: Passages
    test_labels: Int[Tensor, " test"]

    @property
    def facts(self) -> dict[str, Any]:
        """Title, numbers of examples, and the accuracy of always answering the most frequent class of the test examples."""
        majority = float(self.test_labels.bincount().max()) / len(self.test_labels)
        return {"title": self.title, "train": len(self.train), "test": len(self.test), "majority": majority}


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """All passages of a transplant, and facts about the files that they come from."""

    learn: Passages
    test: Passages
    """Passages 2 i and 2 i + 1 are consecutive in a text."""
    pairs: Passages | None
    """First sentences of all sentence pairs, followed by all second sentences, or None."""
    same: list[bool]
    """Label of each sentence pair, True for paraphrases."""
    facts: Mapping[str, Any]
    tasks: Sequence[Labelled] = ()
    """Text classification tasks on which students are fine-tuned."""


def gather(
    setting: Setting,
    tokenizer: Any,
    train: Sequence[Path],
    test: Sequence[Path],
    pairs: Path | None,
    tasks: Sequence[Labelled] = (),
) -> Material:
    """Return the passages of a transplant. The training passages are divided equally among the files and folders in ``train``, up
    to a difference of one. Lines of the training texts that also occur in the test text or in the pairs are left out and counted.

    Raises:
        ValueError, OSError: a file is missing or damaged, a text is too short, or only one of ``train`` and ``test`` is given.
    """
    if bool(train) != bool(test):
        raise ValueError("train= and test= must be given together. Leave both out to use the text of the Python Language Reference")
    sentences, same = ([], []) if pairs is None else read_pairs(pairs, setting.pair_count)
    if train:
        sources, test_text = [read_text(path) for path in train], "\n\n".join(map(read_text, test))
        names, test_name = [short_path(path) for path in train], ", ".join(map(short_path, test))
    else:
        text, words = default_text()
        *learned, test_text = stretches(text, _PARTS)
        sources, names = ["".join(learned)], [f"{words}, first {_PARTS - 1} of {_PARTS} parts"]
        test_name = f"{words}, last of {_PARTS} parts"
    left_out, parts = 0, []
    for at, (source, name) in enumerate(zip(sources, names, strict=True)):
        cleaned, removed = without(source, [test_text, *sentences])
        left_out += removed
        share = setting.passages * (at + 1) // len(sources) - setting.passages * at // len(sources)
        if share:
            parts.append(cut(cleaned, tokenizer, setting.length, share, what=f"train ({name}, less what is tested on)"))
    learn = shorten(Passages.whole(torch.cat(parts)), setting.short, tokenizer, torch.Generator().manual_seed(0))
    what = f"test ({test_name})"
    tested = Passages.whole(cut(test_text, tokenizer, setting.length, setting.tests // 2, following=2, what=what))
    paired = read_in(sentences, tokenizer, setting.length) if sentences else None
    passages = {"learn": learn, "test": tested} | ({} if paired is None else {"pairs": paired})
    for task in tasks:
        passages |= {f"{task.name} train": task.train, f"{task.name} test": task.test}
    facts: dict[str, Any] = {
        "train": names,
        "test": test_name,
        "pairs": None if pairs is None else short_path(pairs),
        "lines_left_out": left_out,
        "digest": _digest_of(passages),
    }
    if tasks:
        facts["tasks"] = {task.name: task.facts for task in tasks}
    return Material(learn, tested, paired, same, facts, tasks)


def labelled(
    name: str, title: str, train: Sequence[LabelledText], test: Sequence[LabelledText], tokenizer: Any, setting: Setting
) -> Labelled:
    """Return a classification task as passages, from the first examples of ``train`` and ``test``. Training examples with the same
    tokens as a test example are left out.

    If two texts of an example are too long together, the longer one is truncated. Both texts get segment id 0, as in the
    training of sentence encoders.
    """
    learned, tests = train[: setting.classify_train], test[: setting.classify_tests]

    def encoded(rows: Sequence[LabelledText]) -> Passages:
        texts, *seconds = zip(*(row.texts for row in rows), strict=True)
        return read_in(texts, tokenizer, setting.length, *seconds)

    train_passages, test_passages = encoded(learned), encoded(tests)
    tested = set(map(tuple, test_passages.ids.tolist()))
    new = torch.tensor([tuple(row) not in tested for row in train_passages.ids.tolist()])
    labels, answers = (torch.tensor([row.label for row in rows]) for rows in (learned, tests))
    return Labelled(name, title, train_passages[new], labels[new], test_passages, answers)


def shorten(passages: Passages, share: float, tokenizer: Any, generator: torch.Generator) -> Passages:
    """Return all passages, with some cut to random lengths and padded. ``share`` is the share of cut passages, which are evenly
    spaced among all. A cut passage keeps its last token, a special token.

    Passages with at most ``SHORTEST`` tokens are returned unchanged.
    """
    length, padding = passages.ids.shape[1], tokenizer.pad_token_id or 0
    if length <= SHORTEST:
        return passages
    ids, valid = passages.ids.clone(), passages.valid.clone()
    lengths = torch.randint(SHORTEST, length, (len(ids),), generator=generator)
    for row in range(len(ids)):
        if int(share * (row + 1)) > int(share * row):
            end = int(lengths[row])
            ids[row, end - 1] = passages.ids[row, -1]
            ids[row, end:], valid[row, end:] = padding, False
    return Passages(ids, valid)


def read_in(texts: Sequence[str], tokenizer: Any, length: int, seconds: Sequence[str] | None = None) -> Passages:
    """Return each text as one passage, truncated or padded to ``length`` tokens.

    Args:
        seconds: second text of each passage, or None. If two texts are too long together, the longer one is truncated.
    """
    tokenizer.padding_side = "right"
    pairs = None if seconds is None else list(seconds)
    found = tokenizer(list(texts), pairs, truncation=True, max_length=length, padding="max_length", return_tensors="pt")
    return Passages(found["input_ids"], found["attention_mask"].bool())


def read_pairs(path: Path, count: int) -> tuple[list[str], list[bool]]:
    """Return ``count`` sentence pairs that are evenly spaced in a file of JSON lines: first sentences followed by second sentences,
    and for each pair whether it is a paraphrase. Each line has ``sentence1``, ``sentence2`` and a ``label``, 0 or 1.

    Raises:
        ValueError: the file is damaged, holds too few pairs, or has the same label for all.
    """
    try:
        rows = list(read_jsonl(path, ["sentence1", "sentence2", "label"]))
    except DamagedDataError as error:
        raise ValueError(f"pairs: {error}") from error
    if len(rows) < count:
        raise ValueError(f"pair_count= must be at most {len(rows)}, because {path} has {len(rows)} pairs; got {count}")
    chosen = [rows[at * len(rows) // count] for at in range(count)]
    if (labels := {json.dumps(row["label"]) for row in chosen}) != {"0", "1"}:
        raise ValueError(
            f"{path}: every pair must have the label 0 or 1, and both labels must occur; got {', '.join(sorted(labels))}"
        )
    return [str(row[name]) for name in ("sentence1", "sentence2") for row in chosen], [bool(row["label"]) for row in chosen]


def without(text: str, others: Iterable[str]) -> tuple[str, int]:
    """Return the text without the lines that also occur in other texts, and the number of removed lines. White space and case are
    ignored. Lines of fewer than ``TELLING`` characters are never removed."""
    known = {_plain(line) for other in others for line in other.split("\n")} - {None}
    lines = text.split("\n")
    kept = [line for line in lines if _plain(line) not in known]
    return "\n".join(kept), len(lines) - len(kept)


def _plain(line: str) -> str | None:
    plain = " ".join(line.lower().split())
    return plain if len(plain) >= TELLING else None


def _digest_of(passages: Mapping[str, Passages]) -> str:
    """Return a digest of all tokens in the passages. Equal digests mean equal passages."""
    whole = hashlib.sha256()
    for name in sorted(passages):
        whole.update(name.encode())
        whole.update(passages[name].ids.numpy().tobytes())
        whole.update(passages[name].valid.numpy().tobytes())
    return whole.hexdigest()[:16]

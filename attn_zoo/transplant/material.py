"""Texts of a transplant, as training and test passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attn_zoo.analysis.text import default_text, read_text, short_path, stretches
from attn_zoo.transplant.classify import Labelled
from attn_zoo.transplant.passages import Passages, cut, digest_of, join, read_in, shorten, without
from attn_zoo.transplant.quality import read_pairs
from attn_zoo.transplant.setting import Setting

_PARTS = 4
"""Number of parts into which the default text is cut. The last part is the test text."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """All passages of a transplant, and facts about the files that they come from."""

    learn: Passages
    test: Passages
    pairs: Passages | None
    """First sentences of all sentence pairs, followed by all second sentences, or None."""
    same: list[bool] | None
    """Label of each sentence pair, True for paraphrases. None if the pairs have no labels."""
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
    sentence_pairs = [] if pairs is None else read_pairs(pairs, setting.pair_count)
    sources, test_text, train_names, test_name = _texts(train, test)
    sentences = [pair.first for pair in sentence_pairs] + [pair.second for pair in sentence_pairs]
    labels = [pair.same for pair in sentence_pairs if pair.same is not None]
    cleaned = [without(text, [test_text, *sentences]) for text in sources]
    shares = [setting.passages * (at + 1) // len(sources) - setting.passages * at // len(sources) for at in range(len(sources))]
    parts = [
        cut(text, tokenizer, setting.length, share, what=f"train ({name}, less what is tested on)")
        for (text, _), share, name in zip(cleaned, shares, train_names, strict=True)
        if share
    ]
    learn = shorten(join(parts), setting.short, tokenizer, torch.Generator().manual_seed(0))
    test_passages = cut(test_text, tokenizer, setting.length, setting.tests // 2, following=2, what=f"test ({test_name})")
    pair_passages = read_in(sentences, tokenizer, setting.length) if sentences else None
    all_passages = {"learn": learn, "test": test_passages} | ({} if pair_passages is None else {"pairs": pair_passages})
    for task in tasks:
        all_passages |= {f"{task.name} train": task.train, f"{task.name} test": task.test}
    facts: dict[str, Any] = {
        "train": train_names,
        "test": test_name,
        "pairs": None if pairs is None else short_path(pairs),
        "lines_left_out": sum(count for _, count in cleaned),
        "digest": digest_of(all_passages),
    }
    if tasks:
        facts["tasks"] = {task.name: task.facts for task in tasks}
    return Material(learn, test_passages, pair_passages, labels or None, facts, tasks)


def _texts(train: Sequence[Path], test: Sequence[Path]) -> tuple[list[str], str, list[str], str]:
    """Return the training texts, the test text, the names of the training texts, and the name of the test text."""
    if train:
        names = [short_path(path) for path in train]
        return [read_text(path) for path in train], "\n\n".join(map(read_text, test)), names, ", ".join(map(short_path, test))
    text, words = default_text()
    *learned, test_text = stretches(text, _PARTS)
    return ["".join(learned)], test_text, [f"{words}, first {_PARTS - 1} of {_PARTS} parts"], f"{words}, last of {_PARTS} parts"

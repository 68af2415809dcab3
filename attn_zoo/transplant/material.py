"""The text of a transplant: what students learn from, what they are tested on, and that nothing is both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attn_zoo.analysis.text import default_text, stretches
from attn_zoo.transplant.passages import Passages, cut, digest_of, join, read_in, shorten, without
from attn_zoo.transplant.quality import Pair, read_pairs, read_texts
from attn_zoo.transplant.setting import Setting

_PARTS = 4
"""Of the default text, the last of so many parts is tested on."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """All passages of a transplant, and words on where they come from."""

    learn: Passages
    test: Passages
    pairs: Passages | None
    """First sentences, then as many second ones."""
    same: list[bool] | None
    facts: Mapping[str, Any]


def gather(setting: Setting, tokenizer: Any, train: Sequence[Path], test: Sequence[Path], pairs: Path | None) -> Material:
    """Read and cut everything. Each file or folder to learn from gives as many passages as the others.

    Lines of the texts to learn from that stand in the text or the pairs to test on as well are left out, and counted.

    Raises:
        ValueError, OSError: a file is missing or damaged, a text too short, or one of ``train`` and ``test`` is not given.
    """
    if bool(train) != bool(test):
        raise ValueError("train and test are texts to learn from and to test on: give both, or neither for Python's reference")
    asked = [] if pairs is None else read_pairs(pairs, setting.pair_count)
    sources, tested, named, said = _texts(train, test)
    others = [tested, *(pair.first for pair in asked), *(pair.second for pair in asked)]
    cleaned = [without(text, others) for text in sources]
    shares = [setting.passages * (at + 1) // len(sources) - setting.passages * at // len(sources) for at in range(len(sources))]
    parts = [
        cut(text, tokenizer, setting.length, share, what=f"train ({name}, less what is tested on)")
        for (text, _), share, name in zip(cleaned, shares, named, strict=True)
        if share
    ]
    learn = shorten(join(parts), setting.short, tokenizer, torch.Generator().manual_seed(0))
    found = cut(tested, tokenizer, setting.length, setting.tests // 2, following=2, what=f"test ({said})")
    sentences = None if not asked else read_in(_in_order(asked), tokenizer, setting.length)
    everything = {"learn": learn, "test": found} | ({} if sentences is None else {"pairs": sentences})
    facts = {
        "train": named,
        "test": said,
        "pairs": None if pairs is None else _short(pairs),
        "lines_left_out": sum(count for _, count in cleaned),
        "digest": digest_of(everything),
    }
    return Material(learn, found, sentences, _same(asked), facts)


def _texts(train: Sequence[Path], test: Sequence[Path]) -> tuple[list[str], str, list[str], str]:
    """Texts to learn from, the text to test on, and the names of both."""
    if train:
        names = [_short(path) for path in train]
        return [read_texts([path]) for path in train], read_texts(list(test)), names, ", ".join(map(_short, test))
    text, words = default_text()
    *learned, tested = stretches(text, _PARTS)
    return ["".join(learned)], tested, [f"{words}, first {_PARTS - 1} of {_PARTS} parts"], f"{words}, last of {_PARTS} parts"


def _in_order(asked: Sequence[Pair]) -> list[str]:
    return [pair.first for pair in asked] + [pair.second for pair in asked]


def _same(asked: Sequence[Pair]) -> list[bool] | None:
    known = [pair.same for pair in asked if pair.same is not None]
    return known if asked and len(known) == len(asked) else None


def _short(path: Path) -> str:
    """The last two parts of a path, which tell data apart without telling where they lie."""
    return "/".join(path.resolve().parts[-2:])

"""Text of Long Range Arena: classify film reviews by sentiment. Reviews are read byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, Examples, Level, Split, Task, TaskSpec, Tokens
from attn_zoo.data import cached, data_root, dataset_digests
from attn_zoo.registry import register_task

from .datasets.imdb import IMDB
from .parts.arrays import ArrayExamples, token_examples
from .parts.byte_tokens import VOCABULARY, byte_tokens, pad
from .parts.division import divide
from .parts.levels import smoke
from .parts.options import require_range


@dataclass
class Options:
    """Options of the task ``text``."""

    length: int = 1_024
    """Number of bytes that are read from the beginning of each review; 1,000 to 4,000 in Long Range Arena."""
    train: int = 0
    """Number of training reviews. The first reviews are used; 0 means all except the validation reviews."""
    valid: int = 2_500
    """Number of validation reviews, cut from the published training split."""
    root: str = ""
    """Data folder, which contains ``imdb`` or ``aclImdb``. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is
    not set."""

    def __post_init__(self) -> None:
        require_range("text.length", self.length, 16, 16_384, "counts bytes")
        if not 2 <= self.valid <= 12_500:
            raise ValueError(
                f"text.valid must be from 2 to 12,500, because it is taken from the 25,000 training reviews; got {self.valid}"
            )
        if not 0 <= self.train <= 25_000:
            raise ValueError(f"text.train must be 0 (all) or at most 25,000; got {self.train}")


@register_task(
    "text",
    title="Text (bytes)",
    version="1",
    summary="Predict the sentiment of film reviews, read byte by byte; two classes.",
    source="IMDB, Maas et al. 2011; as bytes after Tay et al. 2020, arXiv:2011.04006",
    licence=IMDB.licence,
    options=Options,
    locations=("root",),
    datasets=(IMDB,),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 500, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 50, "evaluate_every": 250},
            differs="2 layers of width 64 in place of 4 of width 256, 1,024 bytes, and a fortieth of the steps",
        ),
        "smoke": smoke({"length": 64, "valid": 200}, steps=4, dim=16, depth=1),
        "lra": Level(
            model={"dim": 256, "depth": 4, "heads": 4, "mlp_ratio": 4.0},
            budget={
                "steps": 20_000,
                "batch_size": 32,
                "learning_rate": 5.6e-4,
                "weight_decay": 0.1,
                "warmup_steps": 8_000,
                "evaluate_every": 500,
            },
            options={"length": 4_000},
            differs="the rate rises to the published schedule's highest value, 0.05 / √8000; sizes are those of the published "
            "code, the paper's are 6 layers of width 512; one length, where the published score is the best of four",
        ),
    },
    variants={"short": {"length": 64, "train": 2_000, "valid": 500}},
)
class Text(Task):
    """Classification of film reviews by sentiment, as positive or negative.

    Source: 25,000 training and 25,000 test reviews in UTF-8, equally many positive and negative.
    Differs: Long Range Arena validates on the test reviews. Here the validation reviews (``valid`` is their number) are cut from
        the training split. Reviews are cut to ``length`` bytes. Training reviews that then also occur in the test split are left
        out, and so are duplicates; at 1,024 bytes, 24,778 remain. As in the code of Long Range Arena, padding is 0 and a token is
        the value of a byte plus one. The published table reports the best of four lengths; here the length is an option that is set
        before training.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: one token for each byte, padded at the end to ``length``."""
        return TaskSpec(Tokens(VOCABULARY), self.options.length, classes=2)

    def examples(self, split: Split) -> Examples:
        """Return the reviews of a split, as tokens.

        Raises:
            FileNotFoundError: files with the reviews do not exist.
            ValueError: a file is damaged, a split does not have the published number of reviews, or fewer than ``train`` training
                reviews are left.
        """
        o = self.options
        return _splits(data_root(o.root), o.length, o.valid, o.train)[SPLITS.index(split)]


@lru_cache(maxsize=2)
def _splits(root: Path, length: int, valid: int, train: int) -> tuple[ArrayExamples, ...]:
    recipe = {"version": Text.card.version, "length": length, "valid": valid, "files": dataset_digests(IMDB, root)}
    return token_examples(cached("text", recipe, lambda: _read(root, length, valid)), train=train)


def _read(root: Path, length: int, valid: int) -> dict[str, NDArray[np.uint8]]:
    parts = IMDB.load(root)
    rows = {part: [(byte_tokens(row.texts[0], length), row.label) for row in parts[part]] for part in ("train", "test")}
    division = divide(rows["train"], rows["test"], valid)
    arrays = {}
    for split, places in zip(SPLITS, division, strict=True):
        source = rows["test" if split == "test" else "train"]
        arrays[f"{split} ids"] = pad([source[place][0] for place in places], length, np.uint8)
        arrays[f"{split} labels"] = np.array([source[place][1] for place in places], dtype=np.uint8)
    return arrays

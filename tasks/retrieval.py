"""Retrieval of Long Range Arena: are two documents related? Both are read byte by byte and encoded separately."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, Examples, Level, Pairs, Split, Task, TaskSpec
from attn_zoo.data import cached, data_root, dataset_digests
from attn_zoo.registry import register_task

from .datasets.aan import AAN
from .datasets.posts import NEWSGROUPS, body
from .parts.arrays import ArrayExamples, token_examples
from .parts.byte_tokens import VOCABULARY, byte_tokens, pad
from .parts.division import Row, divide, hashed_order
from .parts.levels import smoke
from .parts.options import choice, require_range

LEAST = 100
"""Length in characters of the shortest post that is used; shorter ones have no recognisable topic."""

VALID_SHARE = 10
"""One training post in ``VALID_SHARE`` is held out for validation pairs."""


class Files(Enum):
    """Source of the pairs of documents."""

    newsgroups = "newsgroups"
    """Pairs of posts from the same newsgroup or from two newsgroups, a substitute for AAN."""
    aan = "aan"
    """Pairs of papers from the files of Long Range Arena: one paper cites the other, or neither does."""


@dataclass
class Options:
    """Options of the task ``retrieval``."""

    files: Files = Files.newsgroups
    """Source of the documents: ``newsgroups`` or ``aan``."""
    length: int = 512
    """Number of bytes that are read from the beginning of each document; 4,000 in Long Range Arena."""
    train: int = 20_000
    """Number of training pairs to draw. With ``files=aan``, the first pairs in the order of their digests are used, and 0 means
    all."""
    valid: int = 2_000
    """Number of validation pairs to draw; unused for ``aan``."""
    test: int = 4_000
    """Number of test pairs to draw; unused for ``aan``."""
    data_seed: int = 0
    """Seed of the pairs; unused for ``aan``."""
    root: str = ""
    """Data folder, which contains ``20news`` or ``lra_release``. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable
    is not set."""

    def __post_init__(self) -> None:
        self.files = choice("retrieval.files", self.files, Files)
        require_range("retrieval.length", self.length, 16, 16_384, "counts bytes")
        if self.train < 2 and not (self.train == 0 and self.files is Files.aan):
            raise ValueError(f"retrieval.train must be at least 2 or, with files=aan, 0 for all pairs; got {self.train}")
        for name in ("valid", "test"):
            if getattr(self, name) < 2:
                raise ValueError(f"retrieval.{name} must be at least 2, because each class needs a pair; got {getattr(self, name)}")


@register_task(
    "retrieval",
    title="Retrieval (bytes)",
    version="1",
    summary="Predict whether two documents are related. Both are read byte by byte and encoded separately; two classes.",
    source="20 Newsgroups by date, or AAN, Radev et al. 2013; as bytes in two towers after Tay et al. 2020, arXiv:2011.04006",
    licence="none given for either",
    options=Options,
    locations=("root",),
    datasets=(NEWSGROUPS, AAN),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 600, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 60, "evaluate_every": 200},
            options={"length": 256, "valid": 1_000},
            differs="2 layers of width 64 in place of 4 of width 128, 256 bytes of a document in place of 4,000, fewer steps",
        ),
        "smoke": smoke({"length": 64, "train": 200, "valid": 100, "test": 200}, steps=4, dim=16, depth=1),
        "lra": Level(
            model={"dim": 128, "depth": 4, "heads": 4, "mlp_ratio": 4.0},
            budget={
                "steps": 5_000,
                "batch_size": 32,
                "learning_rate": 3.5e-4,
                "weight_decay": 0.1,
                "warmup_steps": 5_000,
                "evaluate_every": 250,
            },
            options={"length": 4_000, "train": 40_000},
            differs="the published rate rises over 8,000 steps, of which 5,000 are made: here it rises as far, to 3.5e-4",
        ),
    },
    variants={"small": {"length": 128, "train": 600, "valid": 200, "test": 400}},
)
class Retrieval(Task):
    """Classification of pairs of documents as related or not.

    Source: Long Range Arena uses pairs of papers of the ACL Anthology Network (AAN), 4,000 bytes of each.
    Differs: the files of AAN can no longer be downloaded everywhere. The default is therefore a substitute, which results call a
        stand-in. A pair is two posts of 20 Newsgroups. In half of the pairs, both posts are from the same group. Only the author's
        own text of a post is used, without headers, quoted lines, signatures and the names of the twenty groups. Posts of fewer
        than 100 characters are left out. Nine tenths of the published training posts are used for train, and the other tenth for
        valid. After the cut to ``length`` bytes, no post is in two splits. The first post of a pair is drawn in the same way for
        both classes, so a single post is hardly informative about the class. With ``files=aan``, the three published splits are
        used. Pairs of train and valid that also occur in a later split, in either order, are left out. A paper may be in many
        pairs.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: two sequences of bytes, each padded at the end to ``length``."""
        return TaskSpec(Pairs(VOCABULARY), self.options.length, classes=2)

    @property
    def data_title(self) -> str:
        """Name of the data in tables: AAN (ACL Anthology Network), or its substitute."""
        return AAN.title if self.options.files is Files.aan else "20 Newsgroups pairs (stand-in for AAN)"

    def examples(self, split: Split) -> Examples:
        """Return the pairs of documents of a split.

        Raises:
            FileNotFoundError: files with the documents are missing.
            ValueError: a file is damaged or incomplete, or there are fewer pairs than required.
        """
        o = self.options
        return _splits(data_root(o.root), o.files, o.length, (o.train, o.valid, o.test), o.data_seed)[SPLITS.index(split)]


@lru_cache(maxsize=2)
def _splits(root: Path, files: Files, length: int, sizes: tuple[int, int, int], seed: int) -> tuple[ArrayExamples, ...]:
    recipe: dict[str, Any] = {"version": Retrieval.card.version, "length": length}
    make: Callable[[], dict[str, NDArray[Any]]]
    if files is Files.aan:
        recipe |= {"files": dataset_digests(AAN, root), "train": sizes[0]}
        make = partial(_published, root, length, sizes[0])
    else:
        recipe |= {"files": dataset_digests(NEWSGROUPS, root), "sizes": sizes, "seed": seed}
        make = partial(_drawn, root, length, sizes, seed)
    return token_examples(cached(f"retrieval-{files.value}", recipe, make), train=sizes[0])


def _drawn(root: Path, length: int, sizes: Sequence[int], seed: int) -> dict[str, NDArray[Any]]:
    posts = {
        part: [(byte_tokens(text, length), row.label) for row in rows if len(text := body(row.texts[0])) >= LEAST]
        for part, rows in NEWSGROUPS.load(root).items()
    }
    division = divide(posts["train"], posts["test"], len(posts["train"]) // VALID_SHARE)
    arrays = {}
    for split, places, size in zip(SPLITS, division, sizes, strict=True):
        own = posts["test" if split == "test" else "train"]
        documents = list({own[place][0]: own[place] for place in places}.values())
        pairs = draw_pairs([group for _, group in documents], size, Random(f"retrieval {seed} {split}").random)
        ids = pad([ids for ids, _ in documents], length, np.uint8)
        arrays[f"{split} ids"] = ids[np.array([pair[:2] for pair in pairs])]
        arrays[f"{split} labels"] = np.array([pair[2] for pair in pairs], dtype=np.uint8)
    return arrays


def draw_pairs(groups: Sequence[int], count: int, random: Callable[[], float]) -> list[tuple[int, int, int]]:
    """Return random pairs of different documents as (first, second, label), without repetition. In half of the pairs, both
    documents are from the same group (label 1). In the other half, they are from two groups (label 0).

    Args:
        groups: group of each document.
        count: number of pairs.
        random: function that returns uniform numbers in [0, 1). It must be ``Random.random``, the only method whose sequence Python
            guarantees.

    Raises:
        ValueError: there are too few different pairs.
    """
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    labels = [place % 2 for place in range(count)]
    keys = [random() for _ in labels]
    pairs: dict[tuple[int, int], tuple[int, int, int]] = {}
    for place in sorted(range(count), key=keys.__getitem__):
        for _ in range(1000):
            first = int(random() * len(groups))
            pool = members[groups[first]] if labels[place] else range(len(groups))
            second = pool[int(random() * len(pool))]
            key = (min(first, second), max(first, second))
            if first != second and (groups[first] == groups[second]) == bool(labels[place]) and key not in pairs:
                pairs[key] = (first, second, labels[place])
                break
        else:
            raise ValueError(f"retrieval: {len(groups)} documents cannot make {count} different pairs. Ask for fewer pairs")
    return list(pairs.values())


def _published(root: Path, length: int, train: int) -> dict[str, NDArray[Any]]:
    parts = AAN.load(root)
    taken: set[bytes] = set()
    arrays: dict[str, NDArray[Any]] = {}
    for split, part in (("test", "test"), ("valid", "eval"), ("train", "train")):
        pairs = [(byte_tokens(row.texts[0], length), byte_tokens(row.texts[1], length), row.label) for row in parts[part]]
        keys = [_either_order(one, other) for one, other, _ in pairs]
        rows: list[Row] = [(key, pair[2]) for key, pair in zip(keys, pairs, strict=True)]
        order = [place for place in hashed_order(rows) if keys[place] not in taken]
        taken |= set(keys)
        if split == "train":
            order = order[: train or None]
        kept = [pairs[place] for place in order]
        sides = [pair[0] for pair in kept], [pair[1] for pair in kept]
        arrays[f"{split} ids"] = np.stack([pad(side, length, np.uint8) for side in sides], axis=1)
        arrays[f"{split} labels"] = np.array([pair[2] for pair in kept], dtype=np.uint8)
    return arrays


def _either_order(one: bytes, other: bytes) -> bytes:
    """Return a digest of two documents that does not depend on their order."""
    return b"".join(sorted(hashlib.sha256(ids).digest() for ids in (one, other)))

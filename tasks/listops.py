"""ListOps: compute the value of a nested expression over lists of digits, such as ``[MAX 4 [MIN 7 2 ] 1 ]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import SPLITS, Examples, Level, Split, Task, TaskSpec, Tokens
from attn_zoo.data import cached, data_root, dataset_digests
from attn_zoo.registry import register_task

from .datasets.listops import LISTOPS, LONGEST, ROWS
from .parts.arrays import ArrayExamples
from .parts.expressions import CLOSE_ID, DIGIT_IDS, OPEN_IDS, OPERATORS, PADDING, VOCABULARY, evaluate
from .parts.levels import smoke
from .parts.options import choice, require_range

DIGIT_SHARE = 0.75
"""Probability that an argument is a digit if it may also be a list. The published generator uses the same value."""

_SMALLEST = 4
"""Number of tokens of the shortest list: an operator, two digits, a closing bracket."""

_WORTH_KEEPING = 20_000_000
"""Smallest number of tokens in all splits together for which the drawn splits are cached. Drawing so many tokens is slow."""


class Files(Enum):
    """Source of the expressions."""

    generated = "generated"
    """Generated expressions."""
    lra = "lra"
    """Files of Long Range Arena."""


@dataclass
class Options:
    """Options of the task ``listops``."""

    length: int = 64
    """Length in tokens of the longest expression, brackets included; 2,000 in Long Range Arena."""
    shortest: float = 0.25
    """Length of the shortest expression as a share of ``length``; 500 of 2,000 in Long Range Arena."""
    max_depth: int = 10
    """Largest depth of nested lists."""
    max_arguments: int = 10
    """Largest number of arguments of a list; the smallest is two."""
    train: int = 10_000
    """Number of training expressions. With ``files=lra``, the first expressions of the file are used."""
    valid: int = 1_000
    """Number of validation expressions. With ``files=lra``, the first expressions of the file are used."""
    test: int = 2_000
    """Number of test expressions. With ``files=lra``, it must be 2,000."""
    data_seed: int = 0
    """Seed of generated expressions."""
    files: Files = Files.generated
    """``generated``, or ``lra`` for the files of Long Range Arena. The options ``shortest``, ``max_depth`` and ``max_arguments`` do
    not apply to these files."""
    root: str = ""
    """Data folder, which contains ``lra_release``. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not
    set."""

    def __post_init__(self) -> None:
        self.files = choice("listops.files", self.files, Files)
        require_range("listops.length", self.length, 16, 16_384, "counts tokens")
        if not 0.0 < self.shortest <= 0.9:
            raise ValueError(
                f"listops.shortest must be above 0 and at most 0.9, because it is a share of length; got {self.shortest}"
            )
        require_range("listops.max_depth", self.max_depth, 1, 1_000, "counts nested lists")
        require_range("listops.max_arguments", self.max_arguments, 2, 1_000, "counts arguments of a list")
        for name in ("train", "valid", "test"):
            require_range(f"listops.{name}", getattr(self, name), 1, 10**7, "counts examples")
        room = _room(self.max_depth, self.max_arguments)
        if room < self.length:
            raise ValueError(
                f"listops.length must be at most {room}, because max_depth={self.max_depth} and "
                f"max_arguments={self.max_arguments} allow no longer expression; got {self.length}. Raise max_depth or "
                "max_arguments"
            )
        if self.files is Files.lra:
            self._require_sizes_of_files()

    def _require_sizes_of_files(self) -> None:
        if self.length < LONGEST:
            raise ValueError(
                f"listops.length must be at least {LONGEST} with files=lra, because expressions are never cut; got {self.length}"
            )
        if self.train > ROWS["train"] or self.valid > ROWS["valid"] or self.test != ROWS["test"]:
            raise ValueError(
                f"with listops.files=lra, train must be at most {ROWS['train']}, valid at most {ROWS['valid']}, and test "
                f"exactly {ROWS['test']}; got train={self.train}, valid={self.valid}, test={self.test}"
            )


@register_task(
    "listops",
    title="ListOps",
    version="1",
    summary="Compute the value of a nested expression of MIN, MAX, median and sum modulo ten over digits; ten classes.",
    source="generated; after Nangia and Bowman 2018, arXiv:1804.06028, and Tay et al. 2020, arXiv:2011.04006",
    licence="Apache-2.0 (generated here)",
    options=Options,
    locations=("root",),
    datasets=(LISTOPS,),
    levels={
        "quick": Level(model={}, budget={"steps": 300, "batch_size": 32, "learning_rate": 2e-3}),
        "smoke": smoke({"train": 500, "valid": 100, "test": 200}, learning_rate=2e-3, depth=1),
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 600, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 60, "evaluate_every": 200},
            options={"length": 256, "max_depth": 9, "train": 20_000, "valid": 1_000, "test": 2_000},
            differs="2 layers of width 64 in place of 6 of width 512, expressions of up to 256 tokens, and fewer steps",
        ),
        "lra": Level(
            model={"dim": 512, "depth": 6, "heads": 8, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={
                "steps": 5_000,
                "batch_size": 32,
                "learning_rate": 1.58e-3,
                "weight_decay": 0.1,
                "warmup_steps": 1_000,
                "evaluate_every": 250,
            },
            options={"length": 2_000, "max_depth": 9, "train": 96_000, "valid": 2_000, "test": 2_000},
            differs="the rate rises over 1,000 steps to 0.05 / sqrt(1000) as published, then falls along a cosine, theirs "
            "as 0.05 / sqrt(step); generated expressions unless files=lra",
        ),
    },
    variants={
        "short": {"length": 32, "train": 400, "valid": 100, "test": 100},
        "lra": {"files": "lra", "length": 2_000, "train": 4_000},
    },
)
class ListOps(Task):
    """Evaluation of a nested expression over digits, with operators before their arguments. The value is a digit from 0 to 9.

    The operator MED is the median. For an even number of arguments, it is the mean of the two middle ones, rounded down. SM is the
    sum modulo ten; MIN and MAX are the minimum and the maximum.

    Source: the description in Nangia and Bowman 2018 (Section 2). Sizes are those of Long Range Arena.
    Differs: the source draws expressions without regard to length and rejects those outside the required range, so most expressions
        are short. Here the length is drawn first, uniformly from this range, and the expression is drawn to fill it. Drawing time
        is therefore proportional to length. An expression can be shorter than the drawn length, because an argument for which only
        two or three tokens are left becomes one digit. On average, expressions are 7 % shorter at a length of 64, and 2 % shorter
        at 2,000. ``max_depth`` counts nested lists. The source also counts the digits inside as a level, so a depth of 10 in the
        source is 9 here. The source draws all arguments of a list in the same way. Here the argument that is drawn last takes the
        remaining tokens, and the arguments are then shuffled. The source also writes redundant brackets that group arguments in
        pairs. Here these brackets are left out, also with ``files=lra``; the code of the source has left them out since 2021.
        Closing brackets are tokens, and no expression is cut. As in the source, an argument is a digit with probability 0.75, and a
        list has 2 to ``max_arguments`` arguments. No expression occurs twice, within a split or across splits.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens, padded at the end to ``length``."""
        return TaskSpec(Tokens(len(VOCABULARY)), self.options.length, classes=10)

    def examples(self, split: Split) -> Examples:
        """Return the examples of a split. All splits are computed together, once per process.

        Raises:
            FileNotFoundError: the files of Long Range Arena are missing.
            ValueError: a file is damaged, or there are fewer different expressions than required.
        """
        o = self.options
        sizes = (o.train, o.valid, o.test)
        at = SPLITS.index(split)
        if o.files is Files.lra:
            return _published(data_root(o.root), o.length, sizes)[at]
        return _generate(o.length, o.shortest, o.max_depth, o.max_arguments, sizes, o.data_seed)[at]

    @property
    def generated(self) -> bool:
        """True if the expressions are drawn at random, not read from files."""
        return self.options.files is not Files.lra

    @property
    def data_title(self) -> str:
        """Name of the data in tables: ``generated`` or ``LRA ListOps``."""
        return LISTOPS.title if self.options.files is Files.lra else "generated"


def render(ids: Int[Tensor, " length"]) -> str:
    """Return the tokens of an expression as text, without padding."""
    return " ".join(VOCABULARY[i] for i in ids.tolist() if VOCABULARY[i] != PADDING)


@lru_cache(maxsize=4)
def _generate(
    length: int, shortest: float, max_depth: int, max_arguments: int, sizes: tuple[int, ...], seed: int
) -> tuple[ArrayExamples, ...]:
    least = max(_SMALLEST, math.ceil(shortest * length))

    def make() -> dict[str, NDArray[np.uint8]]:
        author = _Author(f"listops {seed}", least, length, max_depth, max_arguments)
        return {f"{split} {what}": array for split, size in zip(SPLITS, sizes, strict=True) for what, array in author.write(size)}

    recipe = {
        "version": ListOps.card.version,
        "length": length,
        "least": least,
        "limits": [max_depth, max_arguments],
        "sizes": sizes,
        "seed": seed,
    }
    worth_keeping = sum(sizes) * length >= _WORTH_KEEPING
    return _as_examples(cached("listops", recipe, make) if worth_keeping else make())


@lru_cache(maxsize=2)
def _published(root: Path, length: int, sizes: tuple[int, ...]) -> tuple[ArrayExamples, ...]:
    """Return the first ``sizes`` expressions of the files, without those of train and valid that also occur in a later split."""

    def make() -> dict[str, NDArray[np.uint8]]:
        read = LISTOPS.load(root)
        seen: set[bytes] = set()
        arrays = {}
        for split, size in reversed(list(zip(SPLITS, sizes, strict=True))):
            ids, labels = read[split]
            fresh = [row for row in range(len(ids)) if ids[row].tobytes() not in seen][:size]
            seen.update(ids[row].tobytes() for row in fresh)
            arrays[f"{split} ids"], arrays[f"{split} labels"] = ids[fresh], labels[fresh]
        return arrays

    found = cached("listops-lra", {"version": ListOps.card.version, "files": dataset_digests(LISTOPS, root), "sizes": sizes}, make)
    return _as_examples({name: _widen(array, length) if name.endswith("ids") else array for name, array in found.items()})


def _widen(ids: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    return np.pad(ids[:, :length], ((0, 0), (0, max(0, length - ids.shape[1]))))


def _as_examples(arrays: Mapping[str, NDArray[np.uint8]]) -> tuple[ArrayExamples, ...]:
    splits = []
    for split in SPLITS:
        ids = torch.from_numpy(arrays[f"{split} ids"])
        splits.append(ArrayExamples(ids, torch.from_numpy(arrays[f"{split} labels"]).long(), ids != 0))
    return tuple(splits)


class _Author:
    """Generator of expressions that never repeats one."""

    def __init__(self, seed: str, least: int, length: int, max_depth: int, max_arguments: int) -> None:
        self.random = Random(seed).random  # Python guarantees the sequence of this method only
        self.least, self.length = least, length
        self.max_arguments = max_arguments
        self.rooms = [_room(depth, max_arguments) for depth in range(max_depth + 1)]
        self.seen: set[bytes] = set()

    def fresh(self) -> tuple[bytearray, int]:
        """Return the tokens and value of a new expression. Its length is drawn uniformly from least to length."""
        for _ in range(1000):
            tokens = bytearray()
            value = self._list(self.least + self._below(self.length - self.least + 1), len(self.rooms) - 1, tokens)
            key = bytes(tokens)
            if len(key) >= self.least and key not in self.seen:
                self.seen.add(key)
                return tokens, value
        raise ValueError(
            f"listops: only {len(self.seen)} different expressions of {self.least} to {self.length} tokens were found. Ask "
            "for fewer examples or for longer expressions"
        )

    def write(self, size: int) -> list[tuple[str, NDArray[np.uint8]]]:
        """Return the tokens, padded with 0, and values of ``size`` expressions."""
        ids = np.zeros((size, self.length), dtype=np.uint8)
        labels = np.zeros(size, dtype=np.uint8)
        for row in range(size):
            tokens, labels[row] = self.fresh()
            ids[row, : len(tokens)] = tokens
        return [("ids", ids), ("labels", labels)]

    def _below(self, bound: int) -> int:
        return int(self.random() * bound)

    def _list(self, budget: int, depth: int, tokens: bytearray) -> int:
        """Append a list of at most ``budget`` tokens and ``depth`` levels, and return its value."""
        operator = OPERATORS[self._below(len(OPERATORS))]
        tokens.append(OPEN_IDS[operator])
        values = []
        for share in self._shares(budget - 2, self.rooms[depth - 1]):
            if share < _SMALLEST:  # too short for a list, so a digit
                values.append(self._below(10))
                tokens.append(DIGIT_IDS[values[-1]])
            else:
                values.append(self._list(share, depth - 1, tokens))
        tokens.append(CLOSE_ID)
        return evaluate(operator, values)

    def _shares(self, inner: int, room: int) -> list[int]:
        """Divide the tokens between the brackets among two or more arguments in random order. Most arguments are digits."""
        most = min(self.max_arguments, inner)
        count = max(2 + self._below(most - 1), math.ceil(inner / room))
        shares = []
        for left in range(count - 1, -1, -1):
            low, high = max(1, inner - left * room), min(room, inner - left)
            is_digit = low == 1 and self.random() < DIGIT_SHARE
            shares.append(1 if is_digit else low + self._below(high - low + 1))
            inner -= shares[-1]
        for at in range(count - 1, 0, -1):  # the last share takes the remainder, so the order is shuffled
            other = self._below(at + 1)
            shares[at], shares[other] = shares[other], shares[at]
        return shares


def _room(depth: int, max_arguments: int) -> int:
    """Return the number of tokens of the longest expression with ``depth`` levels of lists."""
    room = 1
    for _ in range(depth):
        room = 2 + max_arguments * room
    return room

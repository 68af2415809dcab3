"""ListOps: the value of a nested expression over lists of digits, such as ``[MAX 4 [MIN 7 2 ] 1 ]``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import torch
from jaxtyping import Int
from torch import Tensor

from attn_zoo.contract import SPLITS, Examples, Level, Split, Task, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .arrays import ArrayExamples

PADDING = "_"
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
VOCABULARY = (PADDING, *map(str, range(10)), *OPERATORS, CLOSE)
"""Token ids are places in this list. An operator holds its opening bracket; the closing one stands alone."""

_DIGIT = {value: VOCABULARY.index(str(value)) for value in range(10)}
_OPEN = {operator: VOCABULARY.index(operator) for operator in OPERATORS}
_CLOSE = VOCABULARY.index(CLOSE)
DIGIT_SHARE = 0.75
"""Probability that an argument that may be a digit is one, as in the published generator."""

_SMALLEST = 4
"""Tokens of the shortest list: an operator, two digits, a closing bracket."""


@dataclass
class Options:
    """Options of ListOps."""

    length: int = 64
    """Tokens of the longest expression, brackets included; 2,000 is Long Range Arena's."""
    shortest: float = 0.25
    """Length of the shortest expression as a share of ``length``; Long Range Arena's 500 of 2,000."""
    max_depth: int = 10
    """Lists within lists, at most."""
    max_arguments: int = 10
    """Arguments of a list, at most; at least two."""
    train: int = 10_000
    valid: int = 1_000
    test: int = 2_000
    data_seed: int = 0

    def __post_init__(self) -> None:
        if not 16 <= self.length <= 16_384:
            raise ValueError(f"listops.length counts tokens and lies in 16 to 16,384; got {self.length}")
        if not 0.0 < self.shortest <= 0.9:
            raise ValueError(f"listops.shortest is a share of length in (0, 0.9]; got {self.shortest}")
        for name, least in (("max_depth", 1), ("max_arguments", 2), ("train", 1), ("valid", 1), ("test", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"listops.{name} is at least {least}; got {getattr(self, name)}")
        room = _room(self.max_depth, self.max_arguments)
        if room < self.length:
            raise ValueError(
                f"listops: {self.max_depth} levels of {self.max_arguments} arguments make at most {room} tokens, fewer than "
                f"length={self.length}; raise max_depth or max_arguments"
            )


@register_task(
    "listops",
    title="ListOps",
    version="1",
    summary="Value of a nested expression of MIN, MAX, MED and SM over digits; ten classes, brackets kept.",
    source="generated; after Nangia and Bowman 2018, arXiv:1804.06028, and Tay et al. 2020, arXiv:2011.04006",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={"quick": Level(model={}, budget={"steps": 300, "batch_size": 32, "learning_rate": 2e-3})},
    variants={"short": {"length": 32, "train": 400, "valid": 100, "test": 100}},
)
class ListOps(Task):
    """The value, 0 to 9, of a prefix expression over digits.

    MED is the median, of an even number of arguments the mean of the two middle ones rounded down;
    SM is the sum modulo ten. Labels are computed while the expression is drawn, and the tests
    compute them again from the tokens by other means.

    Source: the description in Nangia and Bowman 2018 (Section 2), sizes after Long Range Arena.
    Differs: theirs draws trees blindly and throws away those outside the wanted lengths, most of
        which are short; here the length is drawn first, evenly between shortest and longest, and
        the tree is drawn to fill it, so that long expressions cost no more than their tokens. It
        falls short of the drawn length, as two or three tokens left for an argument become one
        digit: by 7 % on average at a length of 64, by 2 % at 2,000. ``max_depth`` counts lists
        within lists; theirs counts the digits inside as one more, so its 10 are 9 here. Theirs
        draws all arguments of a list alike; here the last one drawn takes the tokens that are
        left, and the arguments are then put in random order. Theirs also writes binary brackets
        that group arguments.
        As theirs: a digit with probability 0.75, 2 to ``max_arguments`` arguments, the four
        operators, and no expression twice, within a split or across splits.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Tokens, padded at the end to ``length``."""
        return TaskSpec(Tokens(len(VOCABULARY)), self.options.length, classes=10)

    def examples(self, split: Split) -> Examples:
        """All examples of a split; the three are drawn together, once per process, and are disjoint."""
        o = self.options
        sizes = (o.train, o.valid, o.test)
        return _generate(o.length, o.shortest, o.max_depth, o.max_arguments, sizes, o.data_seed)[SPLITS.index(split)]


def render(ids: Int[Tensor, " length"]) -> str:
    """An expression as people write it, padding left out."""
    return " ".join(VOCABULARY[i] for i in ids.tolist() if VOCABULARY[i] != PADDING)


@lru_cache(maxsize=4)
def _generate(
    length: int, shortest: float, max_depth: int, max_arguments: int, sizes: tuple[int, ...], seed: int
) -> tuple[ArrayExamples, ...]:
    author = _Author(f"listops {seed}", max(_SMALLEST, math.ceil(shortest * length)), length, max_depth, max_arguments)
    splits = []
    for size in sizes:
        ids = torch.zeros(size, length, dtype=torch.uint8)
        labels = torch.zeros(size, dtype=torch.long)
        for row in range(size):
            tokens, labels[row] = author.fresh()
            ids[row, : len(tokens)] = torch.frombuffer(tokens, dtype=torch.uint8)
        splits.append(ArrayExamples(ids, labels, ids != 0))
    return tuple(splits)


class _Author:
    """Draws expressions that it has not drawn before."""

    def __init__(self, seed: str, least: int, length: int, max_depth: int, max_arguments: int) -> None:
        self.random = Random(seed).random  # only this method: Python promises its sequence for every version and machine
        self.least, self.length = least, length
        self.max_arguments = max_arguments
        self.rooms = [_room(depth, max_arguments) for depth in range(max_depth + 1)]
        self.seen: set[bytes] = set()

    def fresh(self) -> tuple[bytearray, int]:
        """Tokens and value of an expression of a length drawn evenly from least to length."""
        for _ in range(1000):
            tokens = bytearray()
            value = self._list(self.least + self._below(self.length - self.least + 1), len(self.rooms) - 1, tokens)
            key = bytes(tokens)
            if len(key) >= self.least and key not in self.seen:
                self.seen.add(key)
                return tokens, value
        raise ValueError(
            f"listops: {len(self.seen)} different expressions of {self.least} to {self.length} tokens seem to be all there are; "
            f"ask for fewer or longer ones"
        )

    def _below(self, bound: int) -> int:
        return int(self.random() * bound)

    def _list(self, budget: int, depth: int, tokens: bytearray) -> int:
        """Append a list of at most ``budget`` tokens and ``depth`` levels; return its value."""
        operator = OPERATORS[self._below(len(OPERATORS))]
        tokens.append(_OPEN[operator])
        values = []
        for share in self._shares(budget - 2, self.rooms[depth - 1]):
            if share < _SMALLEST:  # too little for a list: a digit
                values.append(self._below(10))
                tokens.append(_DIGIT[values[-1]])
            else:
                values.append(self._list(share, depth - 1, tokens))
        tokens.append(_CLOSE)
        return evaluate(operator, values)

    def _shares(self, inner: int, room: int) -> list[int]:
        """Split the tokens between the brackets among two or more arguments, most of them digits, in random order."""
        most = min(self.max_arguments, inner)
        count = max(2 + self._below(most - 1), math.ceil(inner / room))
        shares = []
        for left in range(count - 1, -1, -1):
            low, high = max(1, inner - left * room), min(room, inner - left)
            is_digit = low == 1 and self.random() < DIGIT_SHARE
            shares.append(1 if is_digit else low + self._below(high - low + 1))
            inner -= shares[-1]
        for at in range(count - 1, 0, -1):  # the last share takes what is left, so the order must not tell
            other = self._below(at + 1)
            shares[at], shares[other] = shares[other], shares[at]
        return shares


def evaluate(operator: str, values: list[int]) -> int:
    """Value of one list whose arguments are evaluated already."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def _room(depth: int, max_arguments: int) -> int:
    """Tokens of the longest expression with so many levels of lists."""
    room = 1
    for _ in range(depth):
        room = 2 + max_arguments * room
    return room

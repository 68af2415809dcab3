"""State tracking: the product of all elements of a group read so far, asked at every position and beyond the trained length."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, permutations

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, choice, require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask


class Group(Enum):
    """Which elements there are; a group of permutations of so many things."""

    parity = "parity"
    """Of two things: the product tells whether the number of exchanges is odd."""
    s3 = "s3"
    """Of three things: six elements, which do not commute."""
    s5 = "s5"
    """Of five things: 120 elements, the smallest such group that is not solvable."""


THINGS = {Group.parity: 2, Group.s3: 3, Group.s5: 5}


@dataclass
class Options(SyntheticOptions):
    """Options of state tracking."""

    group: Group = Group.parity
    """``parity``, ``s3`` or ``s5``."""
    swaps: bool = False
    """Whether words hold only the identity and exchanges of two things; products are any element."""
    length: int = 32
    """Elements of a word in training and validation."""
    test_length: int = 128
    """Elements of a test word; the first ``length`` positions are scored apart, then as many, then twice as many, and so on."""

    def __post_init__(self) -> None:
        self.group = choice("state_words.group", self.group, Group)
        if self.swaps and self.group is Group.parity:
            raise ValueError(
                "state_words.swaps leaves out elements of s3 or s5, and parity has no others; got swaps=True with parity"
            )
        require_range("state_words.length", self.length, 2, 16_384, "counts elements")
        meaning = f"counts elements, at least as many as length={self.length},"
        require_range("state_words.test_length", self.test_length, self.length, 65_536, meaning)
        self.require_sizes("state_words")


@register_task(
    "state_words",
    title="State tracking",
    version="1",
    summary="Elements of a group; at each position the product of all so far. Tested beyond the trained length.",
    source="generated; after Grazzi et al. 2024, arXiv:2411.12537, and Merrill et al. 2024, arXiv:2404.08819",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0, "positions": "none"},
            budget={"steps": 1500, "batch_size": 64, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"train": 100_000},
            differs="words of one length in training, 128 elements in place of 256 in the test, and fewer steps",
        ),
        "profile_decoder": Level(
            model={
                "dim": 64,
                "depth": 2,
                "heads": 2,
                "mlp_ratio": 2.0,
                "dropout": 0.0,
                "short_convolution": 4,
                "positions": "none",
            },
            budget={"steps": 600, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={},
            differs="width 64, words of one length in training, 128 elements in place of 256 in the test, and fewer steps",
        ),
        "smoke": Level(
            model={"dim": 32, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0, "positions": "none"},
            budget={"steps": 20, "batch_size": 32, "learning_rate": 3e-3, "evaluate_every": 10},
            options={"length": 16, "test_length": 64, "train": 500, "valid": 100, "test": 100},
            differs="shows only that it runs",
        ),
        "lra": Level(
            model={"dim": 128, "depth": 2, "heads": 4, "mlp_ratio": 2.0, "dropout": 0.0, "positions": "none"},
            budget={"steps": 20_000, "batch_size": 1024, "learning_rate": 1e-3, "evaluate_every": 500},
            options={"group": "s5", "length": 40, "test_length": 256, "train": 1_000_000, "valid": 5_000, "test": 5_000},
            differs="words of one length in training, one of the published rates, and no choice of the best of three seeds",
        ),
    },
    variants={
        "s3": {"group": "s3", "length": 12, "test_length": 40, "train": 500, "valid": 90, "test": 90},
        "s5": {"group": "s5", "swaps": True, "length": 20, "test_length": 20, "train": 500, "valid": 90, "test": 90},
    },
)
class StateWords(SyntheticTask):
    """The product of the permutations read so far: the state of an automaton, which every element can change.

    What reads a fixed number of layers in parallel can tell the state of short words only, if it cannot hold it: softmax and
    linear attention, and recurrences whose transitions have no negative eigenvalues, where the answer is a parity. One network is
    trained on words of ``length`` and tested on longer ones; scores are recorded by position.

    Source: parity and words of S3 and S5 as in Grazzi et al. 2024, Section 5: 2 layers (parity) of width 128, trained on lengths 3
        to 40, tested on 40 to 256, rates from 1e-4 to 1e-2, the best of three seeds; "swaps" is their S5 with exchanges alone.
    Differs: words have one length in training, and every prefix of them is asked, as each position is; so the score of a test is of
        all positions of its part, and not of the last one. The level's network has no positions, which would be untrained beyond
        ``length``. FLOPs are counted at ``test_length``.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Elements are tokens and classes."""
        o = self.options
        elements = len(table_of(o.group))
        return TaskSpec(Tokens(1 + elements), o.test_length, elements, labels="position", causal=True)

    def slices(self, split: Split) -> dict[str, Bool[Tensor, "examples length"]]:
        """Positions up to ``length``, up to twice that, and so on, in the test."""
        o = self.options
        ends = [0, *(o.length << step for step in range((o.test_length // o.length).bit_length()))]
        if ends[-1] < o.test_length:
            ends.append(o.test_length)
        at = torch.arange(o.test_length)
        rows = len(self.examples(split))
        parts = {f"positions {low + 1}-{high}": (low <= at) & (at < high) for low, high in pairwise(ends)}
        return {name: part.expand(rows, -1) for name, part in parts.items()} if split == "test" else {}

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Tokens and labels."""
        o = self.options
        table = table_of(o.group)
        elements = np.array([at for at in range(len(table)) if not o.swaps or _moved(o.group, at) in (0, 2)])
        words = elements[below(random, len(elements), rows, o.test_length if split == "test" else o.length)]
        states = np.zeros_like(words)
        states[:, 0] = words[:, 0]
        for at in range(1, words.shape[1]):
            states[:, at] = table[words[:, at], states[:, at - 1]]
        return 1 + words, states


def table_of(group: Group) -> NDArray[np.int64]:
    """At [a, b] the element that does b and then a; elements are numbered as they are sorted, from the identity 0."""
    elements = list(permutations(range(THINGS[group])))
    number = {element: at for at, element in enumerate(elements)}
    return np.array([[number[tuple(a[place] for place in b)] for b in elements] for a in elements])


def _moved(group: Group, at: int) -> int:
    """Things that an element moves."""
    element = list(permutations(range(THINGS[group])))[at]
    return sum(place != thing for place, thing in enumerate(element))

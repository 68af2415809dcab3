"""State tracking: predict, at every position, the product of all group elements so far. Test sequences can be longer than training
sequences."""

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

from .parts.generated import Drawn, below
from .parts.levels import DECODER, SMALL, smoke
from .parts.options import choice, require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask


class Group(Enum):
    """Groups of permutations."""

    parity = "parity"
    """Permutations of two things: the product is the parity of the number of transpositions."""
    s3 = "s3"
    """Permutations of three things: a non-commutative group of order 6."""
    s5 = "s5"
    """Permutations of five things: order 120, the smallest symmetric group that is not solvable."""


THINGS = {Group.parity: 2, Group.s3: 3, Group.s5: 5}
"""Number of permuted things."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``state_words``."""

    group: Group = Group.parity
    """Group of permutations: ``parity``, ``s3`` or ``s5``."""
    swaps: bool = False
    """True to draw only the identity and exchanges of two things. Products of these elements can be any element of the group."""
    length: int = 32
    """Length of a training or validation word, in group elements."""
    test_length: int = 128
    """Length of a test word in group elements. Ranges of positions have separate scores: up to ``length``, from there to 2 ×
    ``length``, and so on."""

    def __post_init__(self) -> None:
        self.group = choice("state_words.group", self.group, Group)
        if self.swaps and self.group is Group.parity:
            raise ValueError(
                "state_words.swaps must be false with parity, because swaps=true is only for the groups s3 and s5. Set swaps=false"
            )
        require_range("state_words.length", self.length, 2, 16_384, "counts elements")
        meaning = f"counts elements, at least as many as length={self.length},"
        require_range("state_words.test_length", self.test_length, self.length, 65_536, meaning)
        self.require_sizes("state_words")


@register_task(
    "state_words",
    title="State tracking",
    version="1",
    summary="Elements of a group. Predict, at each position, the product of all elements so far, also beyond the training length.",
    source="generated; after Grazzi et al. 2024, arXiv:2411.12537, and Merrill et al. 2024, arXiv:2404.08819",
    licence="Apache-2.0 (generated here)",
    options=Options,
    solved_by="delta_rule",  # with eigenvalues down to -1; softmax, and recurrences without these, fail at parity of long words
    levels={
        "cpu": Level(
            model={**SMALL, "positions": "none"},
            budget={"steps": 1500, "batch_size": 64, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"train": 100_000},
            differs="words of one length in training, 128 elements in place of 256 in the test, and fewer steps",
        ),
        "profile_decoder": Level(
            model=DECODER,
            budget={"steps": 600, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={},
            differs="width 64, words of one length in training, 128 elements in place of 256 in the test, and fewer steps",
        ),
        "smoke": smoke({"length": 16, "test_length": 64, "train": 500, "valid": 100, "test": 100}, positions="none"),
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
    """Prediction, at every position, of the product of all group elements so far. The elements are permutations, and their product
    is the state of an automaton.

    A sequence of group elements is called a word. With a fixed number of layers, softmax and linear attention cannot track the
    state of long words. Recurrences whose transitions have no negative eigenvalues cannot track parity. A network is trained on
    words of ``length`` elements and tested on longer ones. Scores are recorded by position.

    Source: parity and words of S3 and S5 as in Grazzi et al. 2024, Section 5. The authors use width 128, and 2 layers for parity.
        They train on lengths 3 to 40, test on 40 to 256, and report the best of three seeds with learning rates from 1e-4 to 1e-2.
        Their words of S5 that contain only exchanges of two things correspond to the option ``swaps``.
    Differs: all training words have the same length. The state is predicted at every position, so a score covers a range of
        positions, not only the last one. The network has no position embeddings, because those beyond ``length`` would be
        untrained. FLOPs per example are counted at ``test_length``, those of training at ``length``.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: both tokens and classes are the group elements."""
        o = self.options
        elements = len(table_of(o.group))
        shorter = o.length if o.length < o.test_length else None
        return TaskSpec(Tokens(1 + elements), o.test_length, elements, labels="position", causal=True, train_length=shorter)

    @property
    def criterion(self) -> str:
        """Name of the validation examples, whose score can decide when a run ends. They are as long as training examples; test
        examples can be longer."""
        o = self.options
        return f"validation, with words of {o.length} elements" if o.length < o.test_length else super().criterion

    def slices(self, split: Split) -> dict[str, Bool[Tensor, "examples length"]]:
        """Return masks of ranges of positions: up to ``length``, from there to 2 × ``length``, from there to 4 × ``length``, and so
        on. Only the test split has masks."""
        o = self.options
        ends = [0, *(o.length << step for step in range((o.test_length // o.length).bit_length()))]
        if ends[-1] < o.test_length:
            ends.append(o.test_length)
        at = torch.arange(o.test_length)
        rows = len(self.examples(split))
        parts = {f"positions {low + 1}-{high}": (low <= at) & (at < high) for low, high in pairwise(ends)}
        return {name: part.expand(rows, -1) for name, part in parts.items()} if split == "test" else {}

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        table = table_of(o.group)
        drawn = np.array([at for at, element in enumerate(_elements(o.group)) if not o.swaps or _moved(element) in (0, 2)])
        words = drawn[below(random, len(drawn), rows, o.test_length if split == "test" else o.length)]
        states = np.zeros_like(words)
        states[:, 0] = words[:, 0]
        for at in range(1, words.shape[1]):
            states[:, at] = table[words[:, at], states[:, at - 1]]
        return 1 + words, states


def table_of(group: Group) -> NDArray[np.int64]:
    """Return the multiplication table of a group: entry [a, b] is the product that applies b first and then a. Elements are sorted,
    and 0 is the identity."""
    elements = _elements(group)
    number = {element: at for at, element in enumerate(elements)}
    return np.array([[number[tuple(a[place] for place in b)] for b in elements] for a in elements])


def _elements(group: Group) -> list[tuple[int, ...]]:
    """Return the permutations of a group in sorted order."""
    return list(permutations(range(THINGS[group])))


def _moved(element: tuple[int, ...]) -> int:
    """Return the number of points that a permutation moves."""
    return sum(place != thing for place, thing in enumerate(element))

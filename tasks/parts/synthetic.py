"""Base class of synthetic tasks: common options, and splits that are drawn together once per process."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attn_zoo.contract import SPLITS, Split, Task

from .arrays import ArrayExamples
from .generated import Drawn, draw_splits, examples_of
from .options import require_range


@dataclass
class SyntheticOptions:
    """Options that all synthetic tasks have: the sizes of the splits, and the seed of their examples."""

    train: int = 20_000
    """Number of training examples."""
    valid: int = 1_000
    """Number of validation examples."""
    test: int = 2_000
    """Number of test examples."""
    data_seed: int = 0
    """Seed from which the examples are generated."""

    def require_sizes(self, task: str) -> None:
        """Check the sizes of the splits. ``task`` is the name of the task, for the message.

        Raises:
            ValueError: a size is not between 1 and 10,000,000.
        """
        for split in SPLITS:
            require_range(f"{task}.{split}", getattr(self, split), 1, 10**7, "counts examples")


class SyntheticTask(Task):
    """Base class of tasks whose examples are drawn at random. No example is in two splits. Examples are tokens without padding,
    unless a subclass overrides ``examples``."""

    options: SyntheticOptions

    @property
    def generated(self) -> bool:
        """True, because all examples are drawn at random."""
        return True

    @abstractmethod
    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens, the labels and other arrays of at most ``rows`` new examples of a split. Of ``random``, only the
        method ``random_sample`` may be called."""

    def drawn(self, split: Split) -> Drawn:
        """Return the arrays that ``draw`` returned for a split. They are cached, so they must not be modified."""
        return _drawn(type(self), astuple(self.options))[split]

    def examples(self, split: Split) -> ArrayExamples:
        """Return the examples of a split. All splits are drawn together, once per process."""
        return _examples(type(self), astuple(self.options), split)


@lru_cache(maxsize=8)
def _drawn(kind: type[SyntheticTask], options: tuple[Any, ...]) -> dict[Split, Drawn]:
    task = kind(kind.card.options(*options))
    sizes: dict[Split, int] = {split: getattr(task.options, split) for split in SPLITS}
    return draw_splits(kind.card.name, task.options.data_seed, sizes, task.draw)


@lru_cache(maxsize=24)
def _examples(kind: type[SyntheticTask], options: tuple[Any, ...], split: Split) -> ArrayExamples:
    return examples_of(_drawn(kind, options)[split])

"""Sound tasks that pass the kit, one of each form; ``mutants.tasks`` derives broken ones from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from attn_zoo.contract import UNASKED, Batch, Examples, Frames, Level, Pairs, Patches, Split, Task, TaskCard, TaskSpec, Tokens


class Rows(Examples):
    """Examples in memory; the token 0 is padding."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices) -> Batch:
        at = torch.as_tensor(list(indices)) if not isinstance(indices, torch.Tensor) else indices
        return Batch(self.inputs[at], self.inputs[at] != 0, self._labels[at])

    def labels(self) -> torch.Tensor:
        return self._labels

    def digest(self) -> str:
        return hashlib.sha256(self.inputs.numpy().tobytes() + self._labels.numpy().tobytes()).hexdigest()


class Unpadded(Rows):
    def batch(self, indices) -> Batch:
        return super().batch(indices)._replace(valid=None)


class PaddedFrames(Rows):
    """Examples in memory; a frame of zeros is padding."""

    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        return batch._replace(valid=(batch.inputs != 0).any(-1))


@dataclass
class Options:
    data_seed: int = 0


def generator_of(split: Split, seed: int) -> torch.Generator:
    """Generator of random numbers that differ between splits."""
    return torch.Generator().manual_seed(seed * 3 + ("train", "valid", "test").index(split))


class Sound(Task):
    """Parity of random tokens; passes every check of the kit."""

    form: ClassVar[type[Rows]] = Rows
    """Class of the examples."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=2)

    def rows(self, split: Split, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of a split."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, 4, (60, 6), generator=generator)
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        ids[::3, 4:] = 0
        return ids, ids.sum(1) % 2

    def examples(self, split: Split) -> Examples:
        return self.form(*self.rows(split, self.options.data_seed))

    def slices(self, split: Split) -> dict[str, torch.Tensor]:
        return {"first ten": torch.arange(60) < 10}


class Pictures(Sound):
    """Image task: whether the mean of an image is above zero."""

    form = Unpadded

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Patches(1, 4, 4, 2), 4, classes=2)

    def rows(self, split, seed):
        pictures = torch.randn(60, 1, 4, 4, generator=generator_of(split, seed))
        return pictures, (pictures.flatten(1).mean(1) > 0).long()


class RepeatsTokens(Sound):
    """Labels by position: the fourth of six positions has a label, the number of the example modulo 10."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=10, labels="position")

    def rows(self, split, seed):
        ids, _ = super().rows(split, seed)
        labels = torch.full_like(ids, UNASKED)
        labels[:, 3] = torch.arange(len(ids)) % 10
        return ids, labels

    def slices(self, split):
        return {**super().slices(split), "fourth position": (torch.arange(6) == 3).expand(60, 6)}


class Couples(Sound):
    """Pairs: two sequences in each example."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Pairs(10), 6, classes=2)

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return torch.stack([ids, ids.roll(1, 0)], dim=1), labels


class Readings(Sound):
    """Regression of several numbers from a sequence of frames: the means of its channels."""

    form = PaddedFrames

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Frames(2), 6, classes=2, problem="regression")

    def rows(self, split, seed):
        frames = torch.randn(60, 6, 2, generator=generator_of(split, seed))
        frames[::3, 4:] = 0
        return frames, frames.mean(1)


class ReadingsByPosition(Readings):
    """Regression by position: the value of the first channel at the third frame."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Frames(2), 6, classes=1, labels="position", problem="regression")

    def rows(self, split, seed):
        frames, _ = super().rows(split, seed)
        labels = torch.full((60, 6, 1), torch.nan)
        labels[:, 2, 0] = frames[:, 2, 0]
        return frames, labels


class SeveralAtOnce(Sound):
    """Multi-label task: which of the tokens 1 to 3 occur more than once."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=3, problem="multi_label")

    def rows(self, split, seed):
        ids, _ = super().rows(split, seed)
        return ids, torch.stack([((ids == token).sum(1) > 1).float() for token in (1, 2, 3)], dim=1)


def card_of(kind: type[Task], **changes) -> TaskCard:
    facts: dict[str, Any] = dict.fromkeys(("title", "version", "summary", "source", "licence"), "words")
    card = TaskCard(name=kind.__name__, options=Options, build=kind, levels={"quick": Level({}, {})}, **facts)
    metric = {"classification": "accuracy", "multi_label": "f1_macro", "regression": "mse"}[kind(Options()).spec.problem]
    kind.card = replace(card, **{"metric": metric, **changes})
    return kind.card

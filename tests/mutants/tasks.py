"""Sound tasks, one of each form, and broken ones, each with the check of the kit that must catch it and a part of its message.

This module is separate from the tests because checks import it in another process.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from attn_zoo.contract import UNASKED, Batch, Examples, Frames, Level, Pairs, Patches, Split, Task, TaskCard, TaskSpec, Tokens


class Rows(Examples):
    def __init__(self, ids: torch.Tensor, labels: torch.Tensor) -> None:
        self.ids, self._labels = ids, labels

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices) -> Batch:
        at = torch.as_tensor(list(indices)) if not isinstance(indices, torch.Tensor) else indices
        return Batch(self.ids[at], self.ids[at] != 0, self._labels[at])

    def labels(self) -> torch.Tensor:
        return self._labels

    def digest(self) -> str:
        return hashlib.sha256(self.ids.numpy().tobytes() + self._labels.numpy().tobytes()).hexdigest()


@dataclass
class Options:
    data_seed: int = 0


class Sound(Task):
    """Parity of random tokens; passes every check of the kit."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=2)

    def rows(self, split: Split, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, 4, (60, 6), generator=generator)
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        ids[::3, 4:] = 0
        return ids, ids.sum(1) % 2

    def examples(self, split: Split) -> Examples:
        return Rows(*self.rows(split, self.options.data_seed))

    def slices(self, split: Split) -> dict[str, torch.Tensor]:
        return {"first ten": torch.arange(60) < 10}


class Leaks(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        if split == "test":
            ids[0], labels[0] = (x[0] for x in super().rows("train", seed))
        return ids, labels


class LabelsOutOfRange(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return ids, labels * 2


class LeavesAClassOut(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return ids, labels * (split != "train")


class HasNoTest(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return (ids[:0], labels[:0]) if split == "test" else (ids, labels)


class ForgetsLabels(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return ids, labels[:-1]


class PadsInTheMiddle(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[1, 2] = 0
        return ids, labels


class PadsEverything(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[1] = 0
        return ids, labels


class LongerThanStated(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return torch.cat([ids, ids[:, :1]], dim=1), labels


class HidesItsPadding(Rows):
    def batch(self, indices) -> Batch:
        return super().batch(indices)._replace(valid=None)


class SaysNothingOfPadding(Sound):
    def examples(self, split):
        return HidesItsPadding(*self.rows(split, self.options.data_seed))


class PadsByNeighbours(Rows):
    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        assert batch.valid is not None
        return batch._replace(valid=batch.valid.any(0).expand_as(batch.valid))


class PadsToTheLongestOfABatch(Sound):
    def examples(self, split):
        return PadsByNeighbours(*self.rows(split, self.options.data_seed))


class SortsByLabel(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        order = labels.argsort()
        return ids[order], labels[order]


class CutsInBlocks(Sound):
    """Sorts examples by label within blocks, as files from one folder for each class and batch would be."""

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        order = torch.cat([labels[:30].argsort(), 30 + labels[30:].argsort()])
        return ids[order], labels[order]


class SeedsWithAHash(Sound):
    """Seeds with ``hash``, which is constant within a process but salted anew in the next."""

    def rows(self, split, seed):
        return super().rows(split, hash(f"{split}{seed}") % 2**32)


class BreaksElsewhere(Sound):
    def examples(self, split):
        if os.getpid() not in TESTING:
            raise RuntimeError("no tests here")
        return super().examples(split)


TESTING: set[int] = set()
"""Id of the process of the tests, while they run."""


class Pictures(Sound):
    """Image task: whether the mean of an image is above zero."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Patches(1, 4, 4, 2), 4, classes=2)

    def pictures(self, split: Split) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.options.data_seed * 3 + ("train", "valid", "test").index(split))
        return torch.randn(60, 1, 4, 4, generator=generator)

    def examples(self, split: Split) -> Examples:
        pictures = self.pictures(split)
        return Shown(pictures, (pictures.flatten(1).float().nan_to_num().mean(1) > 0).long())


class Shown(Rows):
    def batch(self, indices) -> Batch:
        return super().batch(indices)._replace(valid=None)


class CutsPictures(Pictures):
    def pictures(self, split):
        return super().pictures(split)[..., :3]


class HoldsNoNumbers(Pictures):
    def pictures(self, split):
        pictures = super().pictures(split)
        pictures[3, 0, 1, 1] = torch.nan
        return pictures


class KeepsBytes(Pictures):
    def pictures(self, split):
        return (super().pictures(split) * 50).to(torch.int8)


class MiscountsPatches(Pictures):
    @property
    def spec(self):
        return TaskSpec(Patches(1, 4, 4, 2), 16, classes=2)


class PadsPictures(Pictures):
    def examples(self, split):
        pictures = self.pictures(split)
        return Rows(pictures, (pictures.flatten(1).mean(1) > 0).long())


class TokenTooLarge(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[1, 1] = 10
        return ids, labels


class Shuffles(Rows):
    def batch(self, indices) -> Batch:
        return super().batch(sorted(int(i) for i in indices))


class ReordersBatches(Sound):
    def examples(self, split):
        return Shuffles(*self.rows(split, self.options.data_seed))


@lru_cache(maxsize=8)
def remembered(split: Split) -> torch.Tensor:
    return torch.randint(1, 4, (60, 6))


class DrawsAnew(Sound):
    """Draws without a seed and caches the result, so that examples are constant within one process only."""

    def rows(self, split, seed):
        ids = remembered(split).clone()
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        return ids, ids.sum(1) % 2


class Nameless(Rows):
    def digest(self) -> str:
        return "5a" * 32


class DigestsNothing(Sound):
    def examples(self, split):
        return Nameless(*self.rows(split, self.options.data_seed))


class OwnDigest(Rows):
    def digest(self) -> str:
        return super().digest()[:16]


class DigestsItsOwnWay(Sound):
    def examples(self, split):
        return OwnDigest(*self.rows(split, self.options.data_seed))


class IgnoresItsSeed(Sound):
    def rows(self, split, seed):
        return super().rows(split, 0)


class RepeatsTokens(Sound):
    """Labels by position: the fourth of six positions has a label, the number of the example modulo 10."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=10, labels="position")

    def answers(self, ids: torch.Tensor) -> torch.Tensor:
        labels = torch.full_like(ids, UNASKED)
        labels[:, 3] = torch.arange(len(ids)) % 10
        return labels

    def examples(self, split):
        ids, _ = self.rows(split, self.options.data_seed)
        return Rows(ids, self.answers(ids))

    def slices(self, split):
        return {**super().slices(split), "fourth position": (torch.arange(6) == 3).expand(60, 6)}


class MarksWhatIsNotAsked(RepeatsTokens):
    def slices(self, split):
        return {"third position": (torch.arange(6) == 2).expand(60, 6)}


class MarksTooMany(Sound):
    def slices(self, split):
        return {"all": torch.ones(61, dtype=torch.bool)}


class CountsMembers(Sound):
    def slices(self, split):
        return {"all": torch.arange(60)}


class AsksNothing(RepeatsTokens):
    def answers(self, ids):
        labels = super().answers(ids)
        labels[4] = UNASKED
        return labels


class AsksAtPadding(RepeatsTokens):
    def answers(self, ids):
        labels = super().answers(ids)
        labels[0, 5] = 1
        return labels


class AnswersElsewhere(RepeatsTokens):
    def answers(self, ids):
        return super().answers(ids)[:, :5]


class Couples(Sound):
    """Pairs: two sequences in each example."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Pairs(10), 6, classes=2)

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return torch.stack([ids, ids.roll(1, 0)], dim=1), labels


class Triples(Couples):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return torch.cat([ids, ids[:, :1]], dim=1), labels


class NotInPairs(Couples):
    def rows(self, split, seed):
        return Sound.rows(self, split, seed)


class DrawsFromTheGlobalGenerator(Sound):
    def augment(self, batch, generator):
        torch.rand(1)
        return batch


class DrawsElsewhere(Pictures):
    def augment(self, batch, generator):
        self.calls = getattr(self, "calls", 0) + 1
        return batch._replace(inputs=batch.inputs + self.calls)


class Shrinks(Pictures):
    def augment(self, batch, generator):
        return batch._replace(inputs=batch.inputs[:, :, :2])


class ChangesAnswers(Pictures):
    def augment(self, batch, generator):
        return batch._replace(labels=1 - batch.labels)


class Readings(Sound):
    """Regression of several numbers from a sequence of frames: the means of its channels."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Frames(2), 6, classes=2, problem="regression")

    def rows(self, split, seed):
        generator = torch.Generator().manual_seed(seed * 3 + ("train", "valid", "test").index(split))
        frames = torch.randn(60, 6, 2, generator=generator)
        frames[::3, 4:] = 0
        return frames, frames.mean(1)

    def examples(self, split: Split) -> Examples:
        return Read(*self.rows(split, self.options.data_seed))


class Read(Rows):
    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        return batch._replace(valid=(batch.inputs != 0).any(-1))


class ReadingsByPosition(Readings):
    """Regression by position: the value of the first channel at the third frame."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Frames(2), 6, classes=1, labels="position", problem="regression")

    def answers(self, frames: torch.Tensor) -> torch.Tensor:
        labels = torch.full((60, 6, 1), torch.nan)
        labels[:, 2, 0] = frames[:, 2, 0]
        return labels

    def examples(self, split: Split) -> Examples:
        frames, _ = self.rows(split, self.options.data_seed)
        return Read(frames, self.answers(frames))


class SeveralAtOnce(Sound):
    """Multi-label task: which of the tokens 1 to 3 occur more than once."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(Tokens(10), 6, classes=3, problem="multi_label")

    def rows(self, split, seed):
        ids, _ = super().rows(split, seed)
        return ids, torch.stack([((ids == token).sum(1) > 1).float() for token in (1, 2, 3)], dim=1)


class WholeNumbers(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        return frames, labels.long()


class OneNumberTooMany(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        return frames, torch.cat([labels, labels[:, :1]], dim=1)


class InfiniteLabels(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        labels[3, 1] = torch.inf
        return frames, labels


class LosesALabel(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        labels[3, 1] = torch.nan
        return frames, labels


class ConstantNumber(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        labels[:, 1] = 0.5
        return frames, labels


class SortsByNumber(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        order = labels[:, 0].argsort()
        return frames[order], labels[order]


class HalfMembers(SeveralAtOnce):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        return ids, labels / 2


class NeverHoldsAClass(SeveralAtOnce):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        labels[:, 2] = 0
        return ids, labels


class NoisyPadding(Readings):
    def examples(self, split):
        return Noisy(*self.rows(split, self.options.data_seed))


class Noisy(Read):
    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        assert batch.valid is not None
        return batch._replace(inputs=batch.inputs.masked_fill(~batch.valid[..., None], 0.5))


class LacksAChannel(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        return frames[..., :1], labels


class LosesAReading(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        frames[5, 0, 0] = torch.nan
        return frames, labels


class AsksAPaddedFrame(ReadingsByPosition):
    def answers(self, frames):
        labels = super().answers(frames)
        labels[0, 5, 0] = 1.0
        return labels


class TellsAnotherMetric(Readings):
    pass


class NamesNoSuchPart(Sound):
    pass


def card_of(kind: type[Task], **changes) -> TaskCard:
    facts: dict[str, Any] = dict.fromkeys(("title", "version", "summary", "source", "licence"), "words")
    card = TaskCard(name=kind.__name__, options=Options, build=kind, levels={"quick": Level({}, {})}, **facts)
    metric = {"classification": "accuracy", "multi_label": "f1_macro", "regression": "mse"}[kind(Options()).spec.problem]
    kind.card = replace(card, **{"metric": metric, **changes})
    return kind.card


class SaysNothing(Sound):
    pass


class ProposesNonsense(Sound):
    pass


MUTANTS = [
    ("card_is_complete", card_of(SaysNothing, licence=""), "says nothing under 'licence'"),
    ("card_is_complete", card_of(ProposesNonsense, levels={"quick": Level({}, {}, {"sead": 1})}), "no option of task .* 'sead'"),
    ("card_is_complete", card_of(TellsAnotherMetric, metric="accuracy"), "'accuracy' does not fit regression; choose r2, mse"),
    ("splits_are_disjoint", card_of(Leaks), "1 inputs are in both train and test"),
    ("labels_fit_the_spec", card_of(LabelsOutOfRange), "run from 0 to 2, outside 0 to 1"),
    ("labels_fit_the_spec", card_of(LeavesAClassOut), "without a training example"),
    ("labels_fit_the_spec", card_of(HasNoTest), "test has 0 examples"),
    ("labels_fit_the_spec", card_of(ForgetsLabels), "60 examples and 59 labels"),
    ("inputs_fit_the_spec", card_of(PadsInTheMiddle), "padding before a real position"),
    ("inputs_fit_the_spec", card_of(TokenTooLarge), "outside the vocabulary"),
    ("inputs_fit_the_spec", card_of(PadsEverything), "padding only"),
    ("inputs_fit_the_spec", card_of(LongerThanStated), "up to 6 long"),
    ("inputs_fit_the_spec", card_of(SaysNothingOfPadding), "valid must be False"),
    ("inputs_fit_the_spec", card_of(CutsPictures), "have shape"),
    ("inputs_fit_the_spec", card_of(HoldsNoNumbers), "not finite"),
    ("inputs_fit_the_spec", card_of(KeepsBytes), "not floating point"),
    ("inputs_fit_the_spec", card_of(MiscountsPatches), "the patches are 4"),
    ("inputs_fit_the_spec", card_of(PadsPictures), "images are never padded"),
    ("batches_keep_the_order", card_of(ReordersBatches), "differs in a batch and alone"),
    ("batches_keep_the_order", card_of(PadsToTheLongestOfABatch), "padded differently in a batch"),
    ("order_tells_nothing", card_of(SortsByLabel), "shuffle the examples"),
    ("order_tells_nothing", card_of(CutsInBlocks), "shuffle the examples"),
    ("examples_are_reproducible", card_of(DrawsAnew), "other inputs when the task is built again"),
    ("examples_are_reproducible", card_of(DigestsNothing), "have the same digest"),
    ("examples_are_reproducible", card_of(DigestsItsOwnWay), "not a SHA-256"),
    ("another_process_agrees", card_of(SeedsWithAHash), "other content in train, valid, test"),
    ("another_process_agrees", card_of(BreaksElsewhere), "RuntimeError: no tests here"),
    ("slices_fit_their_split", card_of(MarksWhatIsNotAsked), "'third position' marks 60 positions that are not scored"),
    ("slices_fit_their_split", card_of(MarksTooMany), r"'all' is torch.bool of shape \(61,\)"),
    ("slices_fit_their_split", card_of(CountsMembers), "it must be boolean"),
    ("slices_fit_their_split", card_of(NamesNoSuchPart, distant="far"), "distant must be one of first ten; got 'far'"),
    ("labels_fit_the_spec", card_of(WholeNumbers), "not floating-point numbers with 2 axes"),
    ("labels_fit_the_spec", card_of(OneNumberTooMany), "3 numbers per label, the spec says 2"),
    ("labels_fit_the_spec", card_of(InfiniteLabels), "labels that are not finite"),
    ("labels_fit_the_spec", card_of(LosesALabel), "NaN; only labels of positions may be"),
    ("labels_fit_the_spec", card_of(ConstantNumber), r"the same in all of train: \[1\]"),
    ("labels_fit_the_spec", card_of(HalfMembers), "run from 0 to 0.5; each must be 0 or 1"),
    ("labels_fit_the_spec", card_of(NeverHoldsAClass), r"in no training label, or in all of them: \[2\]"),
    ("order_tells_nothing", card_of(SortsByNumber), "shuffle the examples"),
    ("inputs_fit_the_spec", card_of(NoisyPadding), "a frame of padding must be 0 in every channel"),
    ("inputs_fit_the_spec", card_of(LacksAChannel), "not up to 6 frames of 2 channels"),
    ("inputs_fit_the_spec", card_of(LosesAReading), "not finite"),
    ("inputs_fit_the_spec", card_of(AsksAPaddedFrame), "has a scored label at padding"),
    ("labels_fit_the_spec", card_of(AsksNothing), "an example without a scored position"),
    ("inputs_fit_the_spec", card_of(AsksAtPadding), "has a scored label at padding"),
    ("inputs_fit_the_spec", card_of(AnswersElsewhere), "labels have shape"),
    ("inputs_fit_the_spec", card_of(Triples), "hold 3 sequences, not 2"),
    ("inputs_fit_the_spec", card_of(NotInPairs), "with 3 axes"),
    ("augmentation_is_reproducible", card_of(DrawsFromTheGlobalGenerator), "global generator"),
    ("augmentation_is_reproducible", card_of(DrawsElsewhere), "another augmentation"),
    ("augmentation_is_reproducible", card_of(Shrinks), "changes shapes"),
    ("augmentation_is_reproducible", card_of(ChangesAnswers), "changes labels"),
    ("data_seed_changes_the_data", card_of(IgnoresItsSeed), "another data_seed gives the same test split"),
]

"""Broken tasks, each with the check of the kit that must catch it and a part of its message.

This module is separate from the tests because checks import it in another process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from attn_zoo.tasks.datasets.images import MNIST
from torch import Tensor

from attn_zoo.contract import UNASKED, Batch, Level, Patches, Split, TaskCard, TaskSpec, Tokens
from attn_zoo.data import cached
from mutants.sound_tasks import (
    Couples,
    PaddedFrames,
    Pictures,
    Readings,
    ReadingsByPosition,
    RepeatsTokens,
    Rows,
    SeveralAtOnce,
    Sound,
    Unpadded,
    card_of,
)

MUTANTS: list[tuple[str, TaskCard, str]] = []
Class = type[Sound]


def breaks(check: str, says: str, **facts: Any) -> Callable[[Class], Class]:
    """Enter a class as the mutant that ``check`` must catch. ``facts`` change its card."""

    def enter(kind: Class) -> Class:
        MUTANTS.append((check, card_of(kind, **facts), says))
        return kind

    return enter


def plant(
    name: str,
    base: Class,
    check: str,
    says: str,
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    *,
    split: str = "",
    members: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Enter a mutant of ``base``: ``change`` is made to the inputs and labels of ``split``, by default of each, and ``members``
    replace other attributes."""
    held = dict(members or {})

    def rows(self, which, seed):
        found = base.rows(self, which, seed)
        return change(*found) if change and split in ("", which) else found

    if change is not None:
        held["rows"] = rows
    breaks(check, says, **facts)(type(name, (base,), {"__module__": __name__, **held}))


def put(tensor: Tensor, place: Any, value: float | Tensor) -> Tensor:
    """Copy of a tensor with other values at a place."""
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


# --- cards -----------------------------------------------------------------------------------------------------------

plant("SaysNothing", Sound, "card_is_complete", "licence must not be empty", licence="")
plant("ProposesNonsense", Sound, "card_is_complete", "no option of task .* 'sead'", levels={"quick": Level({}, {}, {"sead": 1})})
plant("TellsAnotherMetric", Readings, "card_is_complete", "'accuracy' does not fit regression; choose r2, mse", metric="accuracy")

plant("IgnoresTheDataFolder", Sound, "card_is_complete", "data.root=FOLDER has no effect", datasets=(MNIST,))

plant(
    "ScoresOneClassOfThree",
    Sound,
    "card_is_complete",
    "f1 is for two classes, but the task has 3",
    members={"spec": property(lambda self: TaskSpec(Tokens(10), 6, classes=3))},
    metric="f1",
)

# --- splits ----------------------------------------------------------------------------------------------------------


@breaks("splits_are_disjoint", "1 inputs are in both train and test")
class Leaks(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        if split == "test":
            ids[0], labels[0] = (x[0] for x in super().rows("train", seed))
        return ids, labels


# --- labels ----------------------------------------------------------------------------------------------------------

LABELS = "labels_fit_the_spec"


plant("LeavesAClassOut", Sound, LABELS, "every class must have a training example", lambda x, y: (x, 0 * y), split="train")
plant("TestsOneClass", Sound, LABELS, "test must have more than one class", lambda x, y: (x, 0 * y), split="test")
plant("HasNoTest", Sound, LABELS, "test has 0 examples", lambda x, y: (x[:0], y[:0]), split="test")
plant("LabelsOutOfRange", Sound, LABELS, "run from 0 to 2, outside 0 to 1", lambda x, y: (x, y * 2))
plant("ForgetsLabels", Sound, LABELS, "60 examples and 59 labels", lambda x, y: (x, y[:-1]))
plant("WholeNumbers", Readings, LABELS, "not floating-point numbers with 2 axes", lambda x, y: (x, y.long()))
plant(
    "OneNumberTooMany",
    Readings,
    LABELS,
    "3 numbers per label, but the spec says 2",
    lambda x, y: (x, torch.cat([y, y[:, :1]], dim=1)),
)
plant("InfiniteLabels", Readings, LABELS, "labels that are not finite", lambda x, y: (x, put(y, (3, 1), torch.inf)))
plant("LosesALabel", Readings, LABELS, "NaN; only labels of positions may be", lambda x, y: (x, put(y, (3, 1), torch.nan)))
plant("ConstantNumber", Readings, LABELS, r"the same in all of train: \[1\]", lambda x, y: (x, put(y, (..., 1), 0.5)))
plant("HalfMembers", SeveralAtOnce, LABELS, "run from 0 to 0.5; each must be 0 or 1", lambda x, y: (x, y / 2))
plant(
    "NeverHoldsAClass",
    SeveralAtOnce,
    LABELS,
    r"in none, or in all of them: \[2\]",
    lambda x, y: (x, put(y, (..., 2), 0)),
)
plant("AsksNothing", RepeatsTokens, LABELS, "an example without a scored position", lambda x, y: (x, put(y, 4, UNASKED)))

# --- inputs ----------------------------------------------------------------------------------------------------------

INPUTS = "inputs_fit_the_spec"

plant("PadsInTheMiddle", Sound, INPUTS, "padding before a real position", lambda x, y: (put(x, (1, 2), 0), y))
plant("TokenTooLarge", Sound, INPUTS, "outside the vocabulary", lambda x, y: (put(x, (1, 1), 10), y))
plant("PadsEverything", Sound, INPUTS, "padding only", lambda x, y: (put(x, 1, 0), y))
plant("LongerThanStated", Sound, INPUTS, "up to 6 long", lambda x, y: (torch.cat([x, x[:, :1]], dim=1), y))
plant(
    "SaysNothingOfLongerTests",
    RepeatsTokens,
    INPUTS,
    "training inputs have 6 positions, but the spec says 7",
    lambda x, y: (x.clamp(min=1), y),
    members={"form": Unpadded, "spec": property(lambda self: TaskSpec(Tokens(10), 7, classes=10, labels="position"))},
)
plant("SaysNothingOfPadding", Sound, INPUTS, "valid must be False", members={"form": Unpadded})
plant("CutsPictures", Pictures, INPUTS, "have shape", lambda x, y: (x[..., :3], y))
plant("HoldsNoNumbers", Pictures, INPUTS, "not finite", lambda x, y: (put(x, (3, 0, 1, 1), torch.nan), y))
plant("KeepsBytes", Pictures, INPUTS, "not floating point", lambda x, y: ((x * 50).to(torch.int8), y))
plant("PadsPictures", Pictures, INPUTS, "images are never padded", members={"form": Rows})
plant("LacksAChannel", Readings, INPUTS, "not up to 6 frames of 2 channels", lambda x, y: (x[..., :1], y))
plant("LosesAReading", Readings, INPUTS, "not finite", lambda x, y: (put(x, (5, 0, 0), torch.nan), y))
plant("AsksAPaddedFrame", ReadingsByPosition, INPUTS, "has a scored label at padding", lambda x, y: (x, put(y, (0, 5, 0), 1.0)))
plant("AsksAtPadding", RepeatsTokens, INPUTS, "has a scored label at padding", lambda x, y: (x, put(y, (0, 5), 1)))
plant("AnswersElsewhere", RepeatsTokens, INPUTS, "labels have shape", lambda x, y: (x, y[:, :5]))
plant("Triples", Couples, INPUTS, "hold 3 sequences, not 2", lambda x, y: (torch.cat([x, x[:, :1]], dim=1), y))
plant("NotInPairs", Couples, INPUTS, "with 3 axes", members={"rows": Sound.rows})


@breaks(INPUTS, "an image has 4 patches")
class MiscountsPatches(Pictures):
    @property
    def spec(self):
        return TaskSpec(Patches(1, 4, 4, 2), 16, classes=2)


class NoisyFrames(PaddedFrames):
    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        assert batch.valid is not None
        return batch._replace(inputs=batch.inputs.masked_fill(~batch.valid[..., None], 0.5))


plant("NoisyPadding", Readings, INPUTS, "a frame of padding must be 0 in every channel", members={"form": NoisyFrames})

# --- batches ---------------------------------------------------------------------------------------------------------


class SortedRows(Rows):
    def batch(self, indices) -> Batch:
        return super().batch(sorted(int(i) for i in indices))


class PaddedByNeighbours(Rows):
    def batch(self, indices) -> Batch:
        batch = super().batch(indices)
        assert batch.valid is not None
        return batch._replace(valid=batch.valid.any(0).expand_as(batch.valid))


plant("ReordersBatches", Sound, "batches_keep_the_order", "differs in a batch and alone", members={"form": SortedRows})
plant(
    "PadsToTheLongestOfABatch",
    Sound,
    "batches_keep_the_order",
    "padded differently in a batch",
    members={"form": PaddedByNeighbours},
)

# --- order -----------------------------------------------------------------------------------------------------------

plant("SortsByLabel", Sound, "order_tells_nothing", "shuffle the examples", lambda x, y: (x[y.argsort()], y.sort().values))


@breaks("order_tells_nothing", "shuffle the examples")
class CutsInBlocks(Sound):
    """Sorts examples by label within blocks, as files from one folder for each class and batch would be."""

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        order = torch.cat([labels[:30].argsort(), 30 + labels[30:].argsort()])
        return ids[order], labels[order]


@breaks("order_tells_nothing", "shuffle the examples")
class SortsByNumber(Readings):
    def rows(self, split, seed):
        frames, labels = super().rows(split, seed)
        order = labels[:, 0].argsort()
        return frames[order], labels[order]


# --- labels within the inputs ----------------------------------------------------------------------------------------

TELLS = "no_shortcut_tells_the_label"

plant("WritesTheLabelFirst", Sound, TELLS, "token at position 0 predicts 100.0%", lambda x, y: (put(x, (..., 0), 8 + y), y))
plant(
    "AsksForTheTokenItself",
    RepeatsTokens,
    TELLS,
    "token at a labelled position predicts 100.0%",
    lambda x, y: (x, torch.where(y == UNASKED, y, x)),
)
plant(
    "WritesTheLabelIntoTheSecond",
    Couples,
    TELLS,
    "token at position 1 of sequence 2 predicts 100.0%",
    lambda x, y: (put(x, (..., 1, 1), 8 + y), y),
)
plant("CutsByLabel", Sound, TELLS, "the length predicts 100.0%", lambda x, y: (put(x, (..., slice(4, None)), (2 * y)[:, None]), y))


@breaks(TELLS, "token at position -1 predicts 100.0%")
class WritesTheLabelLast(Sound):
    """Ends with the label, as data do whose column of labels was joined to the text."""

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[torch.arange(len(ids)), (ids != 0).sum(1) - 1] = 8 + labels
        return ids, labels


# --- reproducibility -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def remembered(split: Split) -> Tensor:
    return torch.randint(1, 4, (60, 6))


@breaks("examples_are_reproducible", "other inputs when the task is built again")
class DrawsAnew(Sound):
    """Draws without a seed and caches the result, so that examples are constant within one process only."""

    def rows(self, split, seed):
        ids = remembered(split).clone()
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        return ids, ids.sum(1) % 2


@breaks("examples_are_reproducible", "other inputs when the task is built again")
class KeepsWhatItDrew(Sound):
    """Draws without a seed and keeps the result in the cache of files, which outlives the process."""

    def rows(self, split, seed):
        kept = cached("keeps-what-it-drew", {"split": split}, lambda: {"ids": torch.randint(1, 4, (60, 6)).numpy()})
        ids = torch.from_numpy(kept["ids"]).clone()
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        return ids, ids.sum(1) % 2


class ConstantDigest(Rows):
    def digest(self) -> str:
        return "5a" * 32


class ShortDigest(Rows):
    def digest(self) -> str:
        return super().digest()[:16]


plant("DigestsNothing", Sound, "examples_are_reproducible", "have the same digest", members={"form": ConstantDigest})
plant("DigestsItsOwnWay", Sound, "examples_are_reproducible", "not a SHA-256", members={"form": ShortDigest})


@breaks("another_process_agrees", "other content in train, valid, test")
class SeedsWithAHash(Sound):
    """Seeds with ``hash``, which is constant within a process but salted anew in the next."""

    def rows(self, split, seed):
        return super().rows(split, hash(f"{split}{seed}") % 2**32)


@breaks("another_process_agrees", "other content in train, valid, test")
class KeepsAHash(Sound):
    """Seeds with ``hash`` and keeps what it has drawn in the cache of files."""

    def rows(self, split, seed):
        def make():
            inputs, labels = super(KeepsAHash, self).rows(split, hash(f"{split}{seed}") % 2**32)
            return {"inputs": inputs.numpy(), "labels": labels.numpy()}

        kept = cached("keeps-a-hash", {"split": split, "seed": seed}, make)
        return torch.from_numpy(kept["inputs"]), torch.from_numpy(kept["labels"])


TESTING: set[int] = set()
"""Id of the process of the tests, while they run."""


@breaks("another_process_agrees", "RuntimeError: no tests here")
class BreaksElsewhere(Sound):
    def examples(self, split):
        if os.getpid() not in TESTING:
            raise RuntimeError("no tests here")
        return super().examples(split)


plant(
    "IgnoresItsSeed",
    Sound,
    "data_seed_changes_the_data",
    "another data_seed gives the same train split",
    members={"rows": lambda self, split, seed: Sound.rows(self, split, seed if split == "test" else 0)},
)


@dataclass
class NoSeed:
    pass


@breaks("data_seed_changes_the_data", "must have the option data_seed, because its property generated is True")
class GeneratesWithoutASeed(Sound):
    @property
    def generated(self):
        return True

    def __init__(self, options):
        super().__init__(NoSeed())

    def examples(self, split):
        return self.form(*self.rows(split, 0))


# --- slices ----------------------------------------------------------------------------------------------------------

SLICES = "slices_fit_their_split"

plant(
    "MarksWhatIsNotAsked",
    RepeatsTokens,
    SLICES,
    "'third position' marks 60 positions that are not scored",
    members={"slices": lambda self, split: {"third position": (torch.arange(6) == 2).expand(60, 6)}},
)
plant(
    "MarksTooMany",
    Sound,
    SLICES,
    r"'all' is torch.bool of shape \(61,\)",
    members={"slices": lambda self, split: {"all": torch.ones(61, dtype=torch.bool)}},
)
plant("CountsMembers", Sound, SLICES, "it must be boolean", members={"slices": lambda self, split: {"all": torch.arange(60)}})
plant("NamesNoSuchPart", Sound, SLICES, "distant must be one of first ten; got 'far'", distant="far")

# --- augmentation ----------------------------------------------------------------------------------------------------

AUGMENTATION = "augmentation_is_reproducible"


@breaks(AUGMENTATION, "global generator")
class DrawsFromTheGlobalGenerator(Sound):
    def augment(self, batch, generator):
        torch.rand(1)
        return batch


@breaks(AUGMENTATION, "another augmentation")
class DrawsElsewhere(Pictures):
    def augment(self, batch, generator):
        self.calls = getattr(self, "calls", 0) + 1
        return batch._replace(inputs=batch.inputs + self.calls)


@breaks(AUGMENTATION, "changes shapes")
class Shrinks(Pictures):
    def augment(self, batch, generator):
        return batch._replace(inputs=batch.inputs[:, :, :2])


@breaks(AUGMENTATION, "changes labels")
class ChangesAnswers(Pictures):
    def augment(self, batch, generator):
        return batch._replace(labels=1 - batch.labels)


plant(
    "AugmentsBeyondItsVocabulary",
    Sound,
    AUGMENTATION,
    "augmented train tokens run from .* outside the vocabulary",
    members={"augment": lambda self, batch, generator: batch._replace(inputs=batch.inputs + 20 * batch.valid)},
)
plant(
    "AugmentsPadding",
    Sound,
    AUGMENTATION,
    "augmented train: token 0 must stand for padding only",
    members={"augment": lambda self, batch, generator: batch._replace(valid=~batch.valid)},
)

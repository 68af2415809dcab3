"""Every registered task passes the kit, and every check of the kit catches a broken task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from attn_zoo import task_card, task_names
from attn_zoo.conformance import TASK_CHECKS, NotApplicable, Violation, check_task, task_checks
from attn_zoo.contract import Batch, Examples, Level, Split, Task, TaskCard, TaskSpec, Tokens


@pytest.mark.parametrize("case", [case for name in task_names() for case in task_checks(name)], ids=lambda case: case.id)
def test_registered_task_conforms(case):
    try:
        case()
    except NotApplicable as reason:
        pytest.skip(str(reason))


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
        return str(hash((self.ids.numpy().tobytes(), self._labels.numpy().tobytes())))


@dataclass
class Options:
    data_seed: int = 0


class Sound(Task):
    """Parity of random tokens: sound in every respect the kit looks at."""

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


class PadsInTheMiddle(Sound):
    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[1, 2] = 0
        return ids, labels


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
    """Looks the same for as long as a process remembers it."""

    def rows(self, split, seed):
        ids = remembered(split).clone()
        ids[:, 0] = {"train": 5, "valid": 6, "test": 7}[split]
        return ids, ids.sum(1) % 2


class Nameless(Rows):
    def digest(self) -> str:
        return "same"


class DigestsNothing(Sound):
    def examples(self, split):
        return Nameless(*self.rows(split, self.options.data_seed))


class IgnoresItsSeed(Sound):
    def rows(self, split, seed):
        return super().rows(split, 0)


def card_of(kind: type[Task], **changes) -> TaskCard:
    facts: dict[str, Any] = dict.fromkeys(("title", "version", "summary", "source", "licence"), "words")
    card = TaskCard(name=kind.__name__, options=Options, build=kind, levels={"quick": Level({}, {})}, **facts)
    kind.card = replace(card, **changes)
    return kind.card


class SaysNothing(Sound):
    pass


MUTANTS = {
    "card_is_complete": card_of(SaysNothing, licence=""),
    "splits_are_disjoint": card_of(Leaks),
    "labels_are_classes": card_of(LabelsOutOfRange),
    "inputs_fit_the_spec": card_of(PadsInTheMiddle),
    "batches_keep_the_order": card_of(ReordersBatches),
    "examples_are_reproducible": card_of(DrawsAnew),
    "data_seed_changes_the_data": card_of(IgnoresItsSeed),
}
MORE_MUTANTS = [("inputs_fit_the_spec", card_of(TokenTooLarge)), ("examples_are_reproducible", card_of(DigestsNothing))]


def test_every_check_has_a_mutant():
    assert set(MUTANTS) == set(TASK_CHECKS)


def test_a_sound_task_passes():
    assert check_task(card_of(Sound)).ok


@pytest.mark.parametrize(("check", "card"), [*MUTANTS.items(), *MORE_MUTANTS])
def test_a_check_catches_its_mutant(check, card):
    with pytest.raises(Violation):
        TASK_CHECKS[check](card.build(Options()))


def test_cards_of_our_tasks_say_how_long_to_train():
    for name in task_names():
        assert "quick" in task_card(name).levels

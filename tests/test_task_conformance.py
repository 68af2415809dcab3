"""Every registered task passes the conformance kit, and every check of the kit catches a broken task."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from mutants.sound_tasks import (
    Couples,
    Options,
    Pictures,
    Readings,
    ReadingsByPosition,
    RepeatsTokens,
    SeveralAtOnce,
    Sound,
    card_of,
)
from mutants.tasks import MUTANTS, TESTING

from attn_zoo import build_task, task_card, task_names
from attn_zoo.conformance import TASK_CHECKS, NotApplicable, Violation, check_task, task_checks
from attn_zoo.conformance.pytest_support import parametrize_with_checks

TELLS, ORDER = "no_shortcut_tells_the_label", "order_tells_nothing"


@parametrize_with_checks(task_names())
def test_registered_task_conforms(check):
    check()


def test_every_check_has_a_mutant():
    assert {check for check, _, _ in MUTANTS} == set(TASK_CHECKS)


@pytest.mark.variants
@pytest.mark.parametrize(
    ("kind", "skipped"),
    [
        (Sound, set()),
        pytest.param(Couples, set(), marks=pytest.mark.exhaustive),
        pytest.param(Pictures, {TELLS}, marks=pytest.mark.exhaustive),
        pytest.param(Readings, {TELLS}, marks=pytest.mark.exhaustive),
        pytest.param(SeveralAtOnce, {TELLS}, marks=pytest.mark.exhaustive),
        (RepeatsTokens, {ORDER}),
        (ReadingsByPosition, {ORDER, TELLS}),
    ],
)
def test_a_sound_task_passes_every_check_that_applies_to_it(kind, skipped):
    report = check_task(card_of(kind))
    assert not report.failures, str(report)
    assert {result.case.check for result in report.results if result.status != "passed"} == skipped, str(report)


class RareClass(Sound):
    """A class of 2 %, of which a token marks every other example: it is right for 99 %, little more than a constant guess."""

    def rows(self, split, seed):
        ids = torch.randint(1, 4, (1000, 6), generator=torch.Generator().manual_seed(seed))
        labels = (torch.arange(1000) % 50 == 0).long()
        ids[::100, 1] = 9
        return ids, labels


class FewLabels(Sound):
    """Labels that the first token tells, in so few examples that any of many positions may."""

    def rows(self, split, seed):
        ids, labels = super().rows(split, seed)
        ids[:, 0] = 8 + labels
        return ids[:20], labels[:20]


def test_a_shortcut_to_a_rare_class_alone_is_none():
    assert TASK_CHECKS[TELLS](card_of(RareClass).build(Options())) == "one token or the length predicts at most 99% of test labels"


def test_a_shortcut_is_not_told_from_chance_in_a_few_labels():
    with pytest.raises(NotApplicable, match="fewer than 50"):
        TASK_CHECKS[TELLS](card_of(FewLabels).build(Options()))


@pytest.fixture
def in_the_tests():
    TESTING.add(os.getpid())
    yield
    TESTING.clear()


@pytest.mark.variants
@pytest.mark.parametrize(("check", "card", "words"), MUTANTS, ids=[f"{check}-{card.name}" for check, card, _ in MUTANTS])
@pytest.mark.usefixtures("in_the_tests")
def test_a_check_catches_its_mutant(check, card, words):
    with pytest.raises(Violation, match=words):
        TASK_CHECKS[check](card.build(Options()))


def test_a_task_of_this_process_only_is_not_sent_to_another():
    class Here(Sound):
        pass

    with pytest.raises(NotApplicable, match="cannot be sent"):
        TASK_CHECKS["another_process_agrees"](card_of(Here).build(Options()))
    with pytest.raises(NotApplicable, match="runs with the default options only"):
        TASK_CHECKS["another_process_agrees"](card_of(Sound).build(Options(data_seed=1)))


def test_missing_data_skip_every_check_and_say_what_to_do(tmp_path):
    card = replace(task_card("mnist"), variants={"nowhere": {"root": str(tmp_path)}})
    cases = [case for case in task_checks(card) if case.variant == "nowhere"]
    assert len(cases) == len(TASK_CHECKS)
    for case in cases:
        with pytest.raises(NotApplicable, match="no data found below"):
            case()


def test_listing_the_checks_makes_no_examples(monkeypatch):
    def read(*_):
        raise AssertionError("data are read")

    monkeypatch.setattr(Sound, "examples", read)
    cases = list(task_checks(card_of(Sound)))
    assert len(cases) == len(TASK_CHECKS)
    with pytest.raises(AssertionError, match="data are read"):
        cases[0]()


def test_cards_of_our_tasks_say_how_long_to_train():
    for name in task_names():
        levels = task_card(name).levels
        assert {"smoke", "cpu", "lra"} <= set(levels), name
        assert levels["lra"].differs, f"{name} does not say how its largest level differs from what was published"
        assert all(build_task(name, **level.options).spec.length > 0 for level in levels.values())

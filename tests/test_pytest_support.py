"""``parametrize_with_checks``: checks of the conformance kit as ordinary tests of pytest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutants.card import Untold
from mutants.originals import ORIGINALS

from attn_zoo import task_names
from attn_zoo.conformance import Violation, attention_checks, task_checks
from attn_zoo.conformance.pytest_support import parametrize_with_checks
from attn_zoo.contract import UnknownNameError


def parameters(*targets, **others):
    return {given.id: given.values[0] for given in parametrize_with_checks(*targets, **others).args[1]}


def test_parametrizing_takes_one_or_many_of_either_kind():
    expected = {case.id for case in (*attention_checks("none"), *task_checks("digits"))}
    assert set(parameters(["none", "digits"])) == expected
    assert set(parameters("digits")) == {case.id for case in task_checks("digits")}
    assert set(parameters(ORIGINALS["linear"])) == {case.id for case in attention_checks(ORIGINALS["linear"])}
    assert "digits" in task_names()


def test_a_violation_is_told_with_the_sentence_that_it_breaks():
    with pytest.raises(Violation, match=r"equation is empty\ncard_is_complete: The card has all its texts"):
        parameters(Untold.card)[f"{Untold.card.name}[default]-eager-card_is_complete"]()


def test_expected_failures_are_strict():
    name = Untold.card.name
    waived = parameters(Untold.card, expected_failures={"card_is_complete": "known", "default-eager-eval_is_deterministic": "old"})
    with pytest.raises(pytest.xfail.Exception, match=r"known \(found: .*equation is empty"):
        waived[f"{name}[default]-eager-card_is_complete"]()
    with pytest.raises(pytest.fail.Exception, match=r"expected to fail \(old\), but default-eager-eval.* holds; remove it"):
        waived[f"{name}[default]-eager-eval_is_deterministic"]()
    stale = parameters(Untold.card, expected_failures={"compressing_first_agrees": "old"})
    with pytest.raises(pytest.fail.Exception, match="has nothing to check; remove it from expected_failures"):
        stale[f"{name}[default]-eager-compressing_first_agrees"]()
    with pytest.raises(UnknownNameError, match="did you mean 'card_is_complete'"):
        parametrize_with_checks(Untold.card, expected_failures={"card_is_complet": "typo"})


def test_what_an_entry_raises_is_an_expected_failure_as_well():
    def fails(geometry, options):
        raise RuntimeError("it was late")

    card = replace(ORIGINALS["linear"], cost=fails)
    waived = parameters(card, expected_failures={"cost_formula_is_exact": "no formula yet"})
    with pytest.raises(pytest.xfail.Exception, match=r"no formula yet \(found: it was late"):
        waived["linear[default]-eager-cost_formula_is_exact"]()

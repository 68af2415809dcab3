"""Each check passes on the sound originals and catches its mutants, for the right reason."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator

import pytest
import torch

from attn_zoo import attentions
from attn_zoo.conformance import ATTENTION_CHECKS, Case, attention_checks, run_cases
from attn_zoo.contract import AttentionCard
from mutants import MUTANTS, ORIGINALS, Mutant

BY_CHECK = {check: [mutant for mutant in MUTANTS if mutant.check == check] for check in ATTENTION_CHECKS}


def only(card: AttentionCard, check: str) -> list[Case]:
    return [case for case in attention_checks(card) if case.check == check]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ORIGINALS)
def test_original_passes_every_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation, a fifth of the time of all checks, is left to the zoo's attentions and to originals of its mutants."""
    card = ORIGINALS[name]
    monkeypatch.setattr(card.build, "card", card)  # with fewer variants and implementations than in the zoo
    compiled = any(mutant.original is card for mutant in BY_CHECK["compiled_agrees"])
    cases = [case for case in attention_checks(card) if compiled or case.check != "compiled_agrees"]
    report = run_cases(name, cases)
    report.raise_on_failure()


@pytest.fixture
def settings_restored() -> Iterator[None]:
    """Restore the process settings that mutants change."""
    precision, filters = torch.get_float32_matmul_precision(), list(warnings.filters)
    silenced = logging.root.manager.disable
    yield
    os.environ.pop("ATTN_ZOO_MUTANT", None)
    logging.disable(silenced)
    torch.set_float32_matmul_precision(precision)
    warnings.filters[:] = filters  # type: ignore[index]  # a list, which its stub calls a sequence


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.check}-{mutant.card.name}")
def test_check_catches_its_mutant(mutant: Mutant) -> None:
    # Where shapes in annotations are checked at run time, that check may fail first.
    reasons, found = (mutant.says, "TypeCheckError"), []
    for case in only(mutant.card, mutant.check):  # until one setting is caught
        report = run_cases(mutant.card.name, [case])
        found.append(str(report))
        if any(reason in failure.detail for failure in report.failures for reason in reasons):
            return
    pytest.fail(f"{mutant.check} did not catch {mutant.card.origin}, or not for {mutant.says!r}\n" + "\n".join(found))


@pytest.mark.parametrize("check", ATTENTION_CHECKS)
def test_check_has_a_mutant_and_passes_on_its_original(check: str) -> None:
    """Each check passes on a setting of the original of its first mutant: it neither fails on everything nor skips everything."""
    original = BY_CHECK[check][0].original
    assert original in ORIGINALS.values()
    for case in only(original, check):  # until one passes; each setting is a test of the zoo's attentions
        report = run_cases(original.name, [case])
        report.raise_on_failure()
        if report.results[0].status == "passed":
            return
    pytest.fail(f"{check} skips every setting of {original.name}")


def test_mutants_stay_out_of_the_zoo() -> None:
    assert not {mutant.card.name for mutant in MUTANTS} & set(attentions())

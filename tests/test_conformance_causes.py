"""First lines of a report: the gap that no check could close, and the likeliest cause of many failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mutants.originals import ORIGINALS, PlainSoftmax
from torch import Tensor

from attn_zoo import attentions, card, task_names
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.conformance import Case, Report, attention_checks, causes, require, run_cases
from attn_zoo.conformance.attention_suite import NO_DEFINITION, unknown_of
from attn_zoo.conformance.causes import CAUSES
from attn_zoo.contract import AttentionCard
from attn_zoo.registry import task_card

NAMED = {check for check, _, _ in CAUSES}


def broken(change: Callable[[Tensor, Tensor], Tensor]) -> AttentionCard:
    """Softmax attention whose output is changed by a function of the output and the value."""

    class Broken(PlainSoftmax):
        def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
            return change(super().attend(query, key, value, key_valid), value)

    Broken.card = replace(ORIGINALS["softmax"], build=Broken, implementations=("eager",))
    return Broken.card


def first_lines(found: AttentionCard, checks: set[str] = NAMED, lines: int | None = 2) -> list[str]:
    """Report of these checks, without the message of each failure."""
    return str(run_cases("broken", [case for case in attention_checks(found) if case.check in checks])).splitlines()[:lines]


def without_keys(out: Tensor, value: Tensor) -> Tensor:
    return out.masked_fill((out == 0).all(dim=-1, keepdim=True), float("nan"))


def crash(out: Tensor, value: Tensor) -> Tensor:
    raise RuntimeError(f"sizes differ: {len(value)}")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda out, value: out.transpose(1, 2), "the output does not have the shape of the queries"),
        (lambda out, value: out.float(), "the output does not have the dtype of the inputs"),
        (lambda out, value: out * float("nan"), "outputs are NaN or infinite, also without padding"),
        (without_keys, "a query without a valid key gives NaN instead of zeros"),
        (lambda out, value: out * torch.rand(()), "two equal calls give different outputs"),
        (lambda out, value: out - out.mean(0, keepdim=True), "the output for an example depends on the other examples"),
        (lambda out, value: out + value.mean(2, keepdim=True), "outputs of the causal form depend on later positions"),
        (lambda out, value: 2 * out, "`attend` and `definition` compute different outputs"),
    ],
)
def test_the_fault_behind_many_failures_stands_above_them(monkeypatch, change, cause):
    monkeypatch.setattr(causes, "MANY", 1)  # these are a few of the checks that fail
    assert f"failures: {cause}" in first_lines(broken(change))[1]


def test_a_cost_formula_that_is_wrong_stands_above_what_follows_from_it(monkeypatch):
    monkeypatch.setattr(causes, "MANY", 1)
    sound = ORIGINALS["linear"]
    wrong = replace(sound, cost=lambda *given: replace(sound.cost(*given), flops=1))
    assert "the card's cost formula states other FLOPs" in first_lines(wrong)[1]


def test_a_wrong_cost_formula_is_no_cause_of_other_failures():
    def fails() -> None:
        require(False, "found 7")

    among = run_cases("thing", [case(name, fails) for name in ("cost_formula_is_exact", "float16_is_close", "b")])
    alone = run_cases("thing", [case(name, fails) for name in ("cost_formula_is_exact", "cost_formula_is_exact", "b")])
    assert "likeliest" not in str(among) and "the card's cost formula" in str(alone)


def test_an_exception_at_one_place_is_one_cause_whatever_it_says():
    head, cause = first_lines(broken(crash))
    assert "failed" in head
    assert "failures: RuntimeError: sizes differ: " in cause and "(test_conformance_causes.py:" in cause and "; mend it" in cause


def case(check: str, run: Callable[[], str | None]) -> Case:
    return Case("thing", check, "Says so.", run, "default", "eager")


@pytest.mark.parametrize(
    "unsupported",
    [lambda geometry: not geometry.causal, lambda geometry: math.isqrt(geometry.keys) ** 2 != geometry.keys],
    ids=["only causal", "only square numbers of patches"],
)
def test_a_mechanism_that_the_checks_cannot_build_is_told_the_rule(monkeypatch, unsupported):
    class Narrow(PlainSoftmax):
        @classmethod
        def refuses(cls, implementation, geometry, options):
            return "mine does not have this form" if unsupported(geometry) else None

    monkeypatch.setattr(causes, "MANY", 1)
    Narrow.card = replace(ORIGINALS["softmax"], build=Narrow, implementations=("eager",))
    _, cause, failed, *rest = first_lines(Narrow.card, {"card_is_complete", "eval_is_deterministic"}, lines=None)
    assert "failures: the mechanism cannot be built at the lengths of the checks" in cause
    assert "must have a bidirectional form, which must run at one of the lengths 33, 65," in failed
    assert "raises: mine does not have this form. A form that is only causal can be made bidirectional by adding" in failed
    assert not any(line.startswith("  failed") for line in rest), "all failures share one message"


def test_few_failures_and_failures_without_a_common_cause_have_no_such_line():
    def fails() -> None:
        require(False, "found 7")

    few = run_cases("thing", [case("cost_formula_is_exact", fails), case("b", fails)])
    unrelated = run_cases("thing", [case(name, fails) for name in "abc"])
    assert "likeliest" not in str(few) and "likeliest" not in str(unrelated)


def test_causes_name_checks_that_exist():
    assert {case.check for case in attention_checks(ORIGINALS["softmax"])} >= NAMED


def test_the_verdict_says_that_no_definition_was_there_to_compare_with():
    class Undefined(Linear):
        definition = None  # type: ignore[assignment]

    assert unknown_of(replace(ORIGINALS["linear"], build=Undefined)) == NO_DEFINITION
    assert str(Report("linear", (), unknown=NO_DEFINITION)).splitlines()[0] == f"linear: no check ran in 0.0 s; {NO_DEFINITION}"


def test_a_definition_or_exact_softmax_is_enough_and_tasks_need_none():
    assert not unknown_of(broken(crash)), "the card says that the attention is exact"
    assert not any(unknown_of(card(name)) for name in attentions())
    assert not unknown_of(task_card(task_names()[0]))

"""Estimate of the remaining time of the checks, with a clock of its own and times that were measured once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from mutants.originals import ORIGINALS

from attn_zoo.conformance import ATTENTION_CHECKS, Case, Result, attention_checks
from attn_zoo.conformance.remaining import APART, WEIGHTS, Remaining

MECHANISMS = ("window", "window with a definition in Python loops", "reformer")
MEASURED = {
    "defaults_suit_every_length": (0, 0, 1.23),
    "output_is_like_the_queries": (0.01, 0.012, 0.025),
    "eager_agrees_with_the_definition": (0, 17.84, 0.69),
    "causal_output_ignores_the_future": (0.028, 0.025, 0.06),
    "no_future_leaks_at_any_border": (0.59, 0.62, 0.39),
    "padding_in_the_future_has_no_influence": (0.064, 0.056, 0.026),
    "padding_has_no_influence": (0.16, 0.16, 0.092),
    "padding_gets_no_weight": (0.038, 0.031, 0.037),
    "padded_queries_have_no_influence": (0.039, 0.035, 0.035),
    "queries_without_keys_give_zeros": (0.043, 0.043, 0.026),
    "padding_position_does_not_matter": (0, 0, 0.21),
    "batch_mates_have_no_influence": (0.01, 0.009, 0.044),
    "batch_size_has_no_influence": (0.31, 0.3, 0.87),
    "memory_layout_has_no_influence": (0.031, 0.028, 0.056),
    "inputs_are_left_alone": (0.005, 0.004, 0.025),
    "heads_keep_to_themselves": (0.009, 0.008, 0.025),
    "the_process_is_left_as_it_was": (0.033, 0.029, 0.04),
    "calls_recover_from_errors": (3.38, 3.36, 1.43),
    "earlier_calls_leave_no_trace": (0.011, 0.011, 0.032),
    "training_keeps_the_promises": (0.016, 0.017, 0.037),
    "recording_gradients_changes_nothing": (0.11, 0.098, 0.086),
    "conversions_reach_everything": (0.021, 0.013, 0.037),
    "shapes_flow_outside_a_device_context": (0.012, 0.012, 0.046),
    "compiled_agrees": (3.15, 3.44, 5.63),
    "every_position_counts_at_every_size": (0.21, 0.28, 0.1),
    "gradients_follow_outputs_at_every_size": (1.34, 1.11, 0.7),
    "gradients_follow_dropout": (0, 0, 0.022),
    "gradients_match_finite_differences": (0.017, 0.014, 0.046),
    "single_precision_is_close": (0.006, 0.022, 0.015),
    "every_size_runs_in_every_type": (1.19, 1.04, 0.7),
    "bfloat16_is_close": (0.017, 0.015, 0.031),
    "float16_is_close": (0.019, 0.018, 0.036),
    "dropout_acts_in_training_only": (0, 0, 0.23),
    "cost_formula_is_exact": (0.083, 0.072, 0.22),
    "state_bytes_are_needed_and_enough": (0.001, 0.001, 0.039),
    "shapes_flow_without_numbers": (0.007, 0.005, 0.038),
    "time_grows_as_printed": (0.062, 0.059, 0.3),
    "promises_hold_once_trained": (0.12, 0, 0),
    "options_hold_beyond_the_variants": (1.03, 0, 0.78),
}
"""Seconds of a processor in the checks of three mechanisms, at the default options in ``eager``; other checks took 0.002 s."""


def replay(seconds: Sequence[float], cases: Sequence[Case]) -> Iterator[tuple[float, float | None]]:
    """Yield the time and the estimate at the beginning and in the middle of each case, which takes so many seconds."""
    now, done = 0.0, list[Result]()
    remaining = Remaining(cases, lambda: now)
    for case, taken in zip(cases, seconds, strict=True):
        remaining.begin(done)
        yield now, remaining.seconds()
        now += taken / 2
        yield now, remaining.seconds()
        now += taken / 2
        done.append(Result(case, "passed" if taken else "skipped", "", taken))


def cases_of(checks: Sequence[str], variant: str = "default") -> list[Case]:
    return [Case("thing", check, "Says so.", lambda: None, variant, "eager") for check in checks]


@pytest.mark.parametrize("place", range(len(MECHANISMS)), ids=MECHANISMS)
def test_the_estimate_hardly_grows_after_the_first_fifth(place):
    names = [case.check for case in attention_checks(ORIGINALS["uniform"]) if case.implementation == "eager"]
    cases = cases_of(names) + cases_of(names, "wide")
    seconds = [MEASURED.get(case.check, (0.002,) * 3)[place] * (1.0 if case.variant == "default" else 0.3) for case in cases]
    whole, least, shown = sum(seconds), float("inf"), 0
    for now, left in replay(seconds, cases):
        if now < whole / 5 or left is None:
            continue
        shown += 1
        assert now + left <= 1.5 * least, f"after {now:.1f} s of {whole:.1f} s"
        assert whole / 2 <= now + left <= 2 * whole
        least = min(least, now + left)
    assert shown > len(cases) / 2


def test_a_slow_definition_does_not_slow_the_other_checks_down_in_the_estimate():
    names = ["padding_has_no_influence", "eager_agrees_with_the_definition", "every_size_runs_in_every_type"]
    estimates = [left for _, left in replay([0.1, 60.0, 0.9], cases_of(names))]
    assert estimates[4] == pytest.approx(0.1 * WEIGHTS[names[2]] / WEIGHTS[names[0]])


def test_another_variant_is_expected_to_take_a_part_of_the_defaults():
    names = ["every_size_runs_in_every_type"]
    estimates = [left for _, left in replay([10.0, 3.0], cases_of(names) + cases_of(names, "wide"))]
    assert estimates == [None, None, pytest.approx(3.0), pytest.approx(1.5)]


def test_there_is_no_estimate_before_enough_is_done_or_while_a_check_takes_far_longer_than_expected():
    names = ["every_size_runs_in_every_type", "padding_has_no_influence", "cost_formula_is_exact"]
    first, _, second, overdue, third, _ = (left for _, left in replay([7.0, 100.0, 0.8], cases_of(names)))
    assert first is None and overdue is None
    assert second is not None and third is not None


def test_cases_that_cannot_run_here_cost_nothing():
    gone = Case("thing", "every_size_runs_in_every_type", "Says so.", lambda: None, "default", "triton", "needs CUDA")
    (_, _, after, _) = (left for _, left in replay([2.0, 0.0], [*cases_of(["padding_has_no_influence"]), gone]))
    assert after == 0.0


def test_weights_are_those_of_checks():
    assert set(WEIGHTS) <= set(ATTENTION_CHECKS)
    assert set(APART) <= set(ATTENTION_CHECKS)

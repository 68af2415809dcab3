"""Estimate of the remaining time of the conformance tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attn_zoo.conformance.attention_suite import DEFAULT
from attn_zoo.conformance.harness import Case, Result

WEIGHTS = {
    "compiled_agrees": 400,
    "calls_recover_from_errors": 260,
    "defaults_suit_every_length": 120,
    "eager_agrees_with_the_definition": 80,
    "gradients_follow_outputs_at_every_size": 80,
    "implementation_agrees_with_eager": 80,
    "options_hold_beyond_the_variants": 80,
    "every_size_runs_in_every_type": 70,
    "no_future_leaks_at_any_border": 50,
    "batch_size_has_no_influence": 40,
    "limit_is_softmax": 20,
    "padding_position_does_not_matter": 16,
    "every_position_counts_at_every_size": 12,
    "promises_hold_once_trained": 12,
    "cost_formula_is_exact": 8,
    "padding_has_no_influence": 8,
    "recording_gradients_changes_nothing": 8,
    "steps_hold_on_for_long": 8,
    "time_grows_as_printed": 8,
}
"""Usual durations of slow checks with the default options, rounded. The unit is the usual duration of a check that is not in this
list."""
VARIANT = 0.3
"""Usual duration of a check with a variant (other options and fewer sizes), divided by its duration with the default options."""
# Their duration depends on a definition, the compiler or the data.
APART = (
    "calls_recover_from_errors",
    "card_is_complete",
    "compiled_agrees",
    "defaults_suit_every_length",
    "eager_agrees_with_the_definition",
)
"""Checks that are not used to estimate the speed of the mechanism."""
ENOUGH = 0.03
"""Share of the work (the usual duration of all cases) that must be done before the remaining time is estimated."""
OVERDUE = 3.0
"""If a case takes longer than this multiple of its expected duration, there is no estimate until the case ends."""


class Remaining:
    """Estimate of the seconds until the last case ends, from the usual duration of each check and the measured durations of ended
    cases.

    Args:
        cases: all cases, in the order in which they run.
        clock: function that returns the present time in seconds.
    """

    def __init__(self, cases: Sequence[Case], clock: Callable[[], float] = time.monotonic) -> None:
        self._cases, self._clock = cases, clock
        self._done: tuple[Result, ...] = ()
        self._since = clock()

    def begin(self, done: Sequence[Result]) -> None:
        """Record that the next case begins now. The argument ``done`` lists the results so far."""
        self._done, self._since = tuple(done), self._clock()

    def seconds(self) -> float | None:
        """Return the estimated seconds until the last case ends. Return None if no case is left, too few cases have ended, or the
        present case takes far longer than expected."""
        known = [result for result in self._done if result.status != "skipped" and result.case.check not in APART]
        usual = sum(_usual(result.case) for result in known)
        left = self._cases[len(self._done) :]
        if not left or usual < ENOUGH * sum(map(_usual, self._cases)):
            return None
        pace = sum(result.seconds for result in known) / usual
        taken = {(result.case.check, result.case.implementation): result for result in self._done if result.case.variant == DEFAULT}
        expected = [_expected(case, pace, taken) for case in left]
        present = self._clock() - self._since
        if present > OVERDUE * expected[0] and present > ENOUGH * sum(expected):
            return None
        return max(expected[0] - present, 0.0) + sum(expected[1:])


def _expected(case: Case, pace: float, taken: dict[tuple[str, str], Result]) -> float:
    """Return the expected seconds of a case. They follow from the same check with the default options, if it has ended, and
    otherwise from the usual duration of the check and the pace of the others."""
    same = taken.get((case.check, case.implementation)) or taken.get((case.check, "eager"))
    if same is None:
        return pace * _usual(case)
    return same.seconds * (1.0 if case.variant == DEFAULT else VARIANT)


def _usual(case: Case) -> float:
    return 0.0 if case.unavailable else WEIGHTS.get(case.check, 1) * (1.0 if case.variant == DEFAULT else VARIANT)

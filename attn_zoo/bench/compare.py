"""Comparison of two subjects that are timed in interleaved rounds: which one is faster, or whether they tie.

Each round times both, in random order (``TimingProtocol.order = "shuffled"``), and gives one quotient of seconds. A disturbance
of the whole round cancels in the quotient. A disturbance of only one of the two (another program, a change of clock rate, the
place in the round) was as likely to hit the other, whatever the noise looks like and however long it lasts. So if B costs q times
A, each round's quotient lies above q with probability 1/2, independently of all other rounds, and the number of rounds above q is
binomial. The confidence interval of the median that follows from it (the interval of the sign test) needs no assumption about the
noise, and up to half of the rounds may be disturbed before it moves far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attn_zoo.bench.timing import quotients

SMALLEST = 0.02
"""Smallest difference of interest: a quotient between 1 / 1.02 and 1.02 is a tie. Memory addresses of a process may cost 1 %."""

CONFIDENCE = 0.95

ROUNDS = 150
"""Number of rounds that detects a difference of 10 % where timings scatter by 10 % and every other round is disturbed."""

METHOD = "median of the quotients within a round, with the distribution-free interval of the sign test"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing B with A. ``quotient`` is the median over rounds of (seconds of B) / (seconds of A). Above 1, A is
    faster.
    """

    rounds: int
    quotient: float
    low: float
    high: float
    """Bounds of the interval that holds the true quotient with probability ``confidence`` or more."""
    smallest: float = SMALLEST
    confidence: float = CONFIDENCE

    @property
    def verdict(self) -> str:
        """``A faster`` or ``B faster`` if the whole interval lies beyond the smallest difference of interest, else ``tie``."""
        if self.low > 1 + self.smallest:
            return "A faster"
        return "B faster" if self.high < 1 / (1 + self.smallest) else "tie"

    @property
    def equal(self) -> bool:
        """True if the interval lies within the smallest difference of interest. A tie then means equal, not unknown."""
        return 1 / (1 + self.smallest) <= self.low and self.high <= 1 + self.smallest

    def describe(self) -> str:
        """Return verdict, quotient and interval in one line."""
        tie = f"tie (equal within {100 * self.smallest:g} %)" if self.equal else "tie (not significant)"
        verdict = tie if self.verdict == "tie" else self.verdict
        interval = f"{100 * self.confidence:g} % interval {self.low:.3f} to {self.high:.3f}"
        return f"{verdict}: B / A = {self.quotient:.3f}, {interval}, {self.rounds} rounds"


def fewest_rounds(confidence: float = CONFIDENCE) -> int:
    """Return the least number n of rounds whose smallest and largest quotient bound the interval: 2 · (1/2)ⁿ < 1 - confidence.

    Raises:
        ValueError: ``confidence`` is no probability between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {confidence}")
    return 2 + math.floor(-math.log2(1 - confidence))


def compare(
    first: Sequence[float], second: Sequence[float], *, smallest: float = SMALLEST, confidence: float = CONFIDENCE
) -> Comparison:
    """Compare the seconds of A (``first``) and B (``second``), with one value per round. Rounds without both values are left out.

    Args:
        smallest: smallest difference of interest as a share; with 0, any interval that excludes 1 is a difference.

    Raises:
        ValueError: fewer rounds than ``fewest_rounds``, a time that is no positive number, or a bad share or confidence.
    """
    needed = fewest_rounds(confidence)
    if smallest < 0:
        raise ValueError(f"the smallest difference of interest must be a share of at least 0; got {smallest}")
    if not all(0 < seconds < math.inf for seconds in [*first, *second]):
        raise ValueError("seconds must be positive and finite; a step that could not be timed has no round")
    taken = quotients(second, first)
    if len(taken) < needed:
        raise ValueError(f"a comparison at confidence {confidence:g} must have at least {needed} common rounds; got {len(taken)}")
    interval = stats.quantile_test(taken, p=0.5).confidence_interval(confidence)
    return Comparison(len(taken), float(np.median(taken)), float(interval.low), float(interval.high), smallest, confidence)

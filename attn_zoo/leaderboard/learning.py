"""Successes of a row on a task, and the steps that it needs, over seeds that were trained until a criterion (protocol 3).

Whether: seeds that ended at the criterion, of all, with the exact interval of Clopper and Pearson (1934). How soon: steps to 90 %
of the ceiling, censored at the last step of seeds that did not come so far. Their median is Kaplan and Meier's (1958), its interval
Brookmeyer and Crowley's (1982) from log-log bands, as R's ``survfit`` computes it with ``conf.type="log-log"``. If the
curve falls to 0 at the median, the lower end of the band there counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from attn_zoo.leaderboard.statistics import CONFIDENCE
from attn_zoo.leaderboard.student import beta_quantile

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Successes:
    """Number of seeds that ended at the criterion, and the interval of their share."""

    count: int
    of: int
    low: float
    high: float

    @property
    def order(self) -> float:
        """Number by which tables are sorted."""
        return self.count / self.of

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


@dataclass(frozen=True, slots=True)
class Soon:
    """Median of the steps to 90 % of the ceiling, with its interval; None for more steps than were trained."""

    median: float | None
    low: float | None
    high: float | None
    cap: int
    """Largest number of steps that a seed was trained for without coming so far; of all steps if all came so far."""

    @property
    def order(self) -> float:
        """Number by which tables are sorted."""
        return float("inf") if self.median is None else self.median

    def __str__(self) -> str:
        if self.median is None:
            return f"> {self.cap:,}"
        return f"{self.median:,.0f} ({self.low:,.0f} to {'?' if self.high is None else f'{self.high:,.0f}'})"


def until_criterion(runs: Sequence[Run]) -> bool:
    """Return True if the runs were trained until a criterion that they could meet."""
    return all(run["budget"].get("until") == "criterion" and run["budget"].get("ceiling", 0) for run in runs)


def successes(runs: Sequence[Run]) -> Successes | None:
    """Return the successes among the runs of a row, a failed run being none; None without a criterion."""
    if not until_criterion(runs):
        return None
    count = sum(run["status"] == "done" and run["stopped"] == "criterion" for run in runs)
    return Successes(count, len(runs), *share_interval(count, len(runs)))


def share_interval(count: int, of: int) -> tuple[float, float]:
    """Return the exact interval of Clopper and Pearson for the share of successes in ``of`` trials with ``count`` successes."""
    tail = (1 - CONFIDENCE) / 2
    low = beta_quantile(count, of - count + 1, tail) if count else 0.0
    return low, beta_quantile(count + 1, of - count, 1 - tail) if count < of else 1.0


def steps_to_90(runs: Sequence[Run]) -> Soon | None:
    """Return the median of the steps to 90 % of the ceiling among the runs of a row; None without a criterion or finished runs."""
    done = [run for run in runs if run["status"] == "done" and run["curve"]]
    if not until_criterion(runs) or not done:
        return None
    there = [run["steps_to_90"] for run in done if run["steps_to_90"] is not None]
    ends = [run["curve"][-1]["step"] for run in done if run["steps_to_90"] is None]
    median, low, high = median_time(there, ends)
    return Soon(median, low, high, max(ends or [run["curve"][-1]["step"] for run in done]))


def median_time(times: Sequence[float], censored: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the Kaplan-Meier median of times and its interval; None for an end that the observations do not bound.

    Args:
        times: times of events.
        censored: times at which the observation of others ended without an event.
    """
    ends: dict[str, float | None] = dict.fromkeys(("median", "low", "high"))
    share, greenwood, z = 1.0, 0.0, NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    for time in sorted(set(times)):
        events, watched = times.count(time), sum(other >= time for other in (*times, *censored))
        share *= 1 - events / watched
        if events < watched:  # at the last event of all, the bands are not defined
            greenwood += events / (watched * (watched - events))
            spread = z * math.sqrt(greenwood) / -math.log(share)
            lower, upper = share ** math.exp(spread), share ** math.exp(-spread)
        else:
            share, lower, upper = 0.0, 0.0, 1.0
        for name, part in (("median", share), ("low", lower), ("high", upper)):
            if ends[name] is None and part <= 0.5:
                ends[name] = float(time)
    return ends["median"], ends["low"], ends["high"]

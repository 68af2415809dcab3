"""Successes of a row on a task, and the steps that it needs, over seeds that were trained until a criterion (protocol 3).

Whether: seeds that ended at the criterion, of all, with the exact interval of Clopper and Pearson (1934). How soon: steps to 90 %
of the ceiling, censored at the last step of seeds that did not come so far. Their median is Kaplan and Meier's (1958), its interval
Brookmeyer and Crowley's (1982) from log-log bands, as R's ``survfit`` computes it with ``conf.type="log-log"``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_zoo.leaderboard.statistics import CONFIDENCE

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
    from scipy.stats import binomtest  # imported here: takes a second, and most commands do not need it

    count = sum(run["status"] == "done" and run["stopped"] == "criterion" for run in runs)
    interval = binomtest(count, len(runs)).proportion_ci(CONFIDENCE, method="exact")
    return Successes(count, len(runs), float(interval.low), float(interval.high))


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
    from scipy.stats import CensoredData, ecdf

    if not times:
        return None, None, None
    survival = ecdf(CensoredData(uncensored=list(times), right=list(censored))).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # bands are not defined where nobody is left; they are filled in below
        bands = survival.confidence_interval(CONFIDENCE, method="log-log")
    lower, upper = (np.nan_to_num(band.probabilities, nan=fill) for band, fill in ((bands.low, 0.0), (bands.high, 1.0)))
    median, low, high = (
        next((float(time) for time, share in zip(survival.quantiles, part, strict=True) if share <= 0.5), None)
        for part in (survival.probabilities, lower, upper)
    )
    return median, low, high

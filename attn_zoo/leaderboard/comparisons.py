"""Comparisons of all pairs of rows with enough common seeds, and the differences beyond noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from attn_zoo.leaderboard.metrics import SHARES, grain
from attn_zoo.leaderboard.moderation import moderated_p_values
from attn_zoo.leaderboard.rows import Comparison, Row
from attn_zoo.leaderboard.statistics import CONFIDENCE, Floats, paired

SEEDS_NEEDED = 3
"""Number of common seeds from which on noise is estimated: two rows with fewer are not ranked or called different."""
SMALLEST = 0.01
"""Smallest difference that counts: absolute for shares (one point), relative to the larger score for other metrics."""
_ROUNDING = 1e-6
"""Relative rounding error of scores, which are computed in single precision."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution of the scores on a test split."""

    share: bool
    """True if the metric is a share, so that differences are points."""
    grain: float
    """Smallest step between scores; 0 for metrics that are not counts."""

    def ties(self, difference: float, larger: float) -> bool:
        """Tell whether a difference is too small to count, whatever a significance test says."""
        return abs(difference) < SMALLEST * (1.0 if self.share else abs(larger))


def resolution(task: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]) -> Resolution:
    """Resolution of a task, from its recorded card and data."""
    return Resolution(task["metric"] in SHARES, grain(task["metric"], data.get("test", {}).get("examples")))


def fit_to_compare(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Rows without failed seeds of which any two share ``SEEDS_NEEDED`` seeds, and reasons by label why others are left out.

    A row with a failed seed is left out because its remaining seeds are the lucky ones.
    """
    reasons = {row.label: why for row in rows if (why := _unfit(row))}
    fit = [row for row in rows if row.label not in reasons]
    kept = _sharing(fit)
    return kept, reasons | {row.label: _unshared(row, fit) for row in fit if row not in kept}


def p_values(rows: Sequence[Row], resolution: Resolution) -> Floats:
    """p values of all pairs of rows that are fit to compare, in the order of ``itertools.combinations``; not corrected."""
    seeds = sorted({seed for row in rows for seed in row.scores.seeds})
    scores = np.array([[row.scores.by_seed.get(seed, np.nan) for seed in seeds] for row in rows])
    return moderated_p_values(scores, max(resolution.grain, _ROUNDING * float(np.nanmax(np.abs(scores)))))


def compare(
    rows: Sequence[Row], higher_is_better: bool, resolution: Resolution, correction: Callable[[Floats], Floats]
) -> tuple[Comparison, ...]:
    """Compare all pairs of rows; a pair differs where its corrected p value is significant and its difference counts."""
    corrected = correction(p_values(rows, resolution))
    pairs = zip(combinations(rows, 2), corrected, strict=True)
    return tuple(_comparison(a, b, float(p), higher_is_better, resolution) for (a, b), p in pairs)


def shared_seeds(one: Row, other: Row) -> int:
    """Number of seeds that two rows have in common."""
    return len(set(one.scores.seeds) & set(other.scores.seeds))


def _comparison(a: Row, b: Row, p: float, higher_is_better: bool, resolution: Resolution) -> Comparison:
    difference = paired(a.scores.by_seed, b.scores.by_seed)
    assert difference is not None and a.scores.test and b.scores.test, "rows that are compared share seeds"
    if (difference.mean < 0) == higher_is_better and difference.mean != 0:
        a, b, difference = b, a, replace(difference, mean=-difference.mean)
    ties = resolution.ties(difference.mean, max(abs(row.scores.test.mean) for row in (a, b) if row.scores.test))
    return Comparison(a.label, b.label, difference, p, p <= 1 - CONFIDENCE and not ties)


def _unfit(row: Row) -> str | None:
    """Reason why a row cannot be compared, whatever seeds the others have; None where it can."""
    if row.scores.failures:
        return f"no rank, as not every seed has a score ({row.scores.failures[0].run})"
    if len(row.scores.seeds) < SEEDS_NEEDED:
        return f"no rank with fewer than {SEEDS_NEEDED} seeds; {SEEDS_NEEDED - len(row.scores.seeds)} more needed"
    return None


def _unshared(row: Row, others: Sequence[Row]) -> str:
    fewest = min(shared_seeds(row, other) for other in others)
    return f"no rank with fewer than {SEEDS_NEEDED} seeds in common with every ranked row; {SEEDS_NEEDED - fewest} more needed"


def _sharing(rows: Sequence[Row]) -> list[Row]:
    """Rows of which any two share enough seeds; until that holds, the row that shares them with the fewest others is removed."""
    kept = list(rows)
    while True:
        strangers = {row.label: sum(shared_seeds(row, other) < SEEDS_NEEDED for other in kept if other is not row) for row in kept}
        most = max(strangers.values(), default=0)
        if not most:
            return kept
        kept.remove(min((row for row in kept if strangers[row.label] == most), key=lambda row: (len(row.scores.seeds), row.label)))

"""Comparisons of rows: pairs that differ significantly, ranks and tie letters, Pareto fronts, dominated rows, and orders.

Tests are at common seeds, with spreads moderated over rows, and corrected for the number of pairs. On simulated records of 2 to 60
equal rows with 3 or 5 seeds at most 5 % of tables rank any row falsely: with equal spreads, with spreads that differ twentyfold,
where half of the rows hardly vary, with skewed noise, on splits of few examples, with scores near the ends of the metric, where
rows begin to learn at some seeds only, and with or without an effect of the seed on all rows
(tests/leaderboard/test_ranking_simulations.py). Of forty rows that vary by 2 points at three seeds, 90 % of the gaps of 10 points
are found; t tests of each pair alone find none.

No test on so few seeds detects events that are rare and limited to few rows. At three seeds up to 12 % of tables have a false rank
where one to three rows among equal ones vary three to ten times as much, up to 12 % where noise is skewed and 2 to 5 rows differ
twentyfold in spread, and up to half where, of 2 to 10 rows, some hardly vary and others fall far at one seed in five.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from attn_zoo.checks import check_text
from attn_zoo.leaderboard.letters import tie_letters
from attn_zoo.leaderboard.metrics import SHARES, grain
from attn_zoo.leaderboard.moderation import moderated_p_values
from attn_zoo.leaderboard.statistics import CONFIDENCE, Floats, holm, paired
from attn_zoo.leaderboard.table import COSTS, COUNTED, Comparison, Ranking, Row, Table

SEEDS_NEEDED = 3
"""Number of common seeds from which on noise is estimated: two rows with fewer are not ranked or called different."""
SMALLEST = 0.01
"""Smallest difference that counts: absolute for shares (one point), relative to the larger score for other metrics."""
_ROUNDING = 1e-6
"""Relative rounding error of scores, which are computed in single precision."""
METHOD = (
    "rank = 1 + the number of contenders that are better beyond noise, which means better by at least a point (1 % where the "
    "metric is not a share) and better in a test over common seeds, with standard deviations moderated over the rows of the table "
    "(empirical Bayes) and Holm's correction for all pairs (5 % for a whole table); rows that share a letter do not differ "
    "significantly"
)
ORDERS = ("score", *(cost.lower() for cost in COSTS))
"""Orders in which rows can be shown."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution of the scores on a test split."""

    share: bool
    """True if the metric is a share, so that differences are points."""
    grain: float
    """Smallest step between scores; 0 for metrics that are not counts."""

    def ties(self, difference: float, larger: float) -> bool:
        """Return True if a difference is too small to count, whatever a significance test says."""
        return abs(difference) < SMALLEST * (1.0 if self.share else abs(larger))


def resolution(task: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]) -> Resolution:
    """Return the resolution of a task, from its recorded card and data."""
    return Resolution(task["metric"] in SHARES, grain(task["metric"], data.get("test", {}).get("examples")))


def fit_to_compare(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Return rows without failed seeds of which any two share ``SEEDS_NEEDED`` seeds, and reasons by label for the others.

    A row with a failed seed is left out to avoid survivorship bias.
    """
    reasons = {row.label: why for row in rows if (why := _unfit(row))}
    fit = [row for row in rows if row.label not in reasons]
    kept = _sharing(fit)
    return kept, reasons | {row.label: _unshared(row, fit) for row in fit if row not in kept}


def compare(
    rows: Sequence[Row], higher_is_better: bool, resolution: Resolution, correction: Callable[[Floats], Floats]
) -> tuple[Comparison, ...]:
    """Compare all pairs of rows; a pair differs if its corrected p value is significant and its difference counts."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    scores = np.array([[row.by_seed.get(seed, np.nan) for seed in seeds] for row in rows])
    corrected = correction(moderated_p_values(scores, max(resolution.grain, _ROUNDING * float(np.nanmax(np.abs(scores))))))
    pairs = zip(combinations(rows, 2), corrected, strict=True)
    return tuple(_comparison(a, b, float(p), higher_is_better, resolution) for (a, b), p in pairs)


def _comparison(a: Row, b: Row, p: float, higher_is_better: bool, resolution: Resolution) -> Comparison:
    difference = paired(a.by_seed, b.by_seed)
    assert difference is not None and a.test and b.test, "rows that are compared share seeds"
    if (difference.mean < 0) == higher_is_better and difference.mean != 0:
        a, b, difference = b, a, replace(difference, mean=-difference.mean)
    ties = resolution.ties(difference.mean, max(abs(row.test.mean) for row in (a, b) if row.test))
    return Comparison(a.label, b.label, difference, p, p <= 1 - CONFIDENCE and not ties)


def _shared_seeds(one: Row, other: Row) -> int:
    return len(set(one.seeds) & set(other.seeds))


def _unfit(row: Row) -> str | None:
    """Return the reason why a row cannot be compared, whatever seeds the others have; None if it can."""
    if row.failures:
        return f"no rank, as not every seed has a score ({row.failures[0].run})"
    if len(row.seeds) < SEEDS_NEEDED:
        return f"no rank with fewer than {SEEDS_NEEDED} seeds; {SEEDS_NEEDED - len(row.seeds)} more needed"
    return None


def _unshared(row: Row, others: Sequence[Row]) -> str:
    fewest = min(_shared_seeds(row, other) for other in others)
    return f"no rank with fewer than {SEEDS_NEEDED} seeds in common with every ranked row; {SEEDS_NEEDED - fewest} more needed"


def _sharing(rows: Sequence[Row]) -> list[Row]:
    """Return rows of which any two share enough seeds; until then, the row that shares them with the fewest others is removed."""
    kept = list(rows)
    while True:
        strangers = {row.label: sum(_shared_seeds(row, o) < SEEDS_NEEDED for o in kept if o is not row) for row in kept}
        most = max(strangers.values(), default=0)
        if not most:
            return kept
        kept.remove(min((row for row in kept if strangers[row.label] == most), key=lambda row: (len(row.seeds), row.label)))


def rank_rows(rows: Sequence[Row], higher_is_better: bool, resolution: Resolution) -> Ranking:
    """Add ranks and tie letters, or the reason for having none, to the rows, and return their comparisons.

    Args:
        rows: contenders in the order of their means, the best first, and controls.
    """
    contenders = [row for row in rows if not row.control]
    kept, missing = fit_to_compare(contenders)
    if len(kept) < 2:
        return Ranking((), _no_ranks(contenders), ())
    comparisons = compare(kept, higher_is_better, resolution, holm)
    apart = {(c.better, c.worse) for c in comparisons if c.apart}
    labels = [row.label for row in kept]
    letters = tie_letters(labels, {frozenset(pair) for pair in apart})
    for row in contenders:
        row.unranked = missing.get(row.label)
        if row.label in letters:
            row.rank, row.ties = 1 + sum((other, row.label) in apart for other in labels), letters[row.label]
    seeds = set.intersection(*(set(row.seeds) for row in kept))
    return Ranking(tuple(sorted(seeds)), None, comparisons)


def _no_ranks(contenders: Sequence[Row]) -> str:
    if len(contenders) < 2:
        return "no ranks, as there is only one contender"
    scored = [row for row in contenders if row.seeds]
    if len(scored) < 2:
        return "no ranks, as fewer than two contenders have a score"
    shared = max(_shared_seeds(a, b) for a, b in combinations(scored, 2))
    if shared >= SEEDS_NEEDED:
        return "no ranks, as fewer than two contenders have a score at every seed"
    return f"no ranks with fewer than {SEEDS_NEEDED} common seeds; {SEEDS_NEEDED - shared} more needed"


def cost_of(row: Row, cost: str) -> float | None:
    """Return a cost, one of ``COSTS``; None if it was not measured."""
    value: float | None = getattr(row, COSTS[cost])
    return value


def ordered(table: Table, by: str) -> Table:
    """Sort the rows of a table by ``by``, best score or least cost first, with controls after contenders.

    For a measured cost, rows are sorted within their implementation groups.

    Raises:
        ValueError: no such order.
    """
    check_text("by", by, ORDERS)
    if by == "score":
        return table
    name = next(cost for cost in COSTS if cost.lower() == by)

    def place(row: Row) -> tuple[bool, str, bool, float]:
        cost = cost_of(row, name)
        return row.control, str(row.block_of(name)), cost is None, cost or 0.0

    return replace(table, rows=tuple(sorted(table.rows, key=place)))


def with_fronts(rows: Sequence[Row], ranking: Ranking, higher_is_better: bool) -> None:
    """Add to each row, controls included, the Pareto fronts it is on and the rows that dominate it.

    Fronts compare means. Dominance is stricter, so that noise does not cause it: no worse in the mean score and in every
    comparable cost, and either lower in a cost or significantly better in score. A row with a failed seed is on no front and
    dominates none.
    """
    apart = {(c.better, c.worse) for c in ranking.comparisons if c.apart}
    whole = [row for row in rows if row.test and not row.failures]
    sign = 1 if higher_is_better else -1
    for row in rows:
        row.fronts = tuple(cost for cost in COSTS if row in whole and _on_front(row, whole, cost, sign))
        row.dominated_by = tuple(other.label for other in whole if row.test and _dominates(other, row, sign, apart))


def comparable(one: Row, other: Row, cost: str) -> bool:
    """Return True if a cost of two rows may be compared: counted ones always, measured ones within a group on one machine."""
    if cost_of(one, cost) is None or cost_of(other, cost) is None:
        return False
    return one.block_of(cost) == other.block_of(cost) and (cost in COUNTED or len(one.block.machines) == 1)


def _on_front(row: Row, others: Sequence[Row], cost: str, sign: int) -> bool:
    mine = cost_of(row, cost)
    if mine is None or not comparable(row, row, cost):  # not measured, or on several machines
        return False
    score = _signed(row, sign)
    rivals = [(_signed(o, sign), cost_of(o, cost) or 0.0) for o in others if comparable(row, o, cost)]
    return not any(theirs >= score and spent <= mine and (theirs, spent) != (score, mine) for theirs, spent in rivals)


def _dominates(one: Row, other: Row, sign: int, apart: set[tuple[str, str]]) -> bool:
    if one is other or _signed(one, sign) < _signed(other, sign):
        return False
    costs = {cost: (cost_of(one, cost) or 0.0, cost_of(other, cost) or 0.0) for cost in COSTS if comparable(one, other, cost)}
    if not costs or any(mine > theirs for mine, theirs in costs.values()):
        return False
    less = any(mine < theirs for cost, (mine, theirs) in costs.items() if cost != "time")
    return less or ("time" in costs and _sooner(one, other)) or (one.label, other.label) in apart


def _sooner(one: Row, other: Row) -> bool:
    """Return True if the slowest seed of one took less time than the fastest of the other."""
    if one.train_seconds_range is None or other.train_seconds_range is None:
        return False
    return one.train_seconds_range[1] < other.train_seconds_range[0]


def _signed(row: Row, sign: int) -> float:
    assert row.test is not None, "only rows with a score are compared"
    return sign * row.test.mean

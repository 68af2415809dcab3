"""Ranks by differences beyond noise: tests at common seeds, spreads moderated over rows, corrected for the number of pairs.

On simulated records of 2 to 60 equal rows with 3 or 5 seeds at most 5 % of tables rank any row falsely: with equal spreads, with
spreads that differ twentyfold, where half of the rows hardly vary, with skewed noise, on splits of few examples, with scores near
the ends of the metric, where rows begin to learn at some seeds only, and with or without an effect of the seed on all rows
(tests/leaderboard/test_ranking_simulations.py). Of forty rows that vary by 2 points at three seeds, 90 % of the gaps of 10 points
are found; t tests of each pair alone find none.

No test on so few seeds detects events that are rare and limited to few rows. At three seeds up to 12 % of tables have a false rank
where one to three rows among equal ones vary three to ten times as much, up to 12 % where noise is skewed and 2 to 5 rows differ
twentyfold in spread, and up to half where, of 2 to 10 rows, some hardly vary and others fall far at one seed in five.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from attn_zoo.leaderboard.comparisons import SEEDS_NEEDED, Resolution, compare, fit_to_compare, shared_seeds
from attn_zoo.leaderboard.letters import tie_letters
from attn_zoo.leaderboard.rows import Ranking, Row, Standing
from attn_zoo.leaderboard.statistics import holm

METHOD = (
    "rank = 1 + the number of contenders that are better beyond noise, which means better by at least a point (1 % where the "
    "metric is not a share) and better in a test over common seeds, with standard deviations moderated over the rows of the table "
    "(empirical Bayes) and Holm's correction for all pairs (5 % for a whole table); rows that share a letter do not differ "
    "significantly"
)


def ranked(rows: Sequence[Row], higher_is_better: bool, resolution: Resolution) -> tuple[list[Row], Ranking]:
    """Add ranks and tie letters, or the reason for having none, to rows, and return them with the table's ranking.

    Args:
        rows: contenders in the order of their means, the best first, and controls.
    """
    contenders = [row for row in rows if not row.control]
    kept, missing = fit_to_compare(contenders)
    if len(kept) < 2:
        return list(rows), Ranking(METHOD, (), _no_ranks(contenders), ())
    comparisons = compare(kept, higher_is_better, resolution, holm)
    apart = {(c.better, c.worse) for c in comparisons if c.apart}
    labels = [row.label for row in kept]
    letters = tie_letters(labels, {frozenset(pair) for pair in apart})
    standings = {label: Standing(unranked=reason) for label, reason in missing.items()}
    standings |= {label: Standing(1 + sum((other, label) in apart for other in labels), letters[label]) for label in labels}
    seeds = set.intersection(*(set(row.scores.seeds) for row in kept))
    found = [replace(row, standing=standings.get(row.label, row.standing)) for row in rows]
    return found, Ranking(METHOD, tuple(sorted(seeds)), None, comparisons)


def _no_ranks(contenders: Sequence[Row]) -> str:
    if len(contenders) < 2:
        return "no ranks, as there is only one contender"
    scored = [row for row in contenders if row.scores.seeds]
    if len(scored) < 2:
        return "no ranks, as fewer than two contenders have a score"
    shared = max(shared_seeds(a, b) for a, b in combinations(scored, 2))
    if shared >= SEEDS_NEEDED:
        return "no ranks, as fewer than two contenders have a score at every seed"
    return f"no ranks with fewer than {SEEDS_NEEDED} common seeds; {SEEDS_NEEDED - shared} more needed"

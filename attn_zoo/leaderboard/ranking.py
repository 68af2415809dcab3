"""Ranks that noise does not make: differences at common seeds, spreads moderated over rows, corrected for the number of pairs.

On simulated records of equal rows at most 5 % of tables rank any row falsely: families of 2 to 60 rows with 3 or 5 seeds, equal
spreads or spreads that differ twentyfold, rows of which half are sure, skewed noise, coarse tests, ceilings and floors, and rows
that begin to learn at some seeds only (tests/leaderboard/test_ranking.py). The limits are tested as well: false ranks are up to
twice as frequent where one row of fifteen varies five times as much as all others, and up to three times where noise is skewed
and spreads differ twentyfold; where one of two rows falls far at one seed of five, three seeds rank it falsely half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from attn_zoo.leaderboard.comparisons import SEEDS_NEEDED, Resolution, compare, fit_to_compare, shared_seeds
from attn_zoo.leaderboard.letters import tie_letters
from attn_zoo.leaderboard.rows import Ranking, Row
from attn_zoo.leaderboard.statistics import holm

METHOD = (
    "rank = 1 + the number of contenders that are better beyond noise: by a point or more (1 % where the metric is no share), and "
    "in tests at common seeds with spreads moderated over the rows of the table (empirical Bayes) and Holm's correction for all "
    "pairs (5 % for a whole table); rows that share a letter cannot be told apart"
)


def ranked(rows: Sequence[Row], higher_is_better: bool, resolution: Resolution) -> tuple[list[Row], Ranking]:
    """The same rows with ranks, letters and reasons for having none, and how they were ranked.

    Args:
        rows: contenders in the order of their means, the best first, and controls.
    """
    contenders = [row for row in rows if not row.control]
    kept, missing = fit_to_compare(contenders)
    if len(kept) < 2:
        return list(rows), Ranking(METHOD, (), _no_ranks(contenders), ())
    comparisons = compare(kept, higher_is_better, resolution, holm)
    apart = {(c.better, c.worse) for c in comparisons if c.apart}
    better = {row.label: sum((other.label, row.label) in apart for other in kept) for row in kept}
    letters = tie_letters([row.label for row in kept], {frozenset(pair) for pair in apart})
    placed = {row.label: replace(row, rank=1 + better[row.label], ties=letters[row.label]) for row in kept}
    unplaced = {row.label: replace(row, unranked=missing[row.label]) for row in contenders if row.label in missing}
    seeds = set.intersection(*(set(row.seeds) for row in kept))
    found = placed | unplaced
    return [found.get(row.label, row) for row in rows], Ranking(METHOD, tuple(sorted(seeds)), None, comparisons)


def _no_ranks(contenders: Sequence[Row]) -> str:
    if len(contenders) < 2:
        return "no ranks, as there is one contender"
    shared = max(shared_seeds(a, b) for a, b in combinations(contenders, 2))
    if shared >= SEEDS_NEEDED:
        return "no ranks, as fewer than two contenders have a score at every seed"
    return f"no ranks under {SEEDS_NEEDED} common seeds; {SEEDS_NEEDED - shared} more needed"

"""Ranks that noise does not make: paired by seed, corrected for the number of pairs, with groups of rows that tie.

On simulated records of 2 to 15 equal rows with 3 or 5 seeds at most 5 % of tables rank any row falsely, whether spreads are
equal or differ twentyfold and however coarse the test (tests/leaderboard/test_ranking.py). The tests suppose that differences
are about normal: where some rows are sure and others fall far at few seeds, false ranks are up to three times as frequent.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from attn_zoo.leaderboard.rows import Comparison, Ranking, Row
from attn_zoo.leaderboard.statistics import CONFIDENCE, holm, pair_p_values, paired

SEEDS_NEEDED = 3
"""Seeds that two rows must share before one may stand above the other."""
METHOD = (
    "rank = 1 + the number of contenders that are better beyond noise, by paired t tests over common seeds with Holm's correction "
    "for all pairs (5 % for a whole table); rows that share a letter cannot be told apart"
)
_ROUNDING = 1e-6
"""Relative; scores are computed in single precision."""
_MOST_GROUPS = 200


def ranked(rows: Sequence[Row], higher_is_better: bool, grain: float) -> tuple[list[Row], Ranking]:
    """The same rows with ranks, letters and reasons for having none, and how they were ranked.

    A contender of which a seed failed has no rank, because the seeds that are left are the lucky ones.

    Args:
        rows: contenders in the order of their means, the best first, and controls.
        grain: the step in which scores can differ; see ``pair_p_values``.
    """
    contenders = [row for row in rows if not row.control]
    missing = {row.label: why for row in contenders if (why := _unfit(row))}
    fit = [row for row in contenders if row.label not in missing]
    kept = _sharing(fit)
    missing |= {row.label: _unshared(row, fit) for row in fit if row not in kept}
    if len(kept) < 2:
        return list(rows), Ranking(METHOD, (), _no_ranks(contenders), ())
    comparisons = _compare(kept, higher_is_better, grain)
    apart = {(c.better, c.worse) for c in comparisons if c.apart}
    better = {row.label: sum((other.label, row.label) in apart for other in kept) for row in kept}
    letters = _letters([row.label for row in kept], {frozenset(pair) for pair in apart})
    placed = {row.label: replace(row, rank=1 + better[row.label], ties=letters[row.label]) for row in kept}
    unplaced = {row.label: replace(row, unranked=missing[row.label]) for row in contenders if row.label in missing}
    seeds = set.intersection(*(set(row.seeds) for row in kept))
    found = placed | unplaced
    return [found.get(row.label, row) for row in rows], Ranking(METHOD, tuple(sorted(seeds)), None, comparisons)


def _unfit(row: Row) -> str | None:
    """Why a contender cannot be ranked, whatever the others have."""
    if row.failures:
        return f"no rank, as not every seed has a score ({row.failures[0].split(':')[0]})"
    if len(row.seeds) < SEEDS_NEEDED:
        return f"no rank under {SEEDS_NEEDED} seeds; {SEEDS_NEEDED - len(row.seeds)} more needed"
    return None


def _unshared(row: Row, others: Sequence[Row]) -> str:
    fewest = min(_shared(row, other) for other in others)
    return f"no rank under {SEEDS_NEEDED} seeds in common with every ranked row; {SEEDS_NEEDED - fewest} more needed"


def _sharing(rows: Sequence[Row]) -> list[Row]:
    """Rows each of which shares enough seeds with every other: whichever shares with the fewest is left out until they do."""
    kept = list(rows)
    while True:
        strangers = {row.label: sum(_shared(row, other) < SEEDS_NEEDED for other in kept if other is not row) for row in kept}
        most = max(strangers.values(), default=0)
        if not most:
            return kept
        kept.remove(min((row for row in kept if strangers[row.label] == most), key=lambda row: (len(row.seeds), row.label)))


def _shared(one: Row, other: Row) -> int:
    return len(set(one.seeds) & set(other.seeds))


def _no_ranks(contenders: Sequence[Row]) -> str:
    if len(contenders) < 2:
        return "no ranks, as there is one contender"
    shared = max(_shared(a, b) for a, b in combinations(contenders, 2))
    if shared >= SEEDS_NEEDED:
        return "no ranks, as fewer than two contenders have a score at every seed"
    return f"no ranks under {SEEDS_NEEDED} common seeds; {SEEDS_NEEDED - shared} more needed"


def _compare(rows: Sequence[Row], higher_is_better: bool, grain: float) -> tuple[Comparison, ...]:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    scores = np.array([[row.by_seed.get(seed, np.nan) for seed in seeds] for row in rows])
    corrected = holm(pair_p_values(scores, max(grain, _ROUNDING * float(np.nanmax(np.abs(scores))))))
    return tuple(_comparison(a, b, float(p), higher_is_better) for (a, b), p in zip(combinations(rows, 2), corrected, strict=True))


def _comparison(a: Row, b: Row, p: float, higher_is_better: bool) -> Comparison:
    difference = paired(a.by_seed, b.by_seed)
    assert difference is not None, "ranked rows share seeds"
    if (difference.mean < 0) == higher_is_better and difference.mean != 0:
        a, b, difference = b, a, replace(difference, mean=-difference.mean)
    return Comparison(a.label, b.label, difference, p, p <= 1 - CONFIDENCE)


def _letters(labels: Sequence[str], apart: set[frozenset[str]]) -> Mapping[str, str]:
    """A letter for every largest group of which no two are apart, and its members' letters; all empty where groups are too many.

    Insert and absorb, after Piepho 2004: every pair that is apart splits the groups that hold both.
    """
    groups = [frozenset(labels)]
    for pair in sorted(apart, key=sorted):
        split = [group - {one} if pair <= group else group for group in groups for one in (sorted(pair) if pair <= group else [""])]
        groups = [group for group in dict.fromkeys(split) if not any(group < other for other in split)]
        if len(groups) > _MOST_GROUPS:
            return dict.fromkeys(labels, "")
    place = {label: at for at, label in enumerate(labels)}
    groups.sort(key=lambda group: sorted(place[label] for label in group))
    named = list(zip(groups, _alphabet(), strict=False))
    return {label: "".join(letter for group, letter in named if label in group) for label in labels}


def _alphabet() -> Iterator[str]:
    yield from string.ascii_letters
    yield from (chr(code) for code in range(0x100, 0x250))  # further Latin letters

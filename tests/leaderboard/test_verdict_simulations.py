"""Level and power of verdicts in simulations: which equal rows are called worse, and which true gaps are found."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_record

from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.table import Verdict

TABLES = 300
MOST = 0.05 + 2.6 * (0.05 * 0.95 / TABLES) ** 0.5
"""Largest share of so many tables that a share of 5 % in truth is found as, but for one time in two hundred."""
NAMES = ["softmax", *(f"row{at}" for at in range(1, 40))]


def share_with_a_worse_row(scores: np.ndarray, examples: int = 2000) -> float:
    """Share of tables (tables, rows, seeds) of which a row is called worse than the best. Each is a table of a task of its own."""
    records = [
        make_record(name, f"task{at}", seed, test=float(score), data={"test": {"examples": examples, "digest": "0"}})
        for at, table in enumerate(np.clip(scores, 0, 1))
        for name, by_seed in zip(NAMES, table, strict=False)
        for seed, score in enumerate(by_seed, 1)
    ]
    found = [any(row.verdict == Verdict.WORSE for row in table.rows) for table in tables(records)]
    assert len(found) == len(scores)
    return sum(found) / len(found)


def normal(rows: int, seeds: int, spreads: float | np.ndarray, gaps: float | np.ndarray = 0.0) -> np.ndarray:
    chance = np.random.default_rng(rows * 1000 + seeds)
    noise = chance.standard_normal((TABLES, rows, seeds))
    return 0.7 + np.broadcast_to(gaps, (rows,))[:, None] + noise * np.broadcast_to(spreads, (rows,))[:, None]


SIZES = [(5, 3), (2, 5), *(pytest.param(*size, marks=pytest.mark.exhaustive) for size in ((2, 3), (12, 3), (5, 5), (12, 5)))]
"""Numbers of rows and seeds; the largest take most of the time."""
OTHERS = [SIZES[0], pytest.param(2, 5, marks=pytest.mark.exhaustive), *SIZES[2:]]
"""The same numbers for scores of other distributions."""


@pytest.mark.parametrize(("rows", "seeds"), SIZES)
def test_of_equal_rows_one_is_called_worse_in_at_most_one_table_of_twenty(rows, seeds):
    assert share_with_a_worse_row(normal(rows, seeds, 0.02)) <= MOST


@pytest.mark.parametrize(("rows", "seeds"), OTHERS)
def test_also_if_spreads_differ_twentyfold(rows, seeds):
    assert share_with_a_worse_row(normal(rows, seeds, np.geomspace(0.005, 0.1, rows))) <= MOST


@pytest.mark.parametrize(("rows", "seeds"), OTHERS)
def test_also_if_scores_are_shares_of_few_examples(rows, seeds):
    scores = np.random.default_rng(rows).binomial(300, 0.98, (TABLES, rows, seeds)) / 300
    assert share_with_a_worse_row(scores, 300) <= MOST


@pytest.mark.parametrize(("seeds", "gap"), [(3, 0.4), pytest.param(5, 0.12, marks=pytest.mark.exhaustive)])
def test_a_real_gap_is_found(seeds, gap):
    """One of 12 rows is worse than all others, whose scores differ by 2 points between seeds."""
    gaps = np.where(np.arange(12) == 11, -gap, 0.0)
    assert share_with_a_worse_row(normal(12, seeds, 0.02, gaps)) > 0.8


def test_three_seeds_cannot_reveal_that_rows_succeed_by_chance():
    """Rows that reach 1 at half of their seeds: one that succeeded three times stands beside one that never did. Ten seeds do."""
    chance = np.random.default_rng(5)

    def jumping(seeds: int) -> np.ndarray:
        return np.where(chance.random((100, 5, seeds)) < 0.5, 1.0, 0.12)

    assert share_with_a_worse_row(jumping(3)) > 0.1
    assert share_with_a_worse_row(jumping(10)) <= 0.05 + 2.6 * (0.05 * 0.95 / 100) ** 0.5

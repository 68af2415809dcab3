"""Averages over tasks: interquartile means with bootstrap intervals, for rows that have a score on every averaged task.

Source:
    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264, Section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import CONFIDENCE, SHARES_OF_EXAMPLES, Estimate
from attn_zoo.leaderboard.table import Table

CUT = 0.25
"""Share of the scores that an interquartile mean leaves out at each end: the lowest and the highest quarter."""
RESAMPLES = 2000
"""Number of bootstrap samples."""
SEEDS = 3
"""A row has an average only if all its tasks share at least this many seeds, or were run with exactly the same seeds."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Average score of each row over several tasks. Each task has the same weight."""

    rows: Mapping[str, Estimate]
    """For each row label, the interquartile mean over the scores of all tasks and seeds. Its interval comes from a bootstrap
    that draws seeds within each task; one seed gives no interval."""
    chance: float | None
    tasks: tuple[str, ...]
    """Titles of the averaged tasks."""
    reason: str | None
    """Reason why there are no averages; None if there are."""


def averages(tables: Sequence[Table]) -> Averages:
    """Return the average score of each row over all tasks whose metric is accuracy or F1.

    A row is averaged over the seeds that all its tasks share. It has no average if it lacks a task, if a seed failed, or if its
    tasks share fewer than ``SEEDS`` seeds and were not all run with exactly these seeds. If fewer than two rows have an average,
    ``rows`` is empty and ``reason`` says why.
    """
    shares = [table for table in tables if table.task["metric"] in SHARES_OF_EXAMPLES]
    titles = tuple(str(table.task["title"]) for table in shares)
    if len(shares) < 2:
        return _none(titles, "fewer than two tasks are scored by accuracy or F1")
    if len({table.task["name"] for table in shares}) < len(shares):
        return _none(titles, "a task appears in several settings")
    whole = [row for table in shares for row in table.rows if row.test and not row.failures]
    cells = grouped((row.label, row.by_seed) for row in whole)
    complete = {label: scores for label, scores in cells.items() if len(scores) == len(shares)}
    shared = {label: sorted(set.intersection(*map(set, scores))) for label, scores in complete.items()}
    known = {
        label: interquartile_mean([[by_seed[seed] for seed in shared[label]] for by_seed in scores])
        for label, scores in complete.items()
        if len(shared[label]) >= SEEDS or (shared[label] and all(len(scored) == len(shared[label]) for scored in scores))
    }
    if len(known) < 2:
        return _none(titles, "fewer than two rows were run on every task with common seeds and without a failed seed")
    chances = [table.chance for table in shares if table.chance is not None]
    chance = interquartile_mean([[chance] for chance in chances]).mean if len(chances) == len(shares) else None
    return Averages(known, chance, titles, None)


def _none(titles: tuple[str, ...], reason: str) -> Averages:
    return Averages({}, None, titles, reason)


def interquartile_mean(scores: Sequence[Sequence[float]]) -> Estimate:
    """Return the interquartile mean of one row's scores, with the percentile interval of a bootstrap that draws seeds within each
    task.

    Args:
        scores: for each task, the scores of all seeds; every task has the same number of seeds.
    """
    import numpy as np  # imported here: tables without averages do not need it

    drawn = np.random.default_rng(0)
    tasks = np.asarray(scores, dtype=float)
    cut = int(CUT * tasks.size)

    def middle(values: np.ndarray) -> np.ndarray:
        return np.sort(values, axis=-1)[..., cut : tasks.size - cut].mean(axis=-1)

    mean, count = float(middle(tasks.reshape(-1))), tasks.shape[1]
    if count == 1:
        return Estimate(mean, None, count)
    at = drawn.integers(count, size=(RESAMPLES, *tasks.shape))
    samples = np.take_along_axis(np.broadcast_to(tasks, at.shape), at, axis=-1).reshape(RESAMPLES, -1)
    low, high = np.quantile(middle(samples), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(mean, float(high - low) / 2, count, (float(low), float(high)))

"""Averages over tasks, for rows with a score on every averaged task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.metrics import COUNTED
from attn_zoo.leaderboard.statistics import Estimate, estimate
from attn_zoo.leaderboard.table import Table


@dataclass(frozen=True, slots=True)
class Averages:
    """Averages over tasks, each task with the same weight."""

    rows: Mapping[str, Estimate]
    """Average of each row with a score on every task, by label; its interval is over the averages at each seed."""
    chance: float | None
    tasks: tuple[str, ...]
    """Titles of the averaged tasks."""
    reason: str | None
    """Reason why there are no averages; None where there are."""


def averages(tables: Sequence[Table]) -> Averages:
    """Average the accuracy or F1 of each row that has every such task, with the same seeds and no failed seed.

    A row that lacks a task or a seed has no average, because it would be over other, perhaps easier, cells. There are no averages
    where fewer than two rows have one.
    """
    shares = [table for table in tables if table.task["metric"] in COUNTED]
    titles = tuple(str(table.task["title"]) for table in shares)
    if len(shares) < 2:
        return _none(titles, "fewer than two tasks are scored by accuracy or F1")
    if len({table.task["name"] for table in shares}) < len(shares):
        return _none(titles, "a task appears in several settings")
    whole = [row for table in shares for row in table.rows if row.test and not row.failures]
    cells = grouped((row.label, row.by_seed) for row in whole)
    found = {label: _over(scores) for label, scores in cells.items() if len(scores) == len(shares)}
    known = {label: mean for label, mean in found.items() if mean}
    if len(known) < 2:
        return _none(titles, "fewer than two rows have every task with the same seeds and no failed seed")
    chances = [table.chance for table in shares if table.chance is not None]
    chance = sum(chances) / len(chances) if len(chances) == len(shares) else None
    return Averages(known, chance, titles, None)


def _none(titles: tuple[str, ...], reason: str) -> Averages:
    return Averages({}, None, titles, reason)


def _over(scores: Sequence[Mapping[int, float]]) -> Estimate | None:
    """Mean over tasks at each seed, as an estimate; None where tasks were run with different seeds."""
    seeds = set(scores[0])
    if any(set(by_seed) != seeds for by_seed in scores):
        return None
    return estimate([sum(by_seed[seed] for by_seed in scores) / len(scores) for seed in sorted(seeds)])

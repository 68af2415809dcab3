"""Averages over tasks, of rows that have every cell that is averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.leaderboard.metrics import COUNTED
from attn_zoo.leaderboard.rows import Table
from attn_zoo.leaderboard.statistics import Estimate, estimate


@dataclass(frozen=True, slots=True)
class Averages:
    """Means over tasks, each task counting the same."""

    rows: Mapping[str, Estimate]
    """Average of each row that has every cell, by label; its interval is over the averages at each seed."""
    chance: float | None
    tasks: tuple[str, ...]
    """Titles of the tasks that are averaged."""
    reason: str | None
    """Why there are none; None where there are."""


def averages(tables: Sequence[Table]) -> Averages:
    """Averages of the scores between 0 and 1, where at least two rows have all of them with the same seeds and none failed.

    A row that lacks a task or a seed has no average: it would be one over other, perhaps easier, cells.
    """
    shares = [table for table in tables if table.task["metric"] in COUNTED]
    titles = tuple(str(table.task["title"]) for table in shares)
    if len(shares) < 2:
        return _none(titles, "fewer than two tasks are scored by a share")
    if len({table.task["name"] for table in shares}) < len(shares):
        return _none(titles, "a task stands here in several settings")
    cells: dict[str, list[Mapping[int, float]]] = {}
    for table in shares:
        for row in table.rows:
            if row.scores.test and not row.scores.failures:
                cells.setdefault(row.label, []).append(row.scores.by_seed)
    found = {label: _over(scores) for label, scores in cells.items() if len(scores) == len(shares)}
    known = {label: mean for label, mean in found.items() if mean}
    if len(known) < 2:
        return _none(titles, "fewer than two rows have every cell")
    chances = [table.chance for table in shares if table.chance is not None]
    chance = sum(chances) / len(chances) if len(chances) == len(shares) else None
    return Averages(known, chance, titles, None)


def _none(titles: tuple[str, ...], reason: str) -> Averages:
    return Averages({}, None, titles, reason)


def _over(scores: Sequence[Mapping[int, float]]) -> Estimate | None:
    """None where tasks were run with different seeds."""
    seeds = set(scores[0])
    if any(set(by_seed) != seeds for by_seed in scores):
        return None
    return estimate([sum(by_seed[seed] for by_seed in scores) / len(scores) for seed in sorted(seeds)])

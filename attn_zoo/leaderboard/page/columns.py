"""Columns of a section's table: what they hold, how they are sorted, and what their heads mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.leaderboard.beside import Beside, BesideRow
from attn_zoo.leaderboard.render.costs import fronts_legend
from attn_zoo.leaderboard.render.text import estimated, figure, mebibytes, optional, seconds, short, unit
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.tuned import trial_count


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column."""

    name: str
    """Of its kind, for the style."""
    head: str
    said: str
    """What it holds, in a sentence."""
    least_first: bool
    """How it is sorted when its head is first clicked."""
    measured: bool = False
    """Whether only rows of one block may be compared by it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: what is shown, and what it is sorted by, None being last in either direction."""

    text: str
    value: float | None
    said: str = ""
    """More, for a pointer that rests on it."""


def columns(table: Table, compared: Beside | None) -> tuple[Column, ...]:
    """Heads after those of the row's name and score."""
    points = unit(table, ", in points of a hundred")
    heads = []
    tuned = any(row.tuning for row in table.rows)
    if table.ranking.reason is None:
        heads.append(Column("rank", "rank", f"{table.ranking.method}; rows that share a letter cannot be told apart", True))
    heads += [
        Column("margin", "over control", "test score minus that of the best control, paired by seed" + points, False),
        Column("chance", "over chance", "test score minus the score of always the same answer" + points, False),
        Column("gap", "train\u00a0− test", "training score minus test score, of the same weights" + points, True),
    ]
    if compared:
        said = "; ".join(f"{source.title}: {source.cite}" for source in compared.sources)
        heads.append(Column("published", "published (%)", f"others' figures, in their settings, not in this one: {said}", False))
    heads += [
        Column("seeds", "seeds", "runs that are done, of all", False),
        *([Column("trials", "trials", "that the row's settings were chosen from, by validation", True)] if tuned else []),
        Column("parameters", "parameters", "of the whole network", True),
        Column("flops", "FLOPs", "of one forward pass of one example, matrix products", True),
        Column("time", "training (s)", "median over seeds ± half the range, measured", True, True),
        Column("speed", "examples/s", "in training, median over seeds, measured", False, True),
        Column("memory", "peak memory", "of a training step, median over seeds, measured", True, True),
        Column("front", "fronts", f"costs for which no comparable row scores better for as little: {fronts_legend()}", False),
        Column("dominated", "dominated by", "rows no worse in score and in every comparable cost, and better in one", True),
    ]
    if len({row.block for row in table.rows}) > 1:
        heads.insert(-5, Column("block", "measured", "as what; the next three columns compare rows of the same block alone", True))
    return tuple(heads)


def cells(
    row: Row, table: Table, heads: Sequence[Column], published: BesideRow | None, machines: Mapping[str, str]
) -> tuple[Cell, ...]:
    """A row's cells under ``heads``.

    Args:
        machines: short name of each.
    """
    total = len(row.seeds) + len(row.failures)
    span = row.train_seconds_range
    half = None if span is None or len(row.seeds) < 2 else (span[1] - span[0]) / 2
    chance = "-" if row.over_chance is None else figure(row.over_chance.mean, table, "+")
    first, *others = row.dominated_by or ("-",)
    where = [machines[machine] for machine in row.machines] if len(machines) > 1 else []
    known = {
        "rank": Cell(row.place, row.rank, row.unranked or ""),
        "margin": Cell(estimated(row.margin, table, "+"), _mean(row.margin)),
        "chance": Cell(chance, _mean(row.over_chance)),
        "gap": Cell(estimated(row.train_gap, table, "+"), _mean(row.train_gap)),
        "published": _published(published),
        "seeds": Cell(f"{len(row.seeds)} of {total}" if row.failures else str(total), len(row.seeds)),
        "trials": Cell(str(trial_count(row) or "-"), trial_count(row)),
        "parameters": Cell(optional(row.parameters, short), row.parameters),
        "flops": Cell(optional(row.flops_per_example, short), row.flops_per_example),
        "block": Cell(", ".join([row.measured_as, *where]), row.measured_as != "auto"),
        "time": Cell(optional(row.train_seconds, lambda value: seconds(value, half)), row.train_seconds),
        "speed": Cell(optional(row.examples_per_second, lambda value: f"{value:,.0f}"), row.examples_per_second),
        "memory": Cell(optional(row.peak_bytes, mebibytes), row.peak_bytes),
        "front": Cell(" ".join(cost[0].upper() for cost in row.fronts) or "-", len(row.fronts), ", ".join(row.fronts)),
        "dominated": Cell(first + (f" +{len(others)}" if others else ""), len(row.dominated_by), ", ".join(row.dominated_by)),
    }
    return tuple(known[head.name] for head in heads)


def _mean(found: Estimate | None) -> float | None:
    return None if found is None else found.mean


def _published(published: BesideRow | None) -> Cell:
    if published is None:
        return Cell("-", None)
    found = sorted((figure for of_source in published.figures.values() for figure in of_source), key=lambda figure: figure.value)
    low, high = found[0], found[-1]
    return Cell(low.printed if low.value == high.value else f"{low.printed} to {high.printed}", high.value)

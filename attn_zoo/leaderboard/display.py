"""Display of tables, shared by the terminal, Markdown, LaTeX and the HTML page: columns, and the cell of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attn_zoo.leaderboard.render.text import Grid, estimated, figure, mebibytes, name, optional, score, seconds, unit
from attn_zoo.leaderboard.rows import COSTS, Row, Table
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.plotting.theme import short

FRONTS = {cost: cost[0].upper() for cost in COSTS}
"""Letter of each cost in the column of fronts."""
LEGEND = ", ".join(f"{letter} {cost}" for cost, letter in FRONTS.items())
_NOTES = {
    "attention": "mechanism with the hyperparameters in which its rows differ; (c) marks a control",
    "score": "test score, mean over seeds ± half of its 95 % interval",
    "mean": "test score, mean over seeds",
    "margin": "test score minus that of the best control, paired by seed",
    "chance": "test score minus the score of always giving the same answer",
    "gap": "training score minus test score, with the same weights",
    "seeds": "number of seeds; where some failed, the number that are done, of all",
    "trials": "number of trials from which the row's settings were chosen by validation score",
    "parameters": "parameters of the whole network",
    "flops": "FLOPs of one forward pass over one example, counting matrix products only",
    "block": "implementation, and machine where there are several; the next three columns are comparable only within one entry",
    "time": "measured training time, median over seeds ± half of the range",
    "speed": "measured examples per second in training, median over seeds",
    "memory": "measured peak memory of a training step, median over seeds",
    "front": f"costs ({LEGEND}) for which the row is on the Pareto front: no comparable row is at least as good "
    "in score and in that cost, and better in one of them",
    "dominated": "rows that are no worse in mean score and in every comparable cost, and either cheaper in one cost or "
    "better in score beyond noise",
}
"""Explanation of each column, by name."""
_LEAST_FIRST = frozenset(["rank", "gap", "trials", "parameters", "flops", "block", "time", "memory", "dominated"])
_MEASURED = frozenset(["time", "speed", "memory"])


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a cell, and its sort value; None is last in either direction."""

    text: str
    value: float | None = None
    note: str = ""
    """Text of the tooltip."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table, with one figure for every row."""

    name: str
    """Unique name, which is also the CSS class of the column's cells."""
    head: str
    """Heading with the unit."""
    note: str
    """Explanation in a sentence."""
    cell: Callable[[Row], Cell]
    least_first: bool = False
    """True if the first click on the heading sorts the least value first."""
    measured: bool = False
    """True if the figures are measured, so that only rows of one block may be compared."""


def columns(table: Table, machines: Mapping[str, str]) -> dict[str, Column]:
    """Columns of a table by name; ranks, trials and blocks only where there are ranks, tuned rows and several blocks.

    Args:
        machines: short name of each machine.
    """
    cells: dict[str, tuple[str, Callable[[Row], Cell]]] = {"attention": ("attention", lambda row: Cell(name(row)))}
    if table.ranking.reason is None:
        cells["rank"] = ("rank", lambda row: Cell(row.standing.place, row.standing.rank, row.standing.unranked or ""))
    cells |= _scores(table) | _costs()
    if any(row.provenance.tuning for row in table.rows):
        cells["trials"] = ("trials", lambda row: Cell(str(row.provenance.trials or "-"), row.provenance.trials))
    if len({row.costs.block for row in table.rows}) > 1:
        cells["block"] = ("measured", lambda row: Cell(row.costs.block.named(machines), row.costs.block.measured_as != "auto"))
    notes = _NOTES | {"rank": table.ranking.method}
    notes |= {name: _NOTES[name] + unit(table, ", in percentage points") for name in ("margin", "chance", "gap")}
    made = [Column(name, head, notes[name], cell, name in _LEAST_FIRST, name in _MEASURED) for name, (head, cell) in cells.items()]
    return {column.name: column for column in made}


def scores_grid(table: Table, found: Mapping[str, Column], by: str = "score") -> Grid:
    """Grid of ranks, scores, margins over chance and the best control, and gaps between training and test scores.

    Args:
        by: order of the rows, one of ``ORDERS``; a cost is shown next to the scores.
    """
    percent = unit(table, " %")
    title = f"{table.task['title']}: {table.task['length']} positions, chance "
    title += "unknown" if table.chance is None else figure(table.chance, table) + percent
    if table.best_control is not None:
        title += f", best control {table.control} {figure(table.best_control, table)}{percent}"
    names = ["rank", "attention", "score", *([by] if by != "score" else []), "chance", "margin", "gap", "seeds", "trials"]
    chosen = [found[name] for name in names if name in found]
    body = tuple(tuple(column.cell(row).text for column in chosen) for row in table.rows)
    optional = [found[name].head for name in ("trials", "seeds", "gap", "chance") if name in found]
    return Grid(title, tuple(column.head for column in chosen), body, optional)


def parts_grid(table: Table) -> Grid:
    """Grid of scores on the parts of the test split that the task defines; without rows where it defines none."""
    names = list(dict.fromkeys(part for row in table.rows for part in row.scores.parts))
    body = tuple((name(row), *(estimated(row.scores.parts.get(part), table) for part in names)) for row in table.rows)
    return Grid(f"{table.task['title']}, by part of the test", ("attention", *names), body if names else ())


def seeds_grid(table: Table) -> Grid:
    """Grid of the test scores of every seed."""
    seeds = sorted({seed for row in table.rows for seed in row.scores.seeds})

    def written(row: Row) -> list[str]:
        return [optional(row.scores.by_seed.get(seed), lambda value: figure(value, table)) for seed in seeds]

    body = tuple((name(row), *written(row)) for row in table.rows)
    return Grid(f"{table.task['title']}, by seed", ("attention", *(f"seed {seed}" for seed in seeds)), body)


def _scores(table: Table) -> dict[str, tuple[str, Callable[[Row], Cell]]]:
    metric = table.task["metric"] + unit(table)

    def gain(found: Estimate | None) -> Cell:
        return Cell(estimated(found, table, "+"), found.mean if found else None)

    def mean(found: Estimate | None, sign: str = "") -> Cell:
        return Cell("-", None) if found is None else Cell(figure(found.mean, table, sign), found.mean)

    def seeds(row: Row) -> Cell:
        done, runs = len(row.scores.seeds), row.scores.runs
        return Cell(f"{done} of {runs}" if row.scores.failures else str(runs), done)

    return {
        "score": (metric, lambda row: Cell(score(row, table), row.scores.test.mean if row.scores.test else None)),
        "mean": (metric, lambda row: mean(row.scores.test)),
        "chance": ("over chance", lambda row: mean(row.scores.over_chance, "+")),
        "margin": ("over control", lambda row: gain(row.scores.margin)),
        "gap": ("train - test", lambda row: gain(row.scores.train_gap)),
        "seeds": ("seeds", seeds),
    }


def _costs() -> dict[str, tuple[str, Callable[[Row], Cell]]]:
    def amount(value: float | None, form: Callable[[float], str] = short) -> Cell:
        return Cell(optional(value, form), value)

    def time(row: Row) -> Cell:
        least, most = row.costs.train_seconds_range or (0.0, 0.0)
        spread = (most - least) / 2 if len(row.scores.seeds) > 1 else None
        return amount(row.costs.train_seconds, lambda value: seconds(value, spread))

    def front(row: Row) -> Cell:
        fronts = row.standing.fronts
        return Cell(" ".join(FRONTS[cost] for cost in fronts) or "-", len(fronts), ", ".join(fronts))

    def dominated(row: Row) -> Cell:
        labels = row.standing.dominated_by
        others = f" +{len(labels) - 1}" if len(labels) > 1 else ""
        return Cell(f"{labels[0]}{others}" if labels else "-", len(labels), ", ".join(labels))

    return {
        "parameters": ("parameters", lambda row: amount(row.costs.parameters)),
        "flops": ("FLOPs/example", lambda row: amount(row.costs.flops_per_example)),
        "time": ("training (s)", time),
        "speed": ("examples/s", lambda row: amount(row.costs.examples_per_second, "{:,.0f}".format)),
        "memory": ("peak memory", lambda row: amount(row.costs.peak_bytes, mebibytes)),
        "front": ("front", front),
        "dominated": ("dominated by", dominated),
    }

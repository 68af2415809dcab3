"""Columns of leaderboard tables, declared once for all formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from attn_zoo.leaderboard.metrics import (
    compared,
    estimated,
    figure,
    mebibytes,
    optional,
    score,
    seconds,
    spent,
    unit,
    verdict_cell,
)
from attn_zoo.leaderboard.statistics import Estimate, Soon, Successes
from attn_zoo.leaderboard.table import COSTS, Board, Comparison, Row, Table
from attn_zoo.terminal import short

FRONTS = {cost: cost[0].upper() for cost in COSTS}
"""Letter of each cost in the column ``front`` (the Pareto fronts of a row)."""
LEGEND = ", ".join(f"{letter} {cost}" for cost, letter in FRONTS.items())
EVERY = ("scores", "costs", "budgets", "times", "parts")
"""Names of all views. A view is a part of a leaderboard table that text formats print as a separate table, such as the costs."""

Value = Callable[[Row, Table], Any]
Text = Callable[[Row, Table], str]


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a leaderboard table: its heading, and how the entry of a row is found and written."""

    name: str
    """Unique name: key in CSV and JSON, and CSS class on the page."""
    heading: str | Callable[[Table], str] = ""
    text: Text | None = None
    """Function that returns the entry of a row as text; None for columns that only CSV and JSON have."""
    value: Value | None = None
    """Function that returns the value of a row; by default, the row's field with the column's name."""
    unit: str | Callable[[Table], str] = ""
    """Unit, which is written after the heading."""
    note: str = ""
    """Explanation of the column as a phrase."""
    least_first: bool = False
    """True if the first click on the heading sorts in ascending order."""
    views: tuple[str, ...] = ()
    """Views that show the column, from ``EVERY``, or ``page`` for a column that only the HTML page has. The page has all columns
    with a text."""
    leaves: int = 0
    """Place in the order in which a narrow terminal leaves columns out: 1 goes first. A column with 0 always stays."""
    measured: bool = False
    """True for measured values, which are comparable only among rows with the same requested implementation and machines."""
    shown: Callable[[Table], bool] = lambda table: True
    """Function that returns True for tables that show the column. CSV and JSON always hold it."""
    tip: Text = lambda row, table: ""
    """Function that returns the text of the tooltip on the HTML page."""

    def head(self, table: Table) -> str:
        """Return the heading of the column, with its unit."""
        heading, of = (part if isinstance(part, str) else part(table) for part in (self.heading, self.unit))
        return f"{heading} ({of})" if of else heading

    def figure(self, row: Row, table: Table) -> Any:
        """Return the value of a row in this column, unformatted."""
        return getattr(row, self.name) if self.value is None else self.value(row, table)

    def written(self, row: Row, table: Table) -> str:
        """Return the entry of a row in this column as text."""
        return "" if self.text is None else self.text(row, table)

    def sorted_by(self, row: Row, table: Table) -> float | None:
        """Return the number by which the HTML page sorts a row in this column. If it is None, the row is always last."""
        value = self.figure(row, table)
        if isinstance(value, Soon | Successes):
            value = value.order
        if isinstance(value, Comparison):
            value = value.difference
        value = value.mean if isinstance(value, Estimate) else len(value) if isinstance(value, tuple) else value
        return float(value) if isinstance(value, int | float) else None


def _front(row: Row, table: Table) -> str:
    return " ".join(FRONTS[cost] for cost in row.fronts) or "-"


def _dominated(row: Row, table: Table) -> str:
    others = f" +{len(row.dominated_by) - 1}" if len(row.dominated_by) > 1 else ""
    return f"{row.dominated_by[0]}{others}" if row.dominated_by else "-"


def _time(row: Row, table: Table) -> str:
    least, most = row.train_seconds_range or (0.0, 0.0)
    spread = (most - least) / 2 if len(row.seeds) > 1 else None
    return optional(row.train_seconds, lambda value: seconds(value, spread))


def _share(table: Table) -> str:
    return unit(table, "%")


def _gap(name: str, heading: str, note: str, leaves: int = 0, least_first: bool = False) -> Column:
    """Return the column of a difference of scores."""
    text = lambda row, table: estimated(getattr(row, name), table, "+")  # noqa: E731
    return Column(name, heading, text, note=note, views=("scores",), leaves=leaves, least_first=least_first)


def _cost(
    name: str,
    heading: str,
    form: Callable[[float], str],
    note: str,
    leaves: int = 0,
    *,
    least_first: bool = True,
    measured: bool = False,
) -> Column:
    """Return the column of a cost."""
    text = lambda row, table: optional(getattr(row, name), form)  # noqa: E731
    return Column(name, heading, text, note=note, views=("costs",), leaves=leaves, least_first=least_first, measured=measured)


_POINTS = "in percentage points if the metric is a percentage"
COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column(
            "attention",
            "attention",
            lambda row, table: row.name,
            note="mechanism, with the options that distinguish its rows; (c) marks a control",
            views=EVERY,
        ),
        Column(
            "score",
            lambda table: str(table.task["metric"]),
            lambda row, table: score(row, table),
            lambda row, table: row.test,
            unit=_share,
            note="test score, mean over seeds ± half of its 95 % interval",
            views=("scores",),
        ),
        Column(
            "verdict",
            "verdict",
            lambda row, table: verdict_cell(row, table) or "-",
            note="verdict, and the difference from the best row with its 95 % interval",
            views=("scores",),
            shown=lambda table: table.judgement.reason is None,
            tip=lambda row, table: row.unjudged or "",
        ),
        Column(
            "against_softmax",
            "against softmax",
            lambda row, table: compared(row.against_softmax, table) or "-",
            note="outcome of the comparison with softmax, by the same test; if there are several rows of softmax, with the "
            "one that has the best validation score",
            views=("scores",),
            leaves=5,
            shown=lambda table: table.judgement.reason is None and any(row.against_softmax for row in table.rows),
        ),
        Column(
            "mean",
            lambda table: str(table.task["metric"]),
            lambda row, table: "-" if row.test is None else figure(row.test.mean, table),
            lambda row, table: row.test and row.test.mean,
            unit=_share,
            note="test score, mean over seeds",
            views=("costs",),
        ),
        Column(
            "over_chance",
            "over chance",
            lambda row, table: optional(row.over_chance, lambda value: figure(value.mean, table, "+")),
            note=f"test score minus the score of always giving the same answer, {_POINTS}",
            views=("scores",),
            leaves=4,
        ),
        _gap("margin", "over control", f"test score minus that of the best control, {_POINTS}"),
        Column(
            "learned",
            "learned",
            lambda row, table: str(row.learned or "-"),
            note="number of seeds that learned the task (three validations in a row at 99 % of the ceiling), of all seeds; in "
            "brackets the exact 95 % interval of their share (Clopper-Pearson)",
            views=("scores",),
            shown=lambda table: any(row.learned for row in table.rows),
        ),
        Column(
            "steps_to_90",
            "steps to 90 %",
            lambda row, table: str(row.steps_to_90 or "-"),
            note="steps until the validation score is 90 % of the ceiling: median over seeds and its 95 % interval "
            "(Kaplan-Meier), in which a seed that did not get there counts as later than its last step; ? marks an end of the "
            "interval that these seeds do not determine",
            least_first=True,
            views=("scores",),
            shown=lambda table: any(row.steps_to_90 for row in table.rows),
        ),
        _gap(
            "train_gap", "train - test", f"training score minus test score, with the same weights, {_POINTS}", 3, least_first=True
        ),
        Column(
            "seeds",
            "seeds",
            lambda row, table: f"{len(row.seeds)} of {row.attempts}" if row.failures else str(row.attempts),
            note="number of seeds; if some failed, the number of seeds that finished, such as 2 of 3",
            views=("scores",),
            leaves=2,
        ),
        Column(
            "trials",
            "trials",
            lambda row, table: str(row.trials or "-"),
            note="number of trials from which the row's settings were chosen by validation score",
            least_first=True,
            views=("scores",),
            leaves=1,
            shown=lambda table: any(row.tuning for row in table.rows),
        ),
        _cost("parameters", "parameters", short, "parameters of the whole network", 3),
        _cost(
            "flops_per_example", "FLOPs/example", short, "FLOPs of one forward pass over one example, counting matrix products only"
        ),
        Column(
            "block",
            "measured",
            lambda row, table: row.block.named(table.machines),
            lambda row, table: str(row.block),
            note="implementation and, if there are several, machine; compare training time, speed and memory only between rows "
            "with the same entry",
            least_first=True,
            shown=lambda table: len({row.block for row in table.rows}) > 1,
        ),
        Column(
            "train_seconds",
            "training",
            _time,
            unit="s",
            note="measured training time, median over seeds ± half of the range",
            least_first=True,
            views=("costs",),
            measured=True,
        ),
        _cost(
            "examples_per_second",
            "examples/s",
            "{:,.0f}".format,
            "measured examples per second in training, median over seeds",
            2,
            least_first=False,
            measured=True,
        ),
        _cost("peak_bytes", "peak memory", mebibytes, "measured peak memory of a training step, median over seeds", measured=True),
        Column(
            "fronts",
            "front",
            _front,
            note=f"costs ({LEGEND}) for which the row is on the Pareto front: no comparable row is at least as good in both score "
            "and that cost, and better in one of them",
            views=("costs",),
            leaves=4,
            tip=lambda row, table: ", ".join(row.fronts),
        ),
        Column(
            "dominated_by",
            "dominated by",
            _dominated,
            note="rows that are no worse than this one in mean score and in every comparable cost, and either cheaper in one cost "
            "(for time: without overlap between seeds) or significantly better in score",
            least_first=True,
            views=("costs",),
            leaves=1,
            tip=lambda row, table: ", ".join(row.dominated_by),
        ),
        Column("label", note="mechanism and setting, unique in the table"),
        *(Column(kept.name, note=kept.metadata["note"]) for kept in fields(Row) if "note" in kept.metadata),
        Column("files", note="files of the records"),
        Column("commands", value=lambda row, table: row.noted("command"), note="commands that made the records"),
        Column("commits", value=lambda row, table: row.noted("commit"), note="commits of the code that made the records"),
        Column("study", value=lambda row, table: row.tuning and row.tuning.study, note="study that found the settings"),
        Column("measured_as", value=lambda row, table: row.block.measured_as, note="implementation group, without the machines"),
        Column("machines", value=lambda row, table: row.block.machines, note="machines that ran the row"),
    )
}
"""All columns by name, in the order in which they are shown."""


def columns(table: Table) -> list[Column]:
    """Return the columns of a table: those of ``COLUMNS``, then one column per budget, per training time, per part of the test
    split, and per seed."""
    parts = sorted({part for row in table.rows for part in row.parts}, key=_by_number)
    seeds = sorted({seed for row in table.rows for seed in row.seeds})
    made = [
        _within(f"equal_{board.cost}", f"{board.score} at equal {board.cost}", "budgets", board) for board in table.boards.values()
    ]
    made += [_within(f"after_{board.budget:g}_s", f"after {spent('time', board.budget)}", "times", board) for board in table.at]
    made += [_part(part) for part in parts]
    return [*COLUMNS.values(), *made, *(_of_seed(seed) for seed in seeds)]


def _by_number(part: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: ``4 pairs`` comes before ``16 pairs``."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", part)]


def _within(name: str, heading: str, view: str, board: Board) -> Column:
    def text(row: Row, table: Table) -> str:
        within = board.rows.get(row.label)
        if within is None or within.score is None:
            return "over" if within and within.over else "-"
        return estimated(within.score, table)

    return Column(name, heading, text, lambda row, table: board.rows.get(row.label), unit=_share, views=(view,))


def _part(part: str) -> Column:
    return Column(
        f"part {part}",
        part,
        lambda row, table: estimated(row.parts.get(part), table),
        lambda row, table: row.parts.get(part),
        views=("parts",),
    )


def _of_seed(seed: int) -> Column:
    def text(row: Row, table: Table) -> str:
        return optional(row.by_seed.get(seed), lambda value: figure(value, table))

    return Column(f"seed {seed}", f"seed {seed}", text, lambda row, table: row.by_seed.get(seed), views=("page",))

"""Comparison of recorded and published scores of the same mechanisms on the same task: how far published scores differ among
themselves, and how their settings differ from ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.published import Difference, Facts, Figure, Source, protocol_difference, published_for


@dataclass(frozen=True, slots=True)
class LiteratureRow:
    """Recorded row together with the published scores of its mechanism on the same task."""

    label: str
    ours: Estimate | None
    figures: Mapping[str, tuple[Figure, ...]]
    """Published scores by title of the source. A source that varies an option has several."""
    difference: Mapping[str, tuple[Difference, ...]]
    """For each source (by title), the settings in which it differs from this row but not from every row."""

    @property
    def spread(self) -> float | None:
        """Difference between the highest and the lowest published score in points, or None if there are fewer than two sources."""
        values = [figure.value for found in self.figures.values() for figure in found]
        return max(values) - min(values) if len(self.figures) > 1 else None


@dataclass(frozen=True, slots=True)
class Literature:
    """Recorded table together with the published scores for its task."""

    task: Mapping[str, Any]
    sources: tuple[Source, ...]
    rows: tuple[LiteratureRow, ...]
    """Rows with a published score."""
    difference: Mapping[str, tuple[Difference, ...]]
    """Settings in which each source differs from all rows, by title of the source."""
    flaws: Mapping[str, tuple[str, ...]]
    """Known flaws of the published scores on this task, by title of the source; first those of this task alone."""


def literature(table: Table, attention: str | None = None) -> Literature | None:
    """Return the scores of a table together with the published scores for its task, or None if there are no published scores.

    Args:
        attention: mechanism whose rows are compared; None for all rows.
    """
    rows = [row for row in table.rows if attention in (None, row.attention)]
    known = [(row, found) for row in rows if (found := published_for(table.task["name"], row.attention))]
    if not known:
        return None
    told = {row.label: _differences(row, found, table) for row, found in known}
    every = [figure for _, found in known for figure in found]
    sources = tuple(dict.fromkeys(figure.source for figure in every))
    common = {source.title: _common([by[source.title] for by in told.values() if source.title in by]) for source in sources}
    compared = tuple(
        LiteratureRow(
            label=row.label,
            ours=row.test,
            figures=_by_source(found),
            difference={
                title: tuple(each for each in differences if each not in common[title])
                for title, differences in told[row.label].items()
            },
        )
        for row, found in known
    )
    flaws = {
        source.title: tuple(dict.fromkeys(flaw for f in every if f.source is source for flaw in (*f.protocol.flaws, *source.flaws)))
        for source in sources
    }
    return Literature(table.task, sources, compared, common, flaws)


def facts(table: Table, row: Row) -> Facts:
    """Return the settings of a recorded row, for the comparison with those of published scores."""
    model, budget, tuned = table.model, table.budget, row.tuned
    ends = [run["curve"][-1]["step"] for run in row.runs if run["seed"] in row.by_seed and run["curve"]]
    open_ended = budget.get("seconds") or budget.get("until") == "criterion"  # then the budget has the largest number of steps
    return Facts(
        metric=table.task["metric"],
        seeds=len(row.seeds),
        data=table.data_title,
        causal=bool(table.task.get("causal")),
        length=table.task["length"],
        depth=model["depth"],
        dim=model["dim"],
        heads=row.heads or model["heads"],
        ffn=round(model["dim"] * model["mlp_ratio"]),
        steps=round(median(ends)) if open_ended and ends else budget["steps"],
        batch_size=budget["batch_size"],
        learning_rate=tuned.get("budget.learning_rate", budget["learning_rate"]),
        warmup_steps=tuned.get("budget.warmup_steps", budget["warmup_steps"]),
        weight_decay=tuned.get("budget.weight_decay", budget["weight_decay"]),
        dropout=model["dropout"],
        options=row.options,
        optimiser="AdamW",  # as every protocol so far
        schedule=budget.get("schedule", "cosine"),
        chosen_on="a validation split",
    )


def _differences(row: Row, found: Sequence[Figure], table: Table) -> dict[str, tuple[Difference, ...]]:
    """Return the differences between the row's settings and those of each source, by title of the source."""
    ours = facts(table, row)
    return {
        title: tuple(dict.fromkeys(each for figure in of_source for each in protocol_difference(figure, ours)))
        for title, of_source in _by_source(found).items()
    }


def _common(told: Sequence[tuple[Difference, ...]]) -> tuple[Difference, ...]:
    return tuple(each for each in told[0] if all(each in other for other in told))


def _by_source(found: Sequence[Figure]) -> dict[str, tuple[Figure, ...]]:
    by_title = grouped((figure.source.title, figure) for figure in found)
    return {title: tuple(figures) for title, figures in by_title.items()}

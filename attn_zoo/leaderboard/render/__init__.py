"""Tables as text: for the terminal, for GitHub, for LaTeX, and raw as CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.leaderboard.heatmap.costs import CostColumn, recorded_columns
from attn_zoo.leaderboard.heatmap.model import heat_map
from attn_zoo.leaderboard.render.costs import budgets_table, costs_table, machine_names, times_table
from attn_zoo.leaderboard.render.data import as_csv, as_json
from attn_zoo.leaderboard.render.notes import footnotes, table_notes
from attn_zoo.leaderboard.render.overview import overview_table
from attn_zoo.leaderboard.render.scores import parts_table, scores_table, seeds_table
from attn_zoo.leaderboard.rows import Table

FORMATS = ("terminal", "github", "csv", "json", "latex")

__all__ = ["FORMATS", "render"]


def render(
    tables: Sequence[Table],
    format: str,
    *,
    overview: bool = False,
    seeds: bool = False,
    costs: Sequence[CostColumn] = (),
    colours: str | None = None,
) -> str:
    """The tables in one of ``FORMATS``: an overview where there are several tasks, then each task with its costs and budgets.

    With ``overview``, nothing but that and what goes with it; with ``seeds``, the score of every seed as well. CSV and JSON
    are always whole. In the terminal the overview is the heat map.

    Args:
        costs: columns beside the heat map; those that the records hold where there are none.
        colours: of the terminal; None for plain text.

    Raises:
        ValueError: no such format.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    if format == "csv":
        return as_csv(tables)
    if format == "json":
        return as_json(tables)
    machines = machine_names(tables)
    parts = [_overview(tables, format, costs, colours)] if overview or len(tables) > 1 else []
    for table in () if overview else tables:
        parts += [scores_table(table, format), costs_table(table, machines, format), budgets_table(table, machines, format)]
        parts += [
            times_table(table, machines, format),
            parts_table(table, format),
            seeds_table(table, format) if seeds else "",
            table_notes(table, format),
        ]
    parts.append(footnotes(tables, machines, format, overview))
    return "\n\n".join(part for part in parts if part)


def _overview(tables: Sequence[Table], format: str, costs: Sequence[CostColumn], colours: str | None) -> str:
    if format != "terminal":
        return overview_table(tables, format)
    from attn_zoo.leaderboard.heatmap.terminal import heat_map_text  # here, as rich takes time that other formats have no use for

    return heat_map_text(heat_map(tables, costs or recorded_columns(tables)), colours)

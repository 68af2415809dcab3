"""Tables as text: for the terminal, for GitHub, for LaTeX, and raw as CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.checks import check_text
from attn_zoo.leaderboard.display import columns, parts_grid, scores_grid, seeds_grid
from attn_zoo.leaderboard.heatmap.costs import CostColumn, recorded_columns
from attn_zoo.leaderboard.heatmap.model import heat_map
from attn_zoo.leaderboard.render.costs import budgets_grid, costs_grid, machine_names, times_grid
from attn_zoo.leaderboard.render.data import as_csv, as_json
from attn_zoo.leaderboard.render.notes import footnotes, short_legend, table_notes
from attn_zoo.leaderboard.render.overview import overview_grid
from attn_zoo.leaderboard.render.text import lines, tabulated
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
    by: str = "score",
    wide: bool = False,
    legend: bool = False,
) -> str:
    """Render tables in one of ``FORMATS``: an overview where there are several tasks, then each task with its costs and budgets.

    With ``overview``, only the overview and its notes; with ``seeds``, the score of every seed as well. CSV and JSON always
    hold everything. In the terminal the overview is the heat map.

    Args:
        costs: cost columns of the heat map; by default those of the records.
        colours: colour system of the terminal; None for plain text.
        by: order of the rows.
        wide: show every column in the terminal, however narrow it is.
        legend: explain the columns in the terminal; other formats always do.

    Raises:
        ValueError: no such format.
    """
    check_text("format", format, FORMATS)
    if format == "csv":
        return as_csv(tables)
    if format == "json":
        return as_json(tables)
    machines = machine_names(tables)
    parts = [_overview(tables, format, costs, colours, by)] if overview or len(tables) > 1 else []
    for table in () if overview else tables:
        found = columns(table, machines)
        grids = [scores_grid(table, found, by), costs_grid(table, found, machines), budgets_grid(table, machines)]
        grids += [times_grid(table, machines), parts_grid(table), *([seeds_grid(table)] if seeds else [])]
        parts += [*(tabulated(grid, format, wide) for grid in grids), lines(table_notes(table), format)]
    whole = legend or format != "terminal"
    parts.append(lines(footnotes(tables, machines, overview) if whole else short_legend(tables, machines), format))
    return "\n\n".join(part for part in parts if part)


def _overview(tables: Sequence[Table], format: str, costs: Sequence[CostColumn], colours: str | None, by: str) -> str:
    if format != "terminal":
        return tabulated(overview_grid(tables, by), format)
    from attn_zoo.leaderboard.heatmap.terminal import heat_map_text  # imported here: other formats do not need rich

    return heat_map_text(heat_map(tables, costs or recorded_columns(tables)), colours)

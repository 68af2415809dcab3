"""A leaderboard as one HTML page that needs nothing else: no network, no folder of assets, and scripts only for comfort."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from attn_zoo.escapes import terminal
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import METHOD
from attn_zoo.leaderboard.heat_costs import CostColumn, measured_columns, recorded_columns
from attn_zoo.leaderboard.heatmap import DARK_FROM, SHADES, heat_map, metric
from attn_zoo.leaderboard.heatmap import footnotes as heat_notes
from attn_zoo.leaderboard.notes import footnotes
from attn_zoo.leaderboard.page.details import Runs
from attn_zoo.leaderboard.page.inline import inlined, variables
from attn_zoo.leaderboard.page.overview import attentions, overview, summary
from attn_zoo.leaderboard.page.sections import Section, sections
from attn_zoo.leaderboard.plots import Picture, overalls, pictures, svg, tradeoffs
from attn_zoo.leaderboard.plots.style import Style, style_of
from attn_zoo.leaderboard.table import Table
from attn_zoo.records import Damaged, RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["html_page", "records_from"]

_DRAWN_TASKS = 40
"""Greatest number of tables with plots; a page of more tables says which have plots."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of the page."""

    axis: str
    """Horizontal axis, in words."""
    caption: str
    wide: bool
    """True if the figure is as wide as the page."""
    svg: Markup


def html_page(
    tables: Sequence[Table],
    records: Sequence[RunRecord],
    damaged: Sequence[Damaged] = (),
    *,
    records_at: str | None = None,
    costs: Sequence[CostColumn] = (),
) -> str:
    """Render the page; equal records give equal text.

    Args:
        records: records of the tables, as ``Store.load`` returns them.
        damaged: files that were left out, which the page names.
        records_at: address of the folder of records relative to the page, see ``records_from``; None links no files.
        costs: cost columns of the heat map; by default those of the records.
    """
    here = files("attn_zoo.leaderboard.page")
    script = here.joinpath("script.js").read_text(encoding="utf-8")
    styles = here.joinpath("style.css").read_text(encoding="utf-8")
    style = style_of(tables)
    found = heat_map(tables, [*(costs or recorded_columns(tables)), *measured_columns(tables)])
    runs = Runs(records, records_at)
    machines = tables[0].machines if tables else {}
    tables = [column.table for column in found.columns]
    made = sections(tables, style, runs, machines)
    unplotted = f"plots are drawn for the first {_DRAWN_TASKS} tables only; attn-zoo leaderboard --plots FOLDER draws all of them"
    return (
        _environment()
        .get_template("template.html.j2")
        .render(
            summary=summary(tables, records),
            overview=overview(found, made, style),
            heat=found,
            metrics=[metric(column.table) for column in found.columns],
            heat_notes=heat_notes(found),
            shades=[{"fill": fill, "text": "#fff" if at >= DARK_FROM else "#000"} for at, fill in enumerate(SHADES)],
            sections=made,
            attentions=attentions(tables, style),
            implementations=sorted(
                {row.implementation for table in tables for row in table.rows}, key=lambda name: (name != "eager", name)
            ),
            overalls=[_drawn(picture, style) for picture in overalls(found)],
            tradeoffs=[_drawn(picture, style) for picture in tradeoffs(tables)],
            figures=_figures(tables, made, style),
            environments=runs.environments,
            damaged=[(item.path.name, item.reason) for item in damaged],
            notes=footnotes(tables, False),
            method=METHOD,
            unplotted=unplotted if len(tables) > _DRAWN_TASKS else "",
            variables=variables(),
            style=styles,
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=version("attn-zoo"),
        )
    )


def _visible(value: Any) -> Any:
    """Escape every text of the page but markup, which the project made."""
    return value if isinstance(value, Markup | int | float) else terminal(str(value))


@cache
def _environment() -> Environment:
    """Jinja environment, cached so that the template is compiled once in a process."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("attn_zoo.leaderboard", "page"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def records_from(page: Path, records: Path) -> str | None:
    """Relative address of the records seen from a page; None unless the page lies in their folder or above it, because any other
    address would reveal folders that are not shared with the page."""
    try:
        way = records.resolve().relative_to(page.resolve().parent)
    except ValueError:
        return None
    return quote(way.as_posix()) + "/"


def _figures(tables: Sequence[Table], made: Sequence[Section], style: Style) -> dict[str, dict[str, list[_Figure]]]:
    """Figures by section and kind."""
    return {
        section.id: grouped((picture.kind, _drawn(picture, style)) for picture in pictures(tables, number))
        for number, section in enumerate(made[:_DRAWN_TASKS])
    }


def _drawn(picture: Picture, style: Style) -> _Figure:
    drawn = inlined(svg(picture, style), picture.name, f"{picture.title}. {picture.caption}")
    return _Figure(picture.axis, picture.caption, picture.kind in ("overall", "tradeoff"), drawn)

"""A leaderboard as one HTML page that needs nothing else: no network and no folder of assets.

Records are data of the page, never markup: they are compressed, and its script writes them as text. The tables are
Tabulator's (folder ``tabulator``, MIT licence).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.heat_costs import CostColumn, measured_columns, recorded_columns
from attn_zoo.leaderboard.heatmap import DARK_FROM, SHADES, footnotes, heat_map
from attn_zoo.leaderboard.notes import footnotes as legend
from attn_zoo.leaderboard.page.data import Runs, facts_data, heat_data, rows_data, summary
from attn_zoo.leaderboard.plot import AXES, PANELS, panels_of, plot_svg
from attn_zoo.leaderboard.table import Table
from attn_zoo.plotting.theme import DARK, GRID, INK, MUTED, PAPER
from attn_zoo.records import Damaged, RunRecord

__all__ = ["html_page", "records_from"]


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
    found = heat_map(tables, [*(costs or recorded_columns(tables)), *measured_columns(tables)])
    runs = Runs(records, records_at)
    columns, rows = rows_data(found, runs)
    data = {
        "title": found.title,
        "summary": summary(tables, records) if tables else [],
        "heat": heat_data(found),
        "notes": footnotes(found) if tables else [],
        "columns": columns,
        "rows": rows,
        "facts": facts_data(found),
        "reading": legend(tables, False) if tables else [],
        "environments": runs.environments,
        "damaged": [f"{item.path.name}: {item.reason}" for item in damaged],
    }
    plots = _plots([column.table for column in found.columns])
    library, script, style = _asset("tabulator/tabulator.min.js"), _asset("script.js"), _asset("style.css")
    parts = {
        "hashes": " ".join(f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'" for text in (library, script)),
        "library": library,
        "script": script,
        "style": f"{_colours()}\n{_asset('tabulator/tabulator_simple.min.css')}\n{style}",
        "version": version("attn-zoo"),
        "data": _base64(zlib.compress(json.dumps({**_visible(data), "plots": plots}, sort_keys=True).encode(), 9)),
    }
    return re.sub(r"<!-- (\w+) -->", lambda place: parts[place[1]], _asset("page.html"))


def records_from(page: Path, records: Path) -> str | None:
    """Return the relative address of the records seen from a page; None unless the page lies in their folder or above it, because
    any other address would reveal folders that are not shared with the page."""
    try:
        way = records.resolve().relative_to(page.resolve().parent)
    except ValueError:
        return None
    return quote(way.as_posix()) + "/"


def _asset(name: str) -> str:
    return files("attn_zoo.leaderboard.page").joinpath(name).read_text(encoding="utf-8")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _visible(value: Any) -> Any:
    """Make every character of every text visible."""
    if isinstance(value, str):
        return terminal(value)
    if isinstance(value, dict):
        return {_visible(name): _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _plots(tables: Sequence[Table]) -> list[Mapping[str, str]]:
    """Return the plots of scores against each cost, as SVG that follows the reader's light or dark mode."""
    made: list[Mapping[str, str]] = []
    for axis in AXES.values():
        panels = panels_of(tables, [axis])
        left = f"The first {PANELS} tasks; attn-zoo leaderboard --plots FOLDER draws all." if len(panels) > PANELS else ""
        if panels:
            made.append({"title": axis.label, "note": left, "svg": plot_svg(panels[:PANELS])})
    return made


def _colours() -> str:
    """Return CSS variables of the theme in light and dark mode, and classes of shades."""
    names = {"--ink": INK, "--muted": MUTED, "--grid": GRID, "--paper": PAPER}
    light = "".join(f"{name}:{colour};" for name, colour in names.items())
    dark = "".join(f"{name}:{DARK[colour]};" for name, colour in names.items())
    shades = "".join(
        f".h{at}{{background:{fill};color:{'#fff' if at > DARK_FROM else '#000'}}}" for at, fill in enumerate(SHADES, start=1)
    )
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{shades}"

"""Leaderboard as one HTML page that works without internet access and without other files.

The page holds records as compressed data. Its script writes their content as text, never as markup. Tabulator (folder
``tabulator``, MIT licence) draws the tables.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.heatmap import DARK_FROM, SHADES, HeatMap, footnotes, heat_map
from attn_zoo.leaderboard.page.data import facts_data, heat_data, rows_data, summary
from attn_zoo.leaderboard.plot import AXES, PANELS, panels_of, plot_svg
from attn_zoo.leaderboard.table import Table
from attn_zoo.leaderboard.text import legend
from attn_zoo.plotting.theme import DARK, GRID, INK, MUTED, PAPER
from attn_zoo.records import Damaged, RunRecord

__all__ = ["ResultSet", "html_page"]


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Leaderboard tables that one page shows together, and their records."""

    tables: Sequence[Table]
    records: Sequence[RunRecord]
    """Records of the tables, as ``Store.load`` returns them."""
    name: str = ""
    """Name under which the reader chooses the set; may be empty for the only set of a page."""
    not_causal: Collection[str] = ()
    """Mechanisms without a causal form, to which causal tasks are not applicable."""


def html_page(sets: Sequence[ResultSet], damaged: Sequence[Damaged] = (), pages: Mapping[str, str] | None = None) -> str:
    """Return the HTML page of one or more sets of results. It shows the first set until the reader chooses another. Equal records
    give equal text.

    Args:
        damaged: files that are not complete records, which the page lists.
        pages: addresses of other pages of the site, relative to this one: ``home``, ``attention/NAME`` and ``task/NAME``.
    """
    numbers: dict[str, int] = {}
    maps = [heat_map(each.tables, each.not_causal) for each in sets]
    columns, rows = rows_data([(each.name, found) for each, found in zip(sets, maps, strict=True)], pages or {}, numbers)
    tables = [table for each in sets for table in each.tables]
    data = {
        "home": (pages or {}).get("home", ""),
        "columns": columns,
        "rows": rows,
        "reading": legend(tables) if tables else [],
        "environments": list(numbers),
        "damaged": [f"{item.path.name}: {item.reason}" for item in damaged],
    }
    data = {**_visible(data), "sets": [_set_data(each, found) for each, found in zip(sets, maps, strict=True)]}
    library, script, style = _asset("tabulator/tabulator.min.js"), _asset("script.js"), _asset("style.css")
    parts = {
        "hashes": " ".join(f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'" for text in (library, script)),
        "library": library,
        "script": script,
        "style": f"{_colours()}\n{_asset('tabulator/tabulator_simple.min.css')}\n{style}",
        "version": version("attn-zoo"),
        "data": _base64(zlib.compress(json.dumps(data, sort_keys=True, allow_nan=False).encode(), 9)),
    }
    return re.sub(r"<!-- (\w+) -->", lambda place: parts[place[1]], _asset("page.html"))


def _set_data(of: ResultSet, found: HeatMap) -> Mapping[str, Any]:
    """Return what the page shows of one set, apart from its rows."""
    data = {
        "name": of.name,
        "title": found.title,
        "summary": summary(of.tables, of.records) if of.tables else [],
        "heat": heat_data(found),
        "notes": footnotes(found) if of.tables else [],
        "facts": facts_data(found),
    }
    return {**_visible(data), "plots": _plots([column.table for column in found.columns])}


def _asset(name: str) -> str:
    return files("attn_zoo.leaderboard.page").joinpath(name).read_text(encoding="utf-8")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _visible(value: Any) -> Any:
    """Return the data with every character of every text made visible."""
    if isinstance(value, str):
        return terminal(value)
    if isinstance(value, dict):
        return {_visible(name): _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _plots(tables: Sequence[Table]) -> list[Mapping[str, str]]:
    """Return plots of scores against each cost, as SVG that follows the reader's light or dark mode."""
    made: list[Mapping[str, str]] = []
    for axis in AXES.values():
        panels = panels_of(tables, [axis])
        left = f"The first {PANELS} tasks; attn-zoo leaderboard --plots FOLDER draws all." if len(panels) > PANELS else ""
        if panels:
            made.append({"title": axis.label, "note": left, "svg": plot_svg(panels[:PANELS])})
    return made


def _colours() -> str:
    """Return CSS variables for light and dark mode, and classes for shades."""
    names = {"--ink": INK, "--muted": MUTED, "--grid": GRID, "--paper": PAPER}
    light = "".join(f"{name}:{colour};" for name, colour in names.items())
    dark = "".join(f"{name}:{DARK[colour]};" for name, colour in names.items())
    shades = "".join(
        f".h{at}{{background:{fill};color:{'#fff' if at > DARK_FROM else '#000'}}}" for at, fill in enumerate(SHADES, start=1)
    )
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{shades}"

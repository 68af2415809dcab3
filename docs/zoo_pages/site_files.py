"""Files of the site beside its pages: the interactive page of all committed results, and all runs to download."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from attn_zoo.bench.tables import binary
from attn_zoo.escapes import csv_cell
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.records import frame
from attn_zoo.registry import attentions, task_names
from zoo_pages.templating import render

PAGE = "results.html"
"""Interactive page, at the top of the site."""
_WORDS = {
    "downloads/runs.parquet": "for polars, pandas, DuckDB and R; with types and nested columns",
    "downloads/runs.csv": "for spreadsheets; nested columns are JSON text",
    "downloads/runs.json": "a list of objects",
}
"""Downloads, and what each is for."""


@dataclass(frozen=True, slots=True)
class Counts:
    """A set of results in numbers."""

    name: str
    tasks: int
    mechanisms: int
    runs: int
    protocols: str


def site_files(sets: Sequence[ResultSet]) -> dict[str, bytes]:
    """Return each file by its path in the site."""
    pages = {"home": "index.html"}
    pages |= {f"attention/{name}": f"generated/attention/{name}.html" for name in attentions()}
    pages |= {f"task/{name}": f"generated/task/{name}.html" for name in task_names()}
    shown = [each for each in sets if each.tables]
    return {PAGE: html_page(shown, pages=pages).encode(), **downloads(sets)}


def downloads(sets: Sequence[ResultSet]) -> dict[str, bytes]:
    """Return all runs as Parquet, CSV and JSON, with the name of their set."""
    runs = frame([record for each in sets for record in each.records])
    runs.insert_column(0, pl.Series("results", [each.name for each in sets for _ in each.records], dtype=pl.String))
    nested = [name for name, kind in runs.schema.items() if kind.is_nested()]
    flat = runs.with_columns(pl.Series(name, [json.dumps(value) for value in runs[name].to_list()]) for name in nested)
    texts = pl.col(pl.String).map_elements(csv_cell, return_dtype=pl.String)
    parquet = io.BytesIO()
    runs.write_parquet(parquet, compression="zstd")
    made = (parquet.getvalue(), flat.with_columns(texts).write_csv().encode(), runs.write_json().encode())
    return dict(zip(_WORDS, made, strict=True))


def results_page(sets: Sequence[ResultSet], files: Mapping[str, bytes]) -> str:
    """Return the Markdown of the page that leads to the interactive page and to the downloads."""
    counts = [
        Counts(
            each.name,
            len(each.tables),
            len({row.attention for table in each.tables for row in table.rows if not row.control}),
            sum(len(row.files) for table in each.tables for row in table.rows),
            ", ".join(sorted({table.protocol for table in each.tables})),
        )
        for each in sets
        if each.tables
    ]
    return render(
        "results.md.j2",
        page=PAGE,
        sets=counts,
        count=sum(len(each.records) for each in sets),
        downloads=[(name, binary(len(files[name])), words) for name, words in _WORDS.items()],
    )

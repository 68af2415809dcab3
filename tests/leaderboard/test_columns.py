"""A column is declared once and every format shows it."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from make import make_record, records_of, stored
from page_data import text_of

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.columns import COLUMNS, Column, columns
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.records import RunRecord


@pytest.fixture
def records(tmp_path) -> list[RunRecord]:
    """Three contenders at three seeds, of which one failed once and one was made on another machine."""
    there = {"cpu": "Another CPU", "threads": 2, "torch": "2.15.0"}
    made = records_of({"softmax": (0.91, 0.92, 0.93), "linformer": (0.7, 0.7)})
    made += records_of({"performer": (0.51, 0.52, 0.53)}, environment=there)
    return stored(tmp_path, [*made, make_record("linformer", seed=3, status="out_of_memory")])


def shown(format: str, records: list[RunRecord]) -> str:
    made = tables(records)
    return text_of(html_page([ResultSet(made, records)])) if format == "html" else render(made, format, wide=True)


@pytest.mark.parametrize("format", ["terminal", "github", "latex", "csv", "json", "html"])
def test_a_new_column_is_one_declaration_in_every_format(records, monkeypatch, format):
    def best(row: Row, table: Table) -> float:
        return max(run.scores["test"] for run in row.runs if "test" in run.scores)

    new = Column("best_seed", "best seed", lambda row, table: f"{100 * best(row, table):.2f}", best, unit="%", views=("costs",))
    assert not re.search("best.seed", shown(format, records))
    monkeypatch.setitem(COLUMNS, "best_seed", new)
    text = shown(format, records)
    if format == "csv":
        assert [line["best_seed"] for line in csv.DictReader(io.StringIO(text))] == ["0.93", "0.7", "0.53"]
    elif format == "json":
        assert [row["best_seed"] for row in json.loads(text)[0]["rows"]] == [0.93, 0.7, 0.53]
    elif format == "html":
        assert "93.00\n0.93" in text, "text, and the number by which it is sorted"
        assert "best seed (%)" in text
    else:
        assert "best seed (" in text and all(score in text for score in ("93.00", "70.00", "53.00"))


def test_all_columns_are_fields_of_csv_and_json(records):
    made = tables(records)
    assert set(json.loads(render(made, "json"))[0]["rows"][0]) == {column.name for column in columns(made[0])}
    heads = next(csv.reader(io.StringIO(render(made, "csv"))))
    for name in COLUMNS:
        assert name in heads or f"{name}_mean" in heads, name
    line = next(line for line in csv.DictReader(io.StringIO(render(made, "csv"))) if line["attention"] == "linformer")
    assert line["block"] == "auto, Some CPU, 2 threads, torch 2.15.0"
    assert line["failures"] == "out_of_memory with seed 3: because of out_of_memory"

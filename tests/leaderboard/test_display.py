"""The types behind the tables, and the one set of columns that text and page display."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import fields, replace

import pytest
from make import make_record

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.display import columns, parts_grid, scores_grid
from attn_zoo.leaderboard.page import html_page
from attn_zoo.leaderboard.render.costs import costs_grid, machine_names
from attn_zoo.leaderboard.rows import Block, Costs, Failure, Provenance, Scores, Standing
from attn_zoo.records import RunRecord


@pytest.fixture
def records() -> list[RunRecord]:
    """Three contenders at three seeds, of which one failed once and one was made on another machine."""
    there = {"cpu": "Another CPU", "threads": 2, "torch": "2.15.0"}
    made = [make_record(seed=seed, test=0.9 + seed / 100) for seed in (1, 2, 3)]
    made += [make_record("performer", seed=seed, test=0.5 + seed / 100, environment=there) for seed in (1, 2, 3)]
    made += [make_record("linformer", seed=seed, test=0.7) for seed in (1, 2)]
    made += [make_record("linformer", seed=3, status="out_of_memory")]
    return [replace(record, source=f"{at}.json") for at, record in enumerate(made)]


def test_a_failure_tells_its_status_its_seed_and_its_reason():
    failure = Failure("out_of_memory", 3, "3 GiB: at 1 with seed 2")
    assert (failure.word, failure.run) == ("out of memory", "out_of_memory with seed 3")
    assert str(failure) == "out_of_memory with seed 3: 3 GiB: at 1 with seed 2"


def test_a_block_is_an_implementation_on_its_machines():
    block = Block("auto", ("CPU, 2 threads", "GPU"))
    assert str(block) == "auto, CPU, 2 threads; GPU"
    assert block.named({"GPU": "machine 2", "CPU, 2 threads": "machine 1"}) == "auto, machine 1 + machine 2"
    assert Block("sdpa", ("GPU",)).named({"GPU": "machine 1"}) == "sdpa", "one machine in all needs no name"
    assert block == Block("auto", ("CPU, 2 threads", "GPU")) != Block("sdpa", block.machines)


def test_text_and_page_show_the_same_columns_and_cells(records):
    (table,) = tables(records)
    machines = machine_names([table])
    found = columns(table, machines)
    assert [column.name for column in found.values()] == list(found) and "block" in found and "trials" not in found
    page, text = html_page([table], records), render([table], "github")
    for grid in (scores_grid(table, found), costs_grid(table, found, machines)):
        assert all(f"| {head} " in text or f" {head} |" in text for head in grid.head)
        assert all(cell in text for line in grid.body for cell in line)
    for name in found.keys() - {"attention", "score", "mean"}:
        heads = re.findall(rf'title="{re.escape(html.escape(found[name].note))}">([^<]*)<', page.replace("&#39;", "&#x27;"))
        assert heads == [found[name].head], name
        cells = re.findall(rf'<td class="{name}" data-value="([^"]*)"[^>]*>([^<]*)</td>', page)
        wanted = [found[name].cell(row) for row in table.rows]
        assert [html.unescape(text) for _, text in cells] == [cell.text for cell in wanted], name
        assert [value for value, _ in cells] == ["" if cell.value is None else str(cell.value) for cell in wanted], name
    assert ">machine 1 + machine" not in page and "auto, machine 2" in page


def test_a_table_without_parts_has_no_rows_of_them(records):
    (table,) = tables(records)
    assert parts_grid(table).body == () and "by part of the test" not in render([table], "terminal")


def test_data_formats_hold_rows_flat_with_failures_and_blocks_as_text(records):
    made = tables(records)
    (table,) = json.loads(render(made, "json"))
    row = next(row for row in table["rows"] if row["attention"] == "linformer")
    parts = [{field.name for field in fields(kind)} for kind in (Scores, Costs, Provenance, Standing)]
    named = {"label", "attention", "options", "heads", "control", "warnings", "seeds", "machines", "measured_as", "score"}
    assert set(row) == named | set().union(*parts) - {"test"}
    assert sum(map(len, parts)) == len(set().union(*parts)), "no part has a name of another"
    assert row["failures"] == ["out_of_memory with seed 3: because of out_of_memory"]
    assert row["block"] == "auto, Some CPU, 2 threads, torch 2.15.0" in table["boards"]["time"]["budgets"]
    line = next(line for line in csv.DictReader(io.StringIO(render(made, "csv"))) if line["attention"] == "linformer")
    assert (line["block"], line["failures"]) == (row["block"], row["failures"][0])

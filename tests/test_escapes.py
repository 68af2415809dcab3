"""Text from records, plugins and file names is escaped for the format that it is written in."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from make import make_record

from attn_zoo.cli import main
from attn_zoo.escapes import csv_cell, markdown, terminal
from attn_zoo.leaderboard import leaderboard
from attn_zoo.records import Store

HOSTILE = "Digits\n\\input{secret}\x1b[31m | <script> [here](http://x)\u202e\x07\r"


def hostile(folder: Path) -> Path:
    """Fill a folder with records whose titles, names, reasons and warnings hold characters that each format must escape."""
    task_card = {"name": HOSTILE, "title": HOSTILE, "version": "1", "metric": "accuracy", "length": 16, "classes": 10}
    for name in ("softmax", f"=HYPERLINK{HOSTILE}"):
        for seed in (1, 2, 3):
            card = {"name": name, "title": HOSTILE, "control": False}
            facts = {"task_card": task_card, "attention_card": card, "warnings": (HOSTILE,)}
            Store(folder).add(make_record(name, HOSTILE, seed, spec_options={"dial": HOSTILE}, **facts))  # type: ignore[arg-type]
    Store(folder).add(make_record("softmax", HOSTILE, 4, status="failed", task_card=task_card, reason=HOSTILE))
    (folder / "half\x1b[2J\n.json").write_text("{", encoding="utf-8")
    return folder


@pytest.mark.parametrize("words", [[], ["--overview"], ["--seeds"], ["--format", "github"], ["--format", "latex"]])
def test_no_format_passes_on_what_steers_a_terminal(tmp_path, capsys, words):
    folder = hostile(tmp_path / "runs")
    for command in (["leaderboard", *words], ["findings"], ["show", "softmax"]):
        assert main([*command, "--records", str(folder)]) == 0
    assert main(["records", "verify", "--records", str(folder)]) == 1
    assert main(["diff", str(folder), str(folder)]) == 0
    said = capsys.readouterr()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said.out + said.err)
    assert "\\x1b[31m" in said.out


def test_latex_holds_a_title_in_its_comment(tmp_path):
    text = leaderboard(hostile(tmp_path / "runs"), format="latex").partition("\n\nFiles that were left out")[0]
    live = [line for line in text.splitlines() if not line.startswith("%")]
    assert not any("\\input" in line for line in live)


def test_csv_holds_no_formula(tmp_path):
    text = leaderboard(hostile(tmp_path / "runs"), format="csv")
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "-", "@")) and not re.fullmatch(r"-?[0-9.e-]+", cell)]


def test_markdown_keeps_its_columns(tmp_path):
    text = leaderboard(hostile(tmp_path / "runs"), format="github")
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert any("HYPERLINK" in table for table in tables)
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert "<script>" not in text


def test_escapes_leave_plain_text_as_it_is():
    for text in ("linformer[projected_length=64|128]", "größer als ± 0.1 µs", "ソフト", "p < 0.05"):
        assert terminal(text) == text
    assert markdown("p < 0.05, a|b") == r"p < 0.05, a\|b"
    assert [csv_cell(value) for value in ("-1.5e-3", "=1+1", " @x", "a=b", 3, None)] == ["-1.5e-3", "'=1+1", "' @x", "a=b", 3, None]
    assert terminal("a\x1b[0m\u202eb\nc\ud800") == "a\\x1b[0m\\u202eb\\nc\\ud800"

"""The HTML page: its data hold all that is known, and nothing of a record becomes markup or a script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from make import make_record, records_of, stored
from page_data import data_of, text_of
from synthetic import synthetic_records

from attn_zoo.cli.main import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heatmap import SHADES, heat_map
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.records import Damaged, RunRecord, Store


class Seen(HTMLParser):
    """Elements, attributes and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements[tag] += 1
        for name, value in attrs:
            self.attributes.add(name)
            self.ids[value] += name == "id"
            self.addresses += [value] if name in ("href", "xlink:href", "src", "srcset", "data", "action", "poster") else []


def some(folder: Path, **changes) -> list[RunRecord]:
    """Three rows of three seeds on two tasks, in a folder, as read from there."""
    scores = {
        name: [score + seed / 200 for seed in (1, 2, 3)] for name, score in (("softmax", 0.9), ("linformer", 0.8), ("uniform", 0.5))
    }
    return stored(folder, [record for task in ("digits", "listops") for record in records_of(scores, task, **changes)])


def page(records: list[RunRecord], damaged: Sequence[Damaged] = (), **options) -> str:
    return html_page([ResultSet(tables(records), records, **options)], damaged)


def set_of(text: str) -> dict[str, Any]:
    """Return what a page shows of its first set besides its rows."""
    return dict(data_of(text)["sets"][0])


def row_of(text: str, name: str, task: str = "Digits") -> dict[str, Any]:
    return next(row for row in data_of(text)["rows"] if row["attention"].split()[0] == name and row["task"] == task)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, list[RunRecord]]:
    """A page with its plots, and its records."""
    records = some(tmp_path_factory.mktemp("runs"))
    return page(records), records


@pytest.fixture
def plain(monkeypatch):
    """Empty plots, because drawing takes most of the time."""
    monkeypatch.setattr("attn_zoo.leaderboard.page.plot_svg", lambda panels: '<svg viewBox="0 0 1 1"></svg>')


def test_the_page_asks_for_nothing_from_anywhere(whole):
    text, _ = whole
    assert set(Seen(text).addresses) == {"data:,"}
    own = text[: text.index('<script type="text/plain"')] + text[text.rindex("<script>") :]
    assert not re.search(r"(?i)@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|innerHTML", own)
    assert "default-src 'none'" in text and "sourceMappingURL" not in text


def test_only_the_library_and_the_script_of_the_page_are_allowed_to_run(tmp_path, plain):
    text = page(some(tmp_path))
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    assert len(hashes) == 2 and f"script-src {' '.join(hashes)};" in text


def test_text_of_a_record_is_data_alone(tmp_path, plain):
    hostile = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    card = {"title": f"Task {hostile}", "summary": hostile, "licence": hostile, "source": hostile}
    attention = {"name": "softmax", "title": hostile, "paper": hostile, "control": False}
    failed = make_record(status="failed", reason=hostile, card=card, attention_card=attention, warnings=(hostile,))
    changed: dict[str, Any] = {"spec_options": {hostile: hostile}, "environment": {"cpu": hostile, "command": hostile}}
    read = stored(tmp_path, [failed, make_record(seed=2, card=card, **changed)])
    records = [replace(record, source=f"{hostile}{number}.json") for number, record in enumerate(read)]
    text = page(records)
    seen = Seen(text)
    assert seen.elements["script"] == 3 and seen.elements["img"] == 0
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert hostile not in text and hostile in text_of(text), "it is shown as it is"


def test_every_row_names_its_records(whole):
    text, records = whole
    assert max(Seen(text).ids.values()) == 1, "ids are unique"
    assert {run[11] for row in data_of(text)["rows"] for run in row["runs"]} == {record.source for record in records}


def test_the_details_hold_all_that_is_known_of_a_row(tmp_path, plain):
    environment = {**make_record().environment, "commit": "abcdef1234567", "dirty": True, "command": "attn-zoo run -m task=digits"}
    records = some(tmp_path, environment=environment, warnings=("window as long as the input",))
    text = page(records)
    row = row_of(text, "linformer")
    details = dict(row["details"])
    assert details["result"].startswith("linformer: accuracy 81.0") and details["warning"] == "window as long as the input"
    assert (details["parameters"], details["FLOPs of a forward pass, per example"]) == ("70,000", "2,400,000")
    assert details["options"] == "dial=1, implementation=eager" and details["recorded by"] == "attn-zoo run -m task=digits"
    command = details["run it again"]
    assert command.startswith("attn-zoo run -m attention=linformer attention.dial=1 task=digits") and "seed=1,2,3" in command
    assert [run[2] for run in row["runs"]] == ["80.5", "81.0", "81.5"]
    digest, number, commit = row["runs"][0][7:10]
    assert (digest, commit) == (str(records[0].data["test"]["digest"])[:8], "abcdef12 changed")
    assert "Some CPU" in data_of(text)["environments"][number - 1]


def test_the_first_table_is_the_heat_map(tmp_path, plain):
    records = stored(tmp_path, synthetic_records(mechanisms=12, tasks=8))
    made = tables(records)
    found = heat_map(made)
    text = html_page([ResultSet(made, records)])
    heat = set_of(text)["heat"]
    assert found.flops is not None
    assert [column["title"] for column in heat["columns"]] == [column.title for column in found.columns]
    assert [line["attention"] for line in heat["lines"]] == [line.attention for line in found.lines]
    for drawn, line in zip(heat["lines"], found.lines, strict=True):
        for (_, _, shade, kinds, said, name), cell in zip(drawn["cells"], line.cells, strict=True):
            assert shade == cell.level and ("leads" in kinds, "marked" in kinds) == (cell.leads, cell.marked)
            assert ("failed" in kinds) == (cell.row is not None and cell.row.test is None), "every task is applicable here"
            assert said.startswith(f"{line.attention} on ") or cell.row is None
            assert name == (cell.row.label if cell.row else "")
    assert next(line for line in heat["lines"] if line["attention"] == "linformer")["beside"][1] == found.flops.written("linformer")
    assert heat["beside"] == ["average (%)", found.flops.head]
    assert f".h{len(SHADES)}{{background:{SHADES[-1]}" in text


def test_failed_runs_are_cells_with_their_reasons(tmp_path, plain):
    failed = make_record("performer", status="out_of_memory", reason="16 GiB were not enough")
    text = page(stored(tmp_path, [make_record("softmax"), failed]))
    row = row_of(text, "performer")
    assert row["score"] == ["out of memory", None] and "16 GiB were not enough" in dict(row["details"])["failure"]
    assert ["runs", "2, 1 out of memory"] in set_of(text)["summary"]


def test_same_records_same_page(whole):
    text, records = whole
    assert page(list(reversed(records))) == text


def test_published_figures_stand_where_there_are_any(tmp_path, plain):
    text = page(some(tmp_path))
    row = row_of(text, "softmax", "Listops")
    assert row["published"][0].startswith("3") and 30 < row["published"][1] < 40
    assert "Tay et al. 2020" in str(row["details"])
    assert row_of(text, "softmax")["published"] == ["64.27 % (LRA Text)", None], "digits has no figure, so the anchor stands there"
    assert "published" not in row_of(text, "uniform"), "a control has no anchor"


def test_sets_with_files_of_one_name_keep_their_own_records(tmp_path, plain):
    sets = []
    for name, score in (("one", 0.9), ("other", 0.6)):
        record = replace(make_record("softmax", test=score), source="same.json")
        sets.append(ResultSet(tables([record]), [record], name))
    text = html_page(sets, pages={"home": "index.html", "attention/softmax": "softmax.html", "task/mqar": "mqar.html"})
    found = data_of(text)
    assert [each["name"] for each in found["sets"]] == ["one", "other"] and found["home"] == "index.html"
    assert [(row["set"], row["runs"][0][2]) for row in found["rows"]] == [("one", "90.0"), ("other", "60.0")]
    assert len(found["environments"]) == 1, "equal environments have one number"
    assert [row["pages"] for row in found["rows"]] == 2 * [[["mechanism", "softmax.html"]]], "the task has no page"


def test_a_row_that_never_learned_is_sorted_behind_all_others_and_words_begin_on_the_left(plain):
    records, _ = Store(Path(__file__).parents[2] / "results" / "quickstart").load()
    text = page(records)  # json refuses infinity, which a browser cannot read
    steps = {row["attention"]: row["steps_to_90"][1] for row in data_of(text)["rows"] if row["task"].startswith("Associative")}
    assert max(steps.values()) == steps["none"] > 1e9 > steps["softmax"]
    words = {column["field"] for column in data_of(text)["columns"] if column["align"] == "left"}
    assert words == {"verdict", "against_softmax", "dominated_by"}


def test_damaged_files_are_named(tmp_path, plain):
    some(tmp_path)
    (tmp_path / "cut.json").write_text("{", encoding="utf-8")
    records, damaged = Store(tmp_path).load()
    assert "cut.json" in data_of(page(records, damaged=damaged))["damaged"][0]


def test_no_records_make_a_page_that_says_so():
    text = page([])
    assert data_of(text)["rows"] == [] and "There are no records to show yet" in text


def test_the_command_writes_a_page(tmp_path, plain, capsys):
    some(tmp_path / "runs")
    words = ["leaderboard", "--records", str(tmp_path / "runs"), "--format", "html"]
    assert main([*words, "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == "" and data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["rows"]
    assert main([*words, "--task", "digits"]) == 0
    assert {row["task"] for row in data_of(capsys.readouterr().out)["rows"]} == {"Digits"}


def test_the_command_draws_pictures_beside_its_tables(tmp_path, capsys):
    Store(tmp_path / "runs").add(make_record())
    assert main(["leaderboard", "--records", str(tmp_path / "runs"), "--plots", str(tmp_path / "plots")]) == 0
    out, err = capsys.readouterr()
    assert "softmax" in out and "10 files" in err and len(list((tmp_path / "plots").iterdir())) == 10

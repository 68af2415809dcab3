"""The page as a file: whole without a network, true to its records, and closed to what they say."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from make import make_record
from synthetic import synthetic_records

from attn_zoo.cli import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heat_costs import CostColumn
from attn_zoo.leaderboard.heatmap import SHADES, heat_map, level
from attn_zoo.leaderboard.page import html_page, records_from
from attn_zoo.records import ModelSpec, RunRecord, Store


class Seen(HTMLParser):
    """Elements, addresses and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements[tag] += 1
        for name, value in attrs:
            self.attributes.add(name)
            self.ids += [value] if name == "id" else []
            self.addresses += [value] if name in ("href", "xlink:href", "src", "srcset", "data", "action", "poster") else []

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def some(folder: Path, **changes) -> list[RunRecord]:
    """Three rows of three seeds on two tasks, in a folder, as read from there."""
    store = Store(folder)
    for task in ("digits", "listops"):
        for name, score in (("softmax", 0.9), ("linformer", 0.8), ("uniform", 0.5)):
            for seed in (1, 2, 3):
                store.add(make_record(name, task, seed, test=score + seed / 200, **changes))
    return store.load()[0]


def page(records: list[RunRecord], **options) -> str:
    return html_page(tables(records), records, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, list[RunRecord]]:
    """A page with its plots, and its records."""
    records = some(tmp_path_factory.mktemp("runs"))
    return page(records, records_at="some%20where/"), records


@pytest.fixture
def plain(monkeypatch):
    """Empty plots, as drawing takes most of the time."""
    monkeypatch.setattr("attn_zoo.leaderboard.page.svg", lambda picture, style: '<svg viewBox="0 0 1 1"></svg>')


def test_the_page_asks_for_nothing_from_anywhere(whole):
    text, _ = whole
    seen = Seen(text)
    outside = [address for address in seen.addresses if re.match(r"(?i)\s*([a-z]+:)?//|https?:", address)]
    assert not outside, f"the page refers to {outside}"
    assert not re.search(r"(?i)@import|url\(\s*['\"]?(?!#)|\bfetch\(|XMLHttpRequest|WebSocket", text)
    assert "default-src 'none'" in text


def test_the_only_script_is_the_one_that_is_allowed(tmp_path, plain):
    text = page(some(tmp_path))
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_what_a_record_says_stays_text(tmp_path, plain):
    hostile = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    card = {**make_record().task_card, "title": f"Task {hostile}", "summary": hostile, "licence": hostile, "source": hostile}
    store = Store(tmp_path)
    attention = {"name": "softmax", "title": hostile, "paper": hostile, "control": False}
    store.add(make_record(status="failed", reason=hostile, task_card=card, attention_card=attention, warnings=(hostile,)))
    store.add(
        make_record(seed=2, task_card=card, spec_options={hostile: hostile}, environment={"cpu": hostile, "command": hostile})
    )
    records, _ = store.load()
    records = [replace(record, source=f"{hostile}{number}.json") for number, record in enumerate(records)]
    text = page(records, records_at="here/")
    seen = Seen(text)
    assert seen.elements["script"] == 1 and seen.elements["img"] == 0
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert hostile in seen.text, "it is shown as it is"
    assert not [address for address in seen.addresses if "<" in address or '"' in address]


def test_every_cell_leads_to_its_record(whole):
    text, records = whole
    seen = Seen(text)
    assert [name for name, count in Counter(seen.ids).items() if count > 1] == [], "ids are unique, those of figures too"
    inner = {address[1:] for address in seen.addresses if address.startswith("#")}
    assert inner <= set(seen.ids), f"nothing is at {sorted(inner - set(seen.ids))}"
    assert {f"{task}--{name}" for task in ("digits", "listops") for name in ("softmax", "linformer", "uniform")} <= inner
    files = {unquote(address) for address in seen.addresses if address.endswith(".json")}
    assert files == {f"some where/{record.source}" for record in records}


def test_the_panel_holds_all_that_is_known_of_a_row(tmp_path, plain):
    environment = {**make_record().environment, "commit": "abcdef1234567", "dirty": True, "command": "attn-zoo run -m task=digits"}
    records = some(tmp_path, environment=environment, warnings=("window as long as the input",))
    text = page(records)
    panel = text[text.index('<article id="digits--linformer"') :].split("</article>")[0]
    said = Seen(panel).text
    for wanted in (
        "80.5 %",
        "81.0 %",
        "81.5 %",
        "dial=1",
        "70,000",
        "2,400,000",
        "window as long as the input",
        "abcdef12 changed",
    ):
        assert wanted in said, f"{wanted!r} is not behind the row: {said}"
    assert "attn-zoo run -m attention=linformer attention.dial=1 task=digits" in said and "seed=1,2,3" in said
    assert "Recorded by attn-zoo run -m task=digits" in said
    assert str(records[0].data["test"]["digest"])[:8] in said
    assert "environment 1" in said and "Some CPU" in Seen(text).text


def test_the_overview_is_the_heat_map(tmp_path, plain):
    store = Store(tmp_path)
    for record in synthetic_records(mechanisms=12, tasks=8):
        store.add(record)
    records, _ = store.load()
    made = tables(records)
    found = heat_map(made)
    text = html_page(made, records, costs=[CostColumn("state", 4096, "State: bytes", {"linformer": 65536})])
    heat = text[text.index('<table class="heat') :].split("</table>")[0]
    drawn = re.findall(r'<td data-task="[^"]+" class="([^"]*)" title="([^"]*)">', heat)
    cells = [(line, cell) for line in found.lines for cell in line.cells]
    assert len(drawn) == len(cells) == 96
    for (kinds, said), (line, cell) in zip(drawn, cells, strict=True):
        assert ({f"h{level(cell.shade)}"} if cell.shade is not None else set()) == {k for k in kinds.split() if k[0] == "h"}
        assert ("leads" in kinds, "marked" in kinds) == (cell.leads, cell.marked)
        assert said.startswith(f"{line.attention} on ") or cell.row is None
    assert '<td class="beside">64 KiB</td>' in heat and heat.index("control</span>") > heat.index(">performer</th>")
    style = text[text.index("<style>") :].split("</style>")[0]
    assert f".h{len(SHADES)}{{background:{SHADES[-1]}" in style


def test_failed_runs_are_cells_with_their_reasons(tmp_path, plain):
    store = Store(tmp_path)
    store.add(make_record("softmax"))
    store.add(make_record("performer", status="out_of_memory", reason="16 GiB were not enough"))
    records, _ = store.load()
    text = page(records)
    assert re.search(r'<td[^>]* class="failed"[^>]*><a href="#digits--performer">OOM</a>', text)
    assert "16 GiB were not enough" in Seen(text).text
    assert "2, 1 out of memory" in Seen(text).text, "the summary counts it"


def test_other_data_have_a_table_of_their_own(tmp_path, plain):
    store = Store(tmp_path)
    store.add(make_record("softmax", environment={"started": "2026-01-01"}))
    foreign = {split: {"examples": 100, "digest": "f" * 64} for split in ("train", "valid", "test")}
    store.add(make_record("performer", data=foreign, environment={"started": "2026-01-02"}))
    text = page(store.load()[0])
    assert "f" * 8 in Seen(text).text
    assert len(re.findall(r'<section[^>]* class="task"', text)) == 2


def test_a_page_tells_of_shared_blocks_and_short_convolutions(tmp_path, plain):
    text = page(some(tmp_path, spec_model=ModelSpec(shared_weights=True, reuse_keys=True, short_convolution=4)))
    shared = "one block for all layers, with keys and values computed once"
    assert f"4 heads, {shared}, a short convolution (4) before every attention" in text


def test_same_records_same_page(whole):
    text, records = whole
    assert page(list(reversed(records)), records_at="some%20where/") == text


def test_each_task_has_its_figures_and_all_tasks_have_theirs_in_the_colours_of_the_page(whole):
    text, _ = whole
    assert Seen(text).elements["figure"] == 14 + 3
    body = text[text.index("<figure") :]
    assert "var(--ink)" in body and "#1b1f24" not in body, "a figure that keeps its ink is black on a dark page"
    assert "<metadata" not in text


def test_a_matrix_tells_which_pairs_differ(tmp_path, plain):
    records = some(tmp_path)
    text = page(records)
    section = text[text.index('<section id="digits"') :].split("</section>")[0]
    matrix = section[section.index('class="pairs"') :].split("</table>")[0]
    (cell,) = re.findall(r'<td title="([^"]*)">(.?)</td>', matrix)
    (pair,) = tables(records)[0].ranking.comparisons
    assert cell[0].startswith("softmax +10.0") and (cell[1] == "●") == pair.apart


def test_time_and_memory_stand_beside_the_scores(tmp_path, plain):
    text = page(some(tmp_path))
    head = text[text.index('<table class="heat') :].split("</thead>")[0]
    assert [word in head for word in ("time", "memory")] == [True, True]


def test_a_warning_names_its_row_once(tmp_path, plain):
    text = page(some(tmp_path, warnings=("softmax: hardly a token is out of reach",)))
    assert "softmax: softmax:" not in text and "hardly a token" in text


def test_bytes_over_budget_are_told_in_mebibytes():
    small = make_record("softmax", measured={"train_seconds": 1.0, "peak_bytes": 2.0**20})
    large = make_record("linformer", measured={"train_seconds": 1.0, "peak_bytes": 8.0 * 2**20})
    (table,) = tables([small, large])
    assert [within.note for within in table.boards["memory"].rows.values() if within.over] == ["over budget: takes 8.0 MiB"]


def test_published_figures_stand_where_there_are_any(tmp_path, plain):
    text = page(some(tmp_path))
    assert text.count("published (%)") == 1, "listops has been published on, digits has not"
    row = text[text.index('<a href="#listops--softmax">softmax</a>') :].split("</tr>")[0]
    assert re.search(r'class="published" data-value="[0-9.]+"[^>]*>3[0-9.]+', row)
    assert "Tay et al. 2020" in Seen(text[text.index('<article id="listops--softmax"') :].split("</article>")[0]).text


def test_damaged_files_are_named(tmp_path, plain):
    some(tmp_path)
    (tmp_path / "cut.json").write_text("{", encoding="utf-8")
    records, damaged = Store(tmp_path).load()
    assert "cut.json" in Seen(page(records, damaged=damaged)).text


def test_no_records_make_a_page_that_says_so():
    assert "no records to show yet" in Seen(html_page([], [])).text


def test_files_are_linked_from_beside_and_above_alone(tmp_path):
    records = tmp_path / "my results" / "runs"
    assert records_from(tmp_path / "page.html", records) == "my%20results/runs/"
    assert records_from(tmp_path / "my results" / "page.html", records) == "runs/"
    assert records_from(records / "page.html", records) == "./"
    assert records_from(tmp_path / "elsewhere" / "page.html", records) is None


def test_many_records_make_a_page_of_bearable_size(tmp_path, plain):
    records = [
        replace(
            make_record("performer", f"task{dial % 5}", seed, test=dial / 1000, spec_options={"dial": dial}),
            source=f"{dial}-{seed}.json",
        )
        for dial in range(300)
        for seed in (1, 2, 3)
    ]
    text = page(records)
    assert len(text) / 300 < 9_000, "bytes a row"
    assert text.count("<article") == 300


def test_the_command_writes_a_page_that_finds_its_records(tmp_path, plain, capsys):
    some(tmp_path / "runs")
    words = ["leaderboard", "--records", str(tmp_path / "runs"), "--format", "html"]
    assert main([*words, "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == ""
    linked = [a for a in Seen((tmp_path / "page.html").read_text(encoding="utf-8")).addresses if a.endswith(".json")]
    assert linked and all((tmp_path / unquote(address)).is_file() for address in linked)
    assert main([*words, "--task", "digits"]) == 0
    printed = capsys.readouterr().out
    assert 'id="digits"' in printed and 'id="listops"' not in printed
    assert not [address for address in Seen(printed).addresses if address.endswith(".json")], "printed, it lies nowhere"


def test_the_command_draws_figures_beside_its_tables(tmp_path, capsys):
    Store(tmp_path / "runs").add(make_record())
    assert main(["leaderboard", "--records", str(tmp_path / "runs"), "--plots", str(tmp_path / "plots")]) == 0
    out, err = capsys.readouterr()
    assert "softmax" in out and "14 files" in err and len(list((tmp_path / "plots").iterdir())) == 14


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "html", "--seeds"], "leave out --seeds"),
        (["--output", "nowhere/page.html"], "lies in no folder that exists"),
        (["--output", "."], "is a folder"),
    ],
)
def test_the_command_refuses_what_it_could_not_do(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

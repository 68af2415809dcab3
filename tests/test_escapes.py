"""Foreign text, in every place where it can enter, is escaped for every format that it is written in."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hostile_texts import TEXTS, as_file_name, hostile_folder, hostile_record, hostile_source, storable
from page_data import text_of
from tiers import covering

from attn_zoo.cli import main
from attn_zoo.escapes import csv_cell, file_words, label, markdown, terminal
from attn_zoo.leaderboard import leaderboard, literature, tables
from attn_zoo.leaderboard.literature import render_published
from attn_zoo.leaderboard.plot import draw
from attn_zoo.records import Store

UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ud800-\udfff\ufeff\ufffe\uffff\U000e0041]"
)
"""Characters that no output may hold: they steer a terminal, are not shown, or are not allowed in XML."""
FORGED = re.compile(r"^\W*attn-zoo: nothing is wrong", re.MULTILINE)
"""Line that only a text with a line break could have written."""
ALL = "".join(TEXTS.values())


def check_lines(text: str, foreign: str) -> None:
    """Check an output of any format: nothing in it is unseen, no line is forged, and the foreign text can be recognised."""
    assert not UNSEEN.search(text)
    assert not FORGED.search(text)
    piece = re.split(r"[\s|<\[]", unescape(terminal(foreign).strip()))[0][:9]
    assert piece in "".join(unescape(text).split()) or not foreign, piece


def check_csv(text: str, foreign: str) -> None:
    check_lines(text, "")
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    check_lines("\n".join(cell for row in rows for cell in row), foreign)
    assert len(rows) == len(text.rstrip("\n").split("\n")), "a row is one line"
    assert len({len(row) for row in rows}) == 1
    for cell in (cell for row in rows for cell in row):
        assert not cell.lstrip().startswith(tuple("=+-@\uff1d")) or re.fullmatch(r"-?[0-9.e-]+", cell), cell


def check_markdown(text: str, foreign: str) -> None:
    check_lines(text, foreign)
    for table in (part for part in text.split("\n\n") if part.startswith("|")):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert not re.search(r"<(script|svg|/style)", text)
    assert "](" not in text.replace(r"]\(", "")


def check_latex(text: str, foreign: str) -> None:
    check_lines(text, foreign)
    live = text.partition("\n\nFiles that were left out")[0]
    assert not [line for line in live.splitlines() if "\\input" in line and not line.startswith("%")]


def check_svg(text: str, foreign: str) -> None:
    check_lines(text, foreign)
    names = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}
    assert names <= {"svg", "title", "style", "defs", "pattern", "rect", "path", "g", "text", "tspan", "use", "clipPath", "image"}


class Elements(HTMLParser):
    """Number of elements of a page by name, and the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names, self.attributes = Counter[str](), set[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] += 1
        self.attributes |= {name for name, _ in attrs}


def check_html(text: str, foreign: str) -> None:
    check_lines(text_of(text), foreign)
    found = Elements(text)
    assert (found.names["script"], found.names["html"]) == (3, 1), "data, library and script"
    assert not {name for name in found.attributes if name.startswith("on") or not re.fullmatch(r"[a-z:-]+|viewbox", name)}


SHOWN = ["softmax", "none"]
CHECKS: dict[str, tuple[list[str], Callable[[str, str], None]]] = {
    "terminal": (["leaderboard", "--wide", "--at", "2", "--equal", "time=5min"], check_lines),
    "overview": (["leaderboard", "--overview"], check_lines),
    "github": (["leaderboard", "--format", "github"], check_markdown),
    "latex": (["leaderboard", "--format", "latex"], check_latex),
    "csv": (["leaderboard", "--format", "csv"], check_csv),
    "svg": (["leaderboard", "--format", "svg"], check_svg),
    "separation": (["leaderboard", "--separation"], check_lines),
    "show": (["show", "RUN"], check_lines),
    "recommend": (["recommend", "--length", "16", "--all"], check_lines),
    "verify": (["records", "verify"], lambda text, foreign: check_lines(text, as_file_name(foreign))),  # it names files alone
    "diff": (["diff", "FOLDER", "FOLDER"], check_lines),
}
"""Words of a command, and the check of what it prints, by format."""
DRAWN = ("clear the screen", "quotes", "mathematics", "underscore", "long", "empty")
"""Texts that pages and pictures are also tested with one by one."""
PAGE = (["leaderboard", "--format", "html"], check_html)


def output(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints about a folder of records; messages on standard error come first, as the check is of lines."""
    run = next(record.run_id for record in Store(folder).load()[0] if record.status == "done")
    given = [{"FOLDER": str(folder), "RUN": run}.get(word, word) for word in words]
    status = main(given if "FOLDER" in words else [*given, "--records", str(folder)])
    said = capsys.readouterr()
    assert status == 0, said.err
    check_lines(said.err, "")
    return said.out


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Path:
    return hostile_folder(tmp_path_factory.mktemp("hostile") / "runs", ALL)


@pytest.mark.parametrize(("words", "check"), CHECKS.values(), ids=CHECKS)
def test_a_format_escapes_all_hostile_texts_together(everything, capsys, words, check):
    check(output(words, everything, capsys), storable(ALL))


@pytest.mark.process
@pytest.mark.parametrize(("kind", "format"), covering(TEXTS, CHECKS))
def test_every_format_escapes(kind, format, tmp_path, capsys):
    words, check = CHECKS[format]
    check(output(words, hostile_folder(tmp_path / "runs", TEXTS[kind]), capsys), storable(TEXTS[kind]))


@pytest.mark.process
@pytest.mark.parametrize("kind", ["all", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in DRAWN)])
def test_pages_and_pictures_escape(kind, tmp_path, capsys):
    text = TEXTS.get(kind, ALL)
    folder = hostile_folder(tmp_path / "runs", text)
    check_html(output(PAGE[0], folder, capsys), storable(text))
    pictures = draw(tables(Store(folder).load()[0]), tmp_path / "plots")
    assert len(pictures) > 8
    for path in (path for path in pictures if path.suffix == ".svg"):
        check_svg(path.read_text(encoding="utf-8"), "")


@pytest.mark.parametrize("words", [["leaderboard", "--format", "json"], ["show", "RUN", "--json"]], ids=["leaderboard", "show"])
def test_json_holds_texts_as_they_are_and_steers_nothing(everything, capsys, words):
    text = output(words, everything, capsys)
    assert text.isascii() and not UNSEEN.search(text)


@pytest.mark.parametrize(
    ("format", "check"),
    [("terminal", check_lines), ("github", check_markdown)],
)
def test_a_published_source_is_escaped(monkeypatch, format, check):
    monkeypatch.setattr(literature, "published_for", lambda task, attention: (hostile_source(storable(ALL)),))
    made = tables([hostile_record(storable(ALL), "softmax", seed) for seed in (1, 2)])
    check(render_published(made, format), storable(ALL))


def test_a_message_with_a_hostile_name_is_one_line(tmp_path, capsys):
    for words in (["show", "ROW"], ["list", "ROW"], ["leaderboard", "--task", "ROW"], ["leaderboard", "--records", "ROW"], ["ROW"]):
        for text in (TEXTS["line feed"], TEXTS["clear the screen"], TEXTS["right to left"]):
            with suppress(SystemExit):
                main([text if word == "ROW" else word for word in words])
            said = capsys.readouterr()
            assert len((said.out + said.err).strip().splitlines()) == 1
            check_lines(said.out + said.err, "")


def test_names_of_300_letters_stay_apart():
    one, other = "t" * 300 + "1", "t" * 300 + "2"
    for shortened in (label, file_words):
        assert shortened(one) != shortened(other)
        assert max(len(shortened(one)), len(shortened(other))) < 100
    assert file_words("a/b") != file_words("a:b")
    assert label("linformer[projected_length=64]") == "linformer[projected_length=64]"


@pytest.mark.process
def test_pictures_of_long_and_equal_names_have_files_of_their_own(tmp_path):
    tasks = ["t" * 300 + "1", "t" * 300 + "2", "digits", "Digits"]
    records = [hostile_record("", "softmax", seed, task=task) for task in tasks for seed in (1, 2)]
    paths = draw(tables(records), tmp_path)
    assert len({path.name.lower() for path in paths}) == len(paths) == len(list(tmp_path.iterdir()))


def test_files_that_are_left_out_are_named_on_one_line(tmp_path):
    (tmp_path / "half\x1b[2J\n.json").write_text("{", encoding="utf-8")
    assert "- half\\x1b[2J\\n.json: the text is not readable" in leaderboard(hostile_folder(tmp_path, "plain"), format="terminal")


def test_escapes_leave_plain_text_as_it_is():
    for text in ("linformer[projected_length=64|128]", "größer als ± 0.1 µs", "ソフト", "p < 0.05"):
        assert terminal(text) == text
    assert markdown("p < 0.05, a|b") == r"p < 0.05, a\|b"
    assert [csv_cell(value) for value in ("-1.5e-3", "=1+1", " @x", "a=b", 3, None)] == ["-1.5e-3", "'=1+1", "' @x", "a=b", 3, None]
    assert terminal("a\x1b[0m\u202eb\nc\ud800") == "a\\x1b[0m\\u202eb\\nc\\ud800"


def test_a_cell_is_escaped_after_its_conversion_to_text():
    class Formula:
        def __str__(self) -> str:
            return "=cmd|' /C calc'!A0"

    assert csv_cell(Formula()) == "'=cmd|' /C calc'!A0"
    assert csv_cell("\t=1") == "\\t=1" and csv_cell("\r\n") == "\\r\\n"

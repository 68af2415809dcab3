"""Readers of labelled texts, fetching from the hub, and digests of files: contents, and errors about damage."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from types import SimpleNamespace

import pytest

from attn_zoo.contract import DamagedDataError
from attn_zoo.data import folder_digest
from attn_zoo.data.hub import fetch_lines, fetch_rows
from attn_zoo.data.labelled_text import LabelledText, read_labelled_jsonl, read_labelled_tsv, read_text_folder, require_count

CLASSES = {"no": 0, "yes": 1}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_json_lines_are_read_packed_or_not_and_only_a_newline_ends_a_line(tmp_path):
    lines = '{"label": "yes", "a": "one\u2028two\\r\\nthree", "b": "é"}\n{"label": "no", "a": "", "b": "x"}\n'
    plain = write(tmp_path / "rows.jsonl", lines)
    packed = tmp_path / "rows.jsonl.xz"
    packed.write_bytes(lzma.compress(lines.encode()))
    expected = [LabelledText(1, ("one\u2028two\r\nthree", "é")), LabelledText(0, ("", "x"))]
    for path in (plain, packed):
        assert list(read_labelled_jsonl(path, ["a", "b"], CLASSES)) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"label": "maybe", "a": "x"}', "line 2: the label must be one of no, yes; got 'maybe'"),
        ('{"label": "no", "a": 3}', "line 2: each text must be a string; got int"),
        ('{"label": "no", "a": "\\ud800"}', "line 2 must be valid UTF-8 text, but holds a character that UTF-8 cannot encode"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, said):
    path = write(tmp_path / "rows.jsonl", '{"label": "no", "a": "x"}\n' + line + "\n")
    with pytest.raises(DamagedDataError, match=said) as error:
        list(read_labelled_jsonl(path, ["a"], CLASSES))
    assert str(path) in str(error.value)


def test_a_part_with_fewer_rows_than_published_is_refused():
    with pytest.raises(DamagedDataError, match=r"must hold 1,000 examples, as published, but holds 1"):
        require_count("part", [LabelledText(0, ("x",))], 1000)


def test_tables_are_parted_by_tabs_and_quotation_marks_mean_nothing(tmp_path):
    path = write(tmp_path / "rows.tsv", 'id\ttext\tlabel\n1\t"open\tyes\r\n2\tnever closed"\tno\n')
    assert list(read_labelled_tsv(path, (1,), 2, CLASSES, 3)) == [LabelledText(1, ('"open',)), LabelledText(0, ('never closed"',))]
    assert len(list(read_labelled_tsv(write(tmp_path / "x", "1\ta\tyes\n"), (1,), 2, CLASSES, 3, header=False))) == 1
    write(path, "id\ttext\tlabel\n1\ta\tyes\n2\tb\n3\tc\tno\n")
    with pytest.raises(DamagedDataError, match="line 3 must have 3 columns, but has 2"):
        list(read_labelled_tsv(path, (1,), 2, CLASSES, 3))
    assert [row.texts for row in read_labelled_tsv(path, (1,), 2, CLASSES, 3, skip_broken=True)] == [("a",), ("c",)]


def test_folders_hold_a_text_a_file(tmp_path):
    write(tmp_path / "10_1.txt", "ten\n")
    write(tmp_path / "1_9.txt", "one\r\n")
    write(tmp_path / "notes.md", "no text")
    assert list(read_text_folder(tmp_path, 1)) == [LabelledText(1, ("ten\n",)), LabelledText(1, ("one\r\n",))]
    (tmp_path / "2_2.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedDataError, match=r"2_2\.txt is not UTF-8 text"):
        list(read_text_folder(tmp_path, 1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedDataError, match=r"empty must hold one \.txt file for each text"):
        list(read_text_folder(tmp_path / "empty", 0))


def test_a_folder_has_the_digest_of_its_names_and_contents(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name / "a" / "x.txt", "text")
    assert folder_digest(tmp_path / "one") == folder_digest(tmp_path / "two")
    write(tmp_path / "two" / "a" / "x.txt", "Text")
    changed = folder_digest(tmp_path / "two")
    (tmp_path / "two" / "a" / "x.txt").rename(tmp_path / "two" / "a" / "y.txt")
    assert len({folder_digest(tmp_path / "one"), changed, folder_digest(tmp_path / "two")}) == 3


@pytest.fixture
def hub(monkeypatch):
    """Fake of ``load_dataset``: the tables that it returns, by split, and its recorded arguments."""
    datasets = pytest.importorskip("datasets")
    served = SimpleNamespace(tables={}, asked=[])

    def load_dataset(name, config=None, *, split):
        served.asked.append((name, config, split))
        return datasets.Dataset.from_dict(served.tables[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return served


def test_rows_of_the_hub_become_json_lines_that_are_read_again(tmp_path, hub):
    hub.tables = {"train": {"text": ["é\u2028x", "b"], "label": [1, 0], "idx": [0, 1]}, "test": {"text": ["c"], "label": [0]}}
    files = {"train": tmp_path / "new" / "train.jsonl", "test": tmp_path / "new" / "test.jsonl"}
    fetch_rows("who/what", files, {"label": "label", "text": "a"}, config="part", rows={"train": 2})
    assert hub.asked == [("who/what", "part", "train"), ("who/what", "part", "test")]
    found = list(read_labelled_jsonl(files["train"], ["a"], {"0": 0, "1": 1}))
    assert found == [LabelledText(1, ("é\u2028x",)), LabelledText(0, ("b",))]
    assert json.loads(files["test"].read_text())["a"] == "c"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["test.jsonl", "train.jsonl"]


def test_what_the_hub_sends_short_is_not_kept(tmp_path, hub):
    hub.tables = {"train": {"text": ["a"], "label": [1]}}
    with pytest.raises(ValueError, match="must have 2 examples, as published, but was sent with 1"):
        fetch_rows("who/what", {"train": tmp_path / "x.jsonl"}, {"text": "text", "label": "label"}, rows={"train": 2})
    with pytest.raises(ValueError, match="split train must have the columns sentence; it has only text, label"):
        fetch_rows("who/what", {"train": tmp_path / "x.jsonl"}, {"sentence": "text"})
    assert not list(tmp_path.iterdir())


def test_running_text_of_the_hub_keeps_its_lines(tmp_path, hub):
    hub.tables = {"test": {"text": ["", " = Title = \n", " words \n"]}}
    fetch_lines("who/what", {"test": tmp_path / "test.txt"})
    assert (tmp_path / "test.txt").read_text() == " \n = Title = \n words \n"

"""Reading of data files: compressed or not, whole or damaged, present or missing."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from attn_zoo.contract import DamagedDataError, DataSet, Layout, MissingDataError
from attn_zoo.data import cached, data_root, open_text, read_bytes, read_jsonl, sha256

TEXT = "première ligne\rstill the first\nzweite Zeile\u2028still the second\n"


def write(path: Path, raw: bytes) -> Path:
    packed = {".gz": gzip.compress(raw), ".xz": lzma.compress(raw)}
    path.write_bytes(packed.get(path.suffix, raw))
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz"])
def test_text_is_the_same_packed_or_not_and_only_a_newline_ends_a_line(name, tmp_path):
    path = write(tmp_path / name, TEXT.encode())
    with open_text(path) as lines:
        assert [line.rstrip("\n") for line in lines] == TEXT.split("\n")[:2]
    assert read_bytes(path) == TEXT.encode()


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.xz"])
def test_a_file_cut_short_is_named(name, tmp_path):
    path = write(tmp_path / name, json.dumps({"text": "x" * 5000, "label": 1}).encode() + b"\n")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DamagedDataError, match=rf"{name} is not whole UTF-8 text"):
        list(read_jsonl(path, ("text",)))
    with pytest.raises(DamagedDataError, match=rf"{name} is not a whole file"):
        read_bytes(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"', "line 2 must be JSON"),
        ('{"text": "a"}', "line 2 must be an object with text, label; it lacks label"),
        ('["a", 1]', "line 2 must be an object with text, label; it lacks label, text"),
    ],
)
def test_a_bad_line_is_named_with_what_belongs_there(line, words, tmp_path):
    path = write(tmp_path / "a.jsonl", ('{"text": "b", "label": 0}\n' + line + "\n").encode())
    with pytest.raises(DamagedDataError, match=words):
        list(read_jsonl(path, ("text", "label")))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = write(tmp_path / "a.txt", b"abc\xff\xfe\n")
    with pytest.raises(DamagedDataError, match=r"a.txt is not whole UTF-8 text"), open_text(path) as lines:
        list(lines)


def test_the_data_folder_is_the_one_named_then_the_variable_then_data(monkeypatch):
    monkeypatch.delenv("ATTN_ZOO_DATA", raising=False)
    assert data_root() == Path("data")
    monkeypatch.setenv("ATTN_ZOO_DATA", "elsewhere")
    assert (data_root(), data_root("here")) == (Path("elsewhere"), Path("here"))


def lines_of(paths):
    return [row["text"] for path in paths for row in read_jsonl(path, ("text",))]


SOME = DataSet(
    "some",
    "Some Texts",
    "nobody, 2020",
    "none",
    (
        Layout("JSON lines", (("some/one.jsonl.xz", "some/one.jsonl"), ("some/two.jsonl",)), lines_of),
        Layout("one file", (("some.jsonl",),), lines_of),
    ),
    obtain="ask its author for it",
)


def test_a_data_set_is_found_under_any_name_of_any_layout(tmp_path):
    (tmp_path / "some").mkdir()
    write(tmp_path / "some/one.jsonl", b'{"text": "1"}\n')
    with pytest.raises(MissingDataError, match=r"some/two.jsonl is missing below .*, where the rest of JSON lines is present"):
        SOME.load(tmp_path)
    write(tmp_path / "some.jsonl", b'{"text": "3"}\n')
    assert SOME.load(tmp_path) == ["3"], "the whole layout goes before the one that is begun"
    write(tmp_path / "some/two.jsonl", b'{"text": "2"}\n')
    assert SOME.load(tmp_path) == ["1", "2"]


def test_a_missing_data_set_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        SOME.load(tmp_path)
    said = str(caught.value)
    for part in ("Some Texts", str(tmp_path), "some/one.jsonl.xz or some/one.jsonl", "some.jsonl", "ask its author", "data.root="):
        assert part in said


def test_a_damaged_data_set_is_named_with_its_file(tmp_path):
    write(tmp_path / "some.jsonl", b"{")
    with pytest.raises(DamagedDataError, match=r"Some Texts: .*some.jsonl, line 1 must be JSON.*data prepare some"):
        SOME.load(tmp_path)


@pytest.fixture
def made(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_ZOO_CACHE", str(tmp_path / "cache"))
    calls = []

    def make():
        calls.append(1)
        return {"ids": np.arange(6, dtype=np.uint8).reshape(2, 3).T, "labels": np.array([1, 0])}

    return make, calls, tmp_path / "cache"


def test_what_was_made_before_is_not_made_again(made):
    make, calls, folder = made
    first, again = (cached("some", {"version": 1}, make) for _ in range(2))
    assert len(calls) == 1 and len(list(folder.iterdir())) == 1
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert array.dtype == again[name].dtype
    cached("some", {"version": 2}, make)
    cached("other", {"version": 1}, make)
    assert len(calls) == 3


def test_a_damaged_cache_is_made_again(made):
    make, calls, folder = made
    cached("some", {}, make)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for broken in (whole[:-1], b"", whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]):
        path.write_bytes(broken)
        before = len(calls)
        np.testing.assert_array_equal(cached("some", {}, make)["labels"], [1, 0])
        assert len(calls) == before + 1
        assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(made, monkeypatch, tmp_path):
    make, calls, _ = made
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for given in (str(tmp_path / "file" / "below"), "off"):
        monkeypatch.setenv("ATTN_ZOO_CACHE", given)
        cached("some", {}, make)
        cached("some", {}, make)
    assert len(calls) == 4


def test_a_digest_is_of_the_bytes_as_they_lie(tmp_path):
    path = write(tmp_path / "a", b"abc")
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

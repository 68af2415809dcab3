"""Packed records: commands read them as they read a folder, and those in the package equal the committed records."""

from __future__ import annotations

import json
import lzma

import pytest
from committed import ROOT, records_in
from make import make_record
from readme import is_current

from attn_zoo import reference
from attn_zoo.cli.main import main
from attn_zoo.leaderboard import leaderboard, render, tables
from attn_zoo.records import RecordError, Store
from attn_zoo.records.packed import pack, unpack


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "runs")
    for name, test in (("softmax", 0.9), ("linformer", 0.8), ("none", 0.1)):
        store.add(make_record(name, test=test))
    store.add(make_record("performer", status="diverged"))
    return tmp_path / "runs"


@pytest.fixture
def packed(folder):
    path = folder.parent / "some.jsonl.xz"
    pack(Store(folder).load()[0], path)
    return path


@pytest.mark.docs
@pytest.mark.parametrize("name", reference.SETS)
def test_the_reference_records_are_the_committed_ones(name):
    wanted, path = records_in(name), reference.packed_file(name)
    assert path.is_file() == bool(wanted), "stale; run: python tests/readme.py"
    assert not wanted or is_current(path, wanted), "stale; run: python tests/readme.py"
    if wanted:
        assert render(tables(unpack(path)), "json") == render(tables(wanted), "json")


def test_the_reference_transplant_is_the_committed_one():
    assert reference.TRANSPLANT.read_bytes() == (ROOT / "results" / "transplant.json").read_bytes(), "run: python tests/readme.py"


def test_a_stale_packed_file_is_noticed(folder, packed):
    records = Store(folder).load()[0]
    assert is_current(packed, records)
    assert not is_current(packed, records[1:]) and not is_current(folder / "none.jsonl.xz", records)
    pack([make_record("softmax", test=0.91, source="other.json"), *records[1:]], packed)
    assert not is_current(packed, records)


def test_a_packed_file_holds_every_field_and_the_names_of_the_files(folder, packed):
    wanted = Store(folder).load()
    found = Store(packed).load()
    assert found == wanted and [r.source for r in found[0]] == [r.source for r in wanted[0]]
    assert leaderboard(packed, format="csv") == leaderboard(folder, format="csv")


@pytest.mark.parametrize("sources", [[None, "b.json"], ["", "b.json"], ["a.json", "a.json"], [1, 2], [["a"], "b.json"]], ids=str)
def test_each_packed_record_has_a_file_of_its_own(tmp_path, sources):
    records = [make_record(seed=seed, source=source) for seed, source in zip((1, 2), sources, strict=True)]
    with pytest.raises(ValueError, match="a source file of its own"):
        pack(records, tmp_path / "some.jsonl.xz")
    lines = [json.dumps({"source": source, "record": record.to_dict()}) for source, record in zip(sources, records, strict=True)]
    (tmp_path / "some.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    with pytest.raises(RecordError, match="a source file of its own"):
        unpack(tmp_path / "some.jsonl.xz")


def test_a_file_name_that_is_not_text_is_packed_as_an_escape(tmp_path):
    pack([make_record(source="half\udc9b.json")], tmp_path / "some.jsonl.xz")
    assert unpack(tmp_path / "some.jsonl.xz")[0].source == "half\\udc9b.json"


@pytest.mark.parametrize("command", [["leaderboard", "--records"], ["findings", "--records"], ["show", "linformer", "--records"]])
def test_commands_read_a_packed_file_as_a_folder(folder, packed, capsys, command):
    assert main([*command, str(folder)]) == 0
    expected = capsys.readouterr().out
    assert main([*command, str(packed)]) == 0
    assert capsys.readouterr().out == expected


def test_diff_reads_packed_files(folder, packed, capsys):
    assert main(["diff", str(packed), str(folder)]) == 0
    assert "linformer" in capsys.readouterr().out


def test_a_page_of_packed_records_links_no_files(folder, packed, capsys):
    for records in (folder, packed):
        page = folder.parent / f"{records.name}.html"
        assert main(["leaderboard", "--records", str(records), "--format", "html", "--output", str(page)]) == 0
        assert ('href="runs/linformer-' in page.read_text(encoding="utf-8")) == (records == folder)
        assert "some.jsonl.xz/" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"no archive",
        lambda whole: lzma.compress(b'{"source": "a.json"}\n'),
        lambda whole: lzma.compress(json.dumps({"source": "a.json", "record": {"schema": 1}}).encode()),
        lambda whole: lzma.compress(b"not JSON"),
    ],
    ids=["cut short", "no archive", "no record", "half a record", "no JSON"],
)
def test_a_damaged_packed_file_is_refused_whole(packed, capsys, damage):
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(RecordError, match=r"some\.jsonl\.xz is not a complete file of packed records"):
        Store(packed).load()
    assert main(["leaderboard", "--records", str(packed)]) == 2
    assert "get it again" in capsys.readouterr().err


def test_a_packed_file_is_told_by_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.jsonl\.xz; got 'records\.json'"):
        pack([], tmp_path / "records.json")


@pytest.mark.docs
def test_the_reference_is_shown_without_a_folder_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = reference.shipped()[0]
    assert main(["leaderboard", "--reference", "--format", "csv"]) == 0
    assert capsys.readouterr().out.strip() == leaderboard(ROOT / "results" / first, format="csv").strip()
    assert main(["leaderboard", "--reference", "quickstart", "--overview"]) == 0
    assert "linformer" in capsys.readouterr().out
    assert main(["findings", "--reference", "quickstart"]) == 0
    assert "similarity of passages" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["leaderboard", "findings"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reference", "--records", "runs"], "give one of the two"),
        (["--reference", "nothing"], "--reference takes quickstart"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(command, words, said, capsys):
    assert main([command, *words]) == 2
    assert said in capsys.readouterr().err.replace("profile or ", "")


def test_an_installation_without_reference_records_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "packed_file", lambda name: tmp_path / name)
    assert main(["leaderboard", "--reference"]) == 2
    assert "this installation has no records" in capsys.readouterr().err

"""Packed records: commands read them as they read a folder, and those in the package equal the committed records."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from committed import ROOT, newer_records, profile_records, task_place, until_criterion
from make import make_record, records_of, stored
from readme import shipped_files

from attn_zoo import reference
from attn_zoo.cli.main import main
from attn_zoo.leaderboard import leaderboard
from attn_zoo.records import RecordError, Store
from attn_zoo.records.files import NAME, pack, unpack
from attn_zoo.records.verify import verify


@pytest.fixture
def folder(tmp_path):
    scored = records_of({"softmax": (0.9,), "linformer": (0.8,), "none": (0.1,)})
    stored(tmp_path / "runs", [*scored, make_record("performer", status="diverged")])
    return tmp_path / "runs"


@pytest.fixture
def packed(folder):
    path = folder.parent / "some.jsonl.xz"
    pack(Store(folder).load()[0], path)
    return path


@pytest.mark.docs
def test_the_reference_is_made_from_committed_results():
    stale = [file.name for file, content in shipped_files().items() if file.read_bytes() != content]
    assert stale == [], "run: python tests/readme.py"


def test_a_task_of_the_profile_has_records_of_one_protocol():
    protocols = {(task_place(record), record.protocol) for record in profile_records()}
    assert len(protocols) == len({place for place, _ in protocols}) >= 12


@pytest.mark.parametrize("name", ["cosformer", "uniform"])
def test_a_task_changes_over_once_all_main_rows_and_controls_have_their_seeds(name):
    place = ("copying", "bidirectional")
    assert place in until_criterion(newer_records())
    without_one = [r for r in newer_records() if (r.spec.attention, task_place(r), r.spec.seed) != (name, place, 1)]
    assert place not in until_criterion(without_one)


def test_committed_records_are_packed():
    loose = [path.name for folder in (ROOT / "results").iterdir() if folder.is_dir() for path in folder.rglob("*.json")]
    assert loose == [], "run: attn-zoo records pack --records FOLDER"


def test_a_packed_file_holds_every_field_and_the_names_of_the_files(folder, packed):
    wanted = Store(folder).load()
    found = Store(packed).load()
    assert found == wanted and [r.source for r in found[0]] == [r.source for r in wanted[0]]
    assert leaderboard(packed, format="csv") == leaderboard(folder, format="csv")


@pytest.mark.parametrize("sources", [[None, "b.json"], ["", "b.json"], ["a.json", "a.json"], [1, 2], [["a"], "b.json"]], ids=str)
def test_each_packed_record_has_a_file_of_its_own(tmp_path, sources):
    records = [make_record(seed=seed, source=source) for seed, source in zip((1, 2), sources, strict=True)]
    with pytest.raises(ValueError, match="source files of packed records must have different names"):
        pack(records, tmp_path / "some.jsonl.xz")
    lines = [json.dumps({"source": source, "record": record.to_dict()}) for source, record in zip(sources, records, strict=True)]
    (tmp_path / "some.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    with pytest.raises(RecordError, match="source files of packed records must have different names"):
        unpack(tmp_path / "some.jsonl.xz")


@pytest.mark.parametrize("command", [["leaderboard", "--records"], ["recommend", "--records"], ["show", "linformer", "--records"]])
def test_commands_read_a_packed_file_as_a_folder(folder, packed, capsys, command):
    assert main([*command, str(folder)]) == 0
    expected = capsys.readouterr().out
    assert main([*command, str(packed)]) == 0
    assert capsys.readouterr().out == expected


def test_a_packed_folder_is_read_as_before_and_unpacked_to_the_same_records(folder, capsys):
    before, page = Store(folder).load(), leaderboard(folder, format="csv")
    assert main(["records", "pack", "--records", str(folder)]) == 0
    assert "4 records in" in " ".join(capsys.readouterr().out.split())
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert Store(folder).load() == before and leaderboard(folder, format="csv") == page
    assert [record.source for record in Store(folder).load()[0]] == [record.source for record in before[0]]
    assert verify(folder).clean and verify(folder).records == 4
    assert main(["records", "unpack", "--records", str(folder)]) == 0
    assert "4 records written to" in " ".join(capsys.readouterr().out.split())
    assert {path.name for path in folder.iterdir()} == {record.source for record in before[0]}
    assert Store(folder).load() == before


def test_packed_runs_are_not_repeated_and_new_ones_stand_beside_them(folder):
    store = Store(folder)
    store.pack()
    assert store.finished(make_record("linformer").run_id) and not store.finished(make_record("linformer", seed=2).run_id)
    store.add(make_record("linformer", "text", seed=2))
    assert len(store.load()[0]) == 5 and [r.spec.seed for r in store.load("text")[0]] == [2]
    assert [r.spec.attention for r in store.load("digits", "none")[0]] == ["none"]
    store.pack()
    assert [path.name for path in folder.iterdir()] == [NAME] and len(store.load()[0]) == 5


def test_records_of_folders_within_are_packed_together(tmp_path):
    for name in "ab":
        Store(tmp_path / name).add(make_record(name))
    Store(tmp_path / "a").pack()
    before = Store(tmp_path).load()
    Store(tmp_path).pack()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / NAME]
    assert Store(tmp_path).load() == before and str(before[0][0].source).startswith("a/a-digits-s1-")
    Store(tmp_path).unpack()
    assert Store(tmp_path).load() == before and (tmp_path / str(before[0][1].source)).is_file()


def test_a_pack_that_was_cut_short_doubles_no_record(folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    Store(folder).pack()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert len(Store(folder).load()[0]) == 4 and verify(folder).clean
    Store(folder).pack()
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_copy_of_a_packed_file_doubles_no_record_and_is_packed_again(folder):
    before = Store(folder).load()
    Store(folder).pack()
    (folder / "backup.jsonl.xz").write_bytes((folder / NAME).read_bytes())
    assert Store(folder).load() == before and verify(folder).clean
    Store(folder).pack()
    assert [path.name for path in folder.iterdir()] == [NAME] and Store(folder).load() == before


@pytest.mark.parametrize("what", ["pack", "unpack"])
def test_records_are_read_once_and_whole_while_another_process_packs_or_unpacks_them(folder, monkeypatch, what):
    before = Store(folder).load()
    if what == "unpack":
        Store(folder).pack()
    files = Store._files

    def moving(store: Store, pattern: str) -> list[Path]:
        found = list(files(store, pattern))
        if pattern == "*.json":  # they are listed, and then moved
            monkeypatch.setattr(Store, "_files", files)
            getattr(Store(folder), what)()
        return found

    monkeypatch.setattr(Store, "_files", moving)
    assert Store(folder).load() == before


def test_a_damaged_file_hides_no_packed_record_of_its_name(folder):
    records, _ = Store(folder).load()
    Store(folder).pack()
    cut = folder / str(records[0].source)
    cut.write_text("{", encoding="utf-8")
    assert Store(folder).load()[0] == records and Store(folder).finished(records[0].run_id)
    Store(folder).pack()
    assert Store(folder).load()[0] == records and cut.read_text(encoding="utf-8") == "{", "a damaged file stays"
    Store(folder).unpack()
    assert Store(folder).load() == (records, [])


def test_damaged_files_stay_beside_a_packed_file_and_a_damaged_one_is_named(folder, capsys):
    (folder / "cut.json").write_text("{", encoding="utf-8")
    assert main(["records", "pack", "--records", str(folder)]) == 0
    assert "cut.json" in capsys.readouterr().err and {path.name for path in folder.iterdir()} == {NAME, "cut.json"}
    (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-50])
    Store(folder).add(make_record("linear"))
    records, damaged = Store(folder).load()
    assert len(records) == 1 and {item.path.name for item in damaged} == {NAME, "cut.json"}
    assert {finding.files for finding in verify(folder).findings} == {(NAME,), ("cut.json",)}
    with pytest.raises(RecordError, match="Get the file again"):
        Store(folder).pack()


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_folder_is_packed_by_one_process_at_a_time(folder, capsys, command):
    Store(folder / "within").add(make_record("linear"))
    Store(folder / "within").pack()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with Store(folder).claim("packing"):
        assert main(["records", command, "--records", str(folder)]) == 2
        assert "is being packed or unpacked by another process" in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_folder_without_records_to_pack_is_refused(tmp_path, capsys, command):
    assert main(["records", command, "--records", str(tmp_path)]) == 2
    assert str(tmp_path) in "".join(capsys.readouterr().err.split("\n"))


@pytest.mark.parametrize("source", ["../out.json", "/out.json", "a/../../out.json"])
def test_no_packed_record_is_written_outside_its_folder(tmp_path, source):
    with pytest.raises(ValueError, match="must be inside the folder"):
        pack([make_record(source=source)], tmp_path / NAME)
    line = json.dumps({"source": source, "record": make_record().to_dict()})
    (tmp_path / NAME).write_bytes(lzma.compress(line.encode()))
    with pytest.raises(RecordError, match="must be inside the folder"):
        Store(tmp_path).unpack()


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
    with pytest.raises(RecordError, match=r"some\.jsonl\.xz must be a complete file of packed records"):
        Store(packed).load()
    assert main(["leaderboard", "--records", str(packed)]) == 2
    assert "Get the file again" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["pack", "unpack"])
def test_a_packed_file_in_place_of_its_folder_is_refused_in_words(action, packed, capsys):
    before = packed.read_bytes()
    assert main(["records", action, "--records", str(packed)]) == 2
    assert "must be a folder, but is a file. Name the folder that holds the file" in capsys.readouterr().err
    assert packed.read_bytes() == before


@pytest.mark.docs
def test_the_reference_is_shown_without_a_folder_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = reference.shipped()[0]
    assert main(["leaderboard", "--reference", "--format", "csv"]) == 0
    assert capsys.readouterr().out.strip() == leaderboard(reference.packed_file(first), format="csv").strip()
    assert main(["leaderboard", "--reference", "quickstart", "--overview"]) == 0
    assert "linformer" in capsys.readouterr().out
    assert main(["recommend", "--reference", "quickstart"]) == 0
    assert "similarity of passages" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["leaderboard", "recommend"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reference", "--records", "runs"], "Leave one of them out"),
        (["--reference", "nothing"], "--reference must be quickstart"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(command, words, said, capsys):
    assert main([command, *words]) == 2
    assert said in capsys.readouterr().err.replace("profile or ", "")

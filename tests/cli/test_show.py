"""``attn-zoo show``: a row by any of its names, all that is known of it, and a command that is the same run."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from make import make_record, records_of, stored
from omegaconf import OmegaConf

from attn_zoo.cli import main
from attn_zoo.cli.run import plan
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.show import find
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.registry import task_card
from attn_zoo.runner import resolve_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three seeds of softmax, two of linformer and one that failed, and a control, on two tasks."""
    folder, doubt = tmp_path_factory.mktemp("show") / "runs", "k is as long as the input"
    for task in ("digits", "text"):
        stored(folder, records_of({"softmax": (0.90, 0.91, 0.92), "uniform": (0.80, 0.81, 0.82)}, task))
        stored(folder, records_of({"linformer": (0.81, 0.82)}, task, warnings=(doubt,)))
        stored(folder, [make_record("linformer", task, 3, status="diverged")])
    return folder


def show(folder: Path, *words: str) -> int:
    return main(["show", *words, "--records", str(folder)])


def test_a_row_begins_with_what_a_reviewer_checks(folder, capsys):
    assert show(folder, "linformer@digits") == 0
    out = capsys.readouterr().out
    facts = [line for line in out.splitlines() if line and not line.startswith(" ")]
    names = ["status", "score", "chance", "verdict", "seed 1", "seed 2", "seed 3", "warnings", "data", "code", "ran as", "machine"]
    assert [line[:10].strip() for line in facts[1 : len(names) + 1]] == names
    for told in (
        "linformer on Digits",
        "2 of 3 seeds done; diverged with seed 3: because of diverged",
        "accuracy 81.5 ± 6.4 % over 2 seeds; +0.5 ± 2.5 over the best control, uniform",
        "no verdicts, because fewer than two contenders have 3 seeds and a score at every seed",
        "k is as long as the input",
        "digitstest" * 4,
        "Some CPU, 2 threads, torch 2.15.0",
        "attn-zoo run -m attention=linformer attention.dial=1 task=digits",
        "seed=1,2,3",
        "--json prints all that is recorded",
    ):
        assert told in out, told
    assert "linformer on Text" not in out


def test_a_row_of_a_plugin_names_its_code(tmp_path, capsys):
    record = make_record("softmax", test=0.9)
    digest = "0123abcd" * 8
    stored(tmp_path, [replace(record, environment={**record.environment, "plugins": {"mine.py": digest}})])
    assert show(tmp_path, "softmax") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"; mine.py, SHA-256 {digest}" in said
    assert "with these plugins, installed or given as plugin=PATH: mine.py" in said


def test_json_has_the_records_of_all_runs_as_they_were_written(folder, capsys):
    assert show(folder, "linformer@digits", "--json") == 0
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("linformer-digits-*.json")]
    assert json.loads(capsys.readouterr().out) == sorted(files, key=lambda record: record["spec"]["seed"])


def test_a_name_alone_means_every_task(folder, capsys):
    assert show(folder, "softmax") == 0
    out = capsys.readouterr().out
    assert "softmax on Digits" in out
    assert "softmax on Text" in out


def test_a_run_id_its_beginning_and_a_file_mean_one_run(folder, capsys):
    path = next(folder.glob("softmax-digits-s2-*.json"))
    run_id = json.loads(path.read_text(encoding="utf-8"))["run_id"]
    texts = []
    for words in ([run_id], [run_id[:6]], [str(path)]):
        assert show(folder, *words) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1
    assert "accuracy 91.0 % over 1 seed\n" in texts[0]
    assert "attn-zoo run attention=softmax" in texts[0], "one run needs no sweep"


def test_bad_names_and_files_are_refused_with_what_there_is(folder, capsys, tmp_path):
    assert show(folder, "linfomer") == 2
    assert "Recorded: linformer@digits, linformer@text, softmax@digits" in capsys.readouterr().err
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    assert show(folder, str(broken)) == 2
    assert "broken.json: the text is not readable as JSON" in capsys.readouterr().err


def test_without_records_the_error_names_the_folder_and_the_records_of_the_package(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "long_short"]) == 2
    assert "the folder of records 'runs' does not exist. Name your own folder" in capsys.readouterr().err
    Path("runs").mkdir()
    assert main(["show", "long_short", "--json"]) == 2
    assert "the folder of records 'runs' holds no records. Name your own folder" in capsys.readouterr().err
    assert main(["show", "long_short", "--reference"]) == 0


def test_rows_that_differ_in_an_option_have_names_of_their_own(tmp_path):
    records = stored(tmp_path, [make_record("linformer", spec_options={"k": k}) for k in (8, 16)])
    assert len(find("linformer", records)) == 2
    ((_, shown),) = find("linformer k=16@digits", records)
    assert shown.options == {"k": 16}
    for wanted in ("linformer[k=16]@digits", "linformer:eager[k=16]"):
        assert [row.label for _, row in find(wanted, records)] == [shown.label]
    assert len(find("linformer[k=8|16]", records)) == 2
    for wanted in ("linformer[k=9]", "linformer[j=8]", "linformer:triton", "linformer[k=16]@text"):
        with pytest.raises(ValueError, match="there is no record of"):
            find(wanted, records)


def test_the_command_carries_every_kind_of_value():
    spec = resolve_spec(
        RunSpec(
            attention="linformer",
            task="listops",
            options={"projected_lengths": "8+4+2/4", "sharing": "none", "projection": "mean", "dropout": 1e-05},
            task_options={"length": 40, "shortest": 1 / 3, "train": 100, "valid": 20, "test": 20},
            implementation="sdpa",
            model=ModelSpec(dim=48, depth=2, heads=3, mlp_ratio=1.5, dropout=0.25),
            budget=Budget(steps=7, learning_rate=3e-07, max_seconds=0.125),
            seed=4,
            precision="bf16",
        )
    )
    version = task_card("listops").version
    planned = plan(shlex.split(command(spec))[2:])
    assert planned.specs == (spec,)
    swept = plan(shlex.split(command(spec, [4, 5, 6]))[2:])
    assert swept is not None
    assert [s.run_id(version) for s in swept.specs] == [replace(spec, seed=seed).run_id(version) for seed in (4, 5, 6)]


@pytest.mark.parametrize(
    "text",
    ["", "a b", "it's", "back\\slash", "end\\", "\\'", "\\\\'x", "8,16", "[1]", "{a:1}", "a=b", "true", "NULL", "1e-3", "007"]
    + ["$x", "x#y", "é", '"q"', " lead", "a\nb", "none", "mean", "--flag", "*", "~"],
)
def test_strings_reach_hydra_through_the_shell_as_they_are(text):
    assert read_by_hydra(text) == text


def test_what_looks_like_an_interpolation_is_none():
    assert OmegaConf.create({"seed": 1, "text": read_by_hydra("${seed}")}).text == "${seed}"


def read_by_hydra(text: str) -> object:
    """Return the value that Hydra reads of a string in a command."""
    words = shlex.split(command(RunSpec("a", "t", options={"text": text})))
    (override,) = OverridesParser.create().parse_overrides([word for word in words if word.startswith("attention.text=")])
    return override.value()

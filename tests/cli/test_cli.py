"""What people type: sweeps that resume, keys that are checked, errors in one line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import HANG
from run_helpers import zoo

from attn_zoo.cli.main import COMMANDS, parser
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.plot import AXES, curves_of
from attn_zoo.records import Store

SMALL = ["budget.steps=6", "budget.evaluate_every=3", "model.dim=16", "model.heads=2"]
LISTOPS = ["task=listops", "task.length=24", "task.train=200", "task.valid=50", "task.test=50"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, tuple[int, str, str]]:
    folder = tmp_path_factory.mktemp("swept")
    return folder, zoo("run", "-m", "attention=softmax,none", "seed=1,2", "task=digits", *SMALL, folder=folder)


def test_a_sweep_ends_with_its_leaderboard(swept):
    folder, (status, output, errors) = swept
    assert status == 0, errors
    assert output.startswith("4 runs, 0 of them recorded already, 4 to do")
    assert "Digits (patches)" in output
    assert "none (c)" in output
    assert len(list((folder / "runs").glob("*.json"))) == 4
    record = json.loads(next((folder / "runs").glob("softmax*.json")).read_text(encoding="utf-8"))
    assert record["environment"]["command"].startswith("attn-zoo run -m attention=softmax,none")
    assert record["spec"]["budget"]["steps"] == 6
    assert record["spec"]["budget"]["learning_rate"] == 4e-3, "what is not given comes from the task's level"


def test_the_same_command_again_does_nothing_twice(swept):
    folder, _ = swept
    _, output, errors = zoo("run", "-m", "attention=softmax,none", "seed=1,2,3", "task=digits", *SMALL, folder=folder)
    assert output.startswith("6 runs, 4 of them recorded already, 2 to do"), errors
    assert output.count("recorded already") == 5
    assert len(list((folder / "runs").glob("*.json"))) == 6


def test_a_sweep_holds_several_settings_of_one_mechanism_which_make_a_curve(tmp_path):
    rows = "attention=linformer[projected_length=4|8],linformer:sdpa[projected_length=4],softmax"
    status, output, errors = zoo("run", "-m", rows, "seed=1,2", *LISTOPS, *SMALL, folder=tmp_path)
    assert status == 0, errors
    assert output.startswith("8 runs, 0 of them recorded already")
    records, _ = Store(tmp_path / "runs").load()
    found = {(r.spec.attention, r.spec.options.get("projected_length"), r.spec.implementation) for r in records}
    assert found == {("linformer", 4, "auto"), ("linformer", 8, "auto"), ("linformer", 4, "sdpa"), ("softmax", None, "auto")}
    assert {str(r.environment["command"]).split()[3] for r in records} == {rows}
    (table,) = tables(records)
    curves = [rows for rows in curves_of(table, AXES["FLOPs"]) if len(rows) > 1]
    assert [[row.options["projected_length"] for row in rows] for rows in curves] == [[4, 8]]


def test_a_request_beyond_the_card_is_a_cell_and_not_the_end(tmp_path):
    status, output, errors = zoo("run", "-m", "attention=linformer", "attention.projected_length=4,40", *SMALL, folder=tmp_path)
    assert status == 0, errors
    assert "refused" in output
    assert "must be less than the 17 keys" in output
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2


def test_an_interrupted_sweep_keeps_what_it_has_and_goes_on(tmp_path):
    seeds = "seed=1,2,3,4,5,6"  # so many that the interrupt comes before the last also on a busy machine
    words = ["run", "-m", "attention=softmax", seeds, *LISTOPS, *SMALL, "budget.steps=60", "budget.evaluate_every=30"]
    code = "import sys; from attn_zoo.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    waited = time.monotonic() + HANG
    while not list(tmp_path.glob("runs/*.json")) and time.monotonic() < waited:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=HANG)
    kept = len(list(tmp_path.glob("runs/*.json")))
    assert 1 <= kept < 6, errors
    assert process.returncode == 130, errors
    assert "run the same command again to resume" in errors
    _, output, errors = zoo(*words, folder=tmp_path)
    assert output.startswith(f"6 runs, {kept} of them recorded already"), errors
    assert len(list(tmp_path.glob("runs/*.json"))) == 6


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["leaderboard", "--help"],
        ["recommend", "--help"],
        ["show", "--help"],
        ["records", "verify", "--help"],
    ],
)
def test_a_command_imports_only_what_it_needs(words):
    code = "import sys; from attn_zoo.cli import main\ntry: main(sys.argv[1:])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_every_command_is_filled_in_by_its_module():
    assert set(COMMANDS) <= set(re.findall(r"^    (\w+)", parser().format_help(), re.MULTILINE))
    for name in COMMANDS.keys() - {"run", "tune"}:
        with pytest.raises(SystemExit, match="0"):
            parser(name).parse_args([name, "--help"])
        with pytest.raises(SystemExit, match="2"):
            parser(name).parse_args([name, "--no-such-option"])

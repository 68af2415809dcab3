"""What people type: sweeps that resume, keys that are checked, errors in one line."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import HANG

from attn_zoo.cli import main
from attn_zoo.cli.commands import COMMANDS, parser
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.plot import AXES, curves_of
from attn_zoo.records import Store

SMALL = ["budget.steps=6", "budget.evaluate_every=3", "model.dim=16", "model.heads=2"]
LISTOPS = ["task=listops", "task.length=24", "task.train=200", "task.valid=50", "task.test=50"]


def zoo(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in this process, which spares every test the seconds of importing torch."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["attn-zoo", *words])
        try:
            status = main(words)
        except SystemExit as stop:  # argparse ends this way
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(["attn-zoo", *words], status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("swept")
    return folder, zoo("run", "-m", "attention=softmax,none", "seed=1,2", "task=digits", *SMALL, cwd=folder)


def test_a_sweep_ends_with_its_leaderboard(swept):
    folder, outcome = swept
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("4 runs, 0 of them recorded already, 4 to do")
    assert "Digits (patches)" in outcome.stdout
    assert "none (c)" in outcome.stdout
    assert len(list((folder / "runs").glob("*.json"))) == 4
    record = json.loads(next((folder / "runs").glob("softmax*.json")).read_text(encoding="utf-8"))
    assert record["environment"]["command"].startswith("attn-zoo run -m attention=softmax,none")
    assert record["spec"]["budget"]["steps"] == 6
    assert record["spec"]["budget"]["learning_rate"] == 4e-3, "what is not given comes from the task's level"


def test_the_same_command_again_does_nothing_twice(swept):
    folder, _ = swept
    outcome = zoo("run", "-m", "attention=softmax,none", "seed=1,2,3", "task=digits", *SMALL, cwd=folder)
    assert outcome.stdout.startswith("6 runs, 4 of them recorded already, 2 to do"), outcome.stderr
    assert outcome.stdout.count("recorded already") == 5
    assert len(list((folder / "runs").glob("*.json"))) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["attention=linformer", "attention.projected_lenght=3"],
            "did you mean 'projected_length'? Known: allow_full_rank, dropout, equalised, frozen, init",
        ),
        (["attention=linformer", "attention.projected_length=many"], "must be"),
        (["attention=linfomer"], "no attention is called 'linfomer'; did you mean 'linformer'?"),
        (["attention=linformer:sdpa", "implementation=eager"], "implementation must be given once"),
        (["--cfg=job"], "no setting of a run is called 'cfg'"),
        (["-c"], "settings of runs must be written KEY=VALUE; got '-c'"),
        (["task=digits", "task.patch=3"], "digits.patch must be 1, 2 or 4"),
        (["task=lisops"], "no task is called 'lisops'; did you mean 'listops'?"),
        (["experiment=quickstat"], "no experiment is called 'quickstat'; did you mean 'quickstart'?"),
        (["launch=joblip"], "no launch is called 'joblip'; did you mean 'joblib'?"),
        (["model.dim=10", "model.heads=4"], "model.dim must be a multiple of model.heads"),
        (["budget.stepps=3"], "did you mean 'steps'"),
        (["level=huge"], "no level of task digits is called 'huge'"),
        (["implementation=cuda"], "no implementation of softmax is called 'cuda'"),
        (["precision=fp8"], "fp32, bf16, fp16"),
        (["records=blocked/runs"], "records=FOLDER"),
    ],
)
@pytest.mark.parametrize("sweep", [False, True])
def test_bad_input_is_refused_in_words_before_work_starts(words, message, sweep, tmp_path):
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    outcome = zoo("run", *(["-m", "seed=1,2"] if sweep else []), *words, cwd=tmp_path)
    assert outcome.returncode == 2, outcome.stdout
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not list(tmp_path.rglob("*.json"))


def test_a_sweep_holds_several_settings_of_one_mechanism_which_make_a_curve(tmp_path):
    rows = "attention=linformer[projected_length=4|8],linformer:sdpa[projected_length=4],softmax"
    outcome = zoo("run", "-m", rows, "seed=1,2", *LISTOPS, *SMALL, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("8 runs, 0 of them recorded already")
    records, _ = Store(tmp_path / "runs").load()
    found = {(r.spec.attention, r.spec.options.get("projected_length"), r.spec.implementation) for r in records}
    assert found == {("linformer", 4, "auto"), ("linformer", 8, "auto"), ("linformer", 4, "sdpa"), ("softmax", None, "auto")}
    assert {str(r.environment["command"]).split()[3] for r in records} == {rows}
    (table,) = tables(records)
    curves = [rows for rows in curves_of(table, AXES["FLOPs"]) if len(rows) > 1]
    assert [[row.options["projected_length"] for row in rows] for rows in curves] == [[4, 8]]


def test_one_bad_run_refuses_its_whole_sweep(tmp_path):
    outcome = zoo("run", "-m", "attention=longformer", "attention.window=5,7,8", *SMALL, cwd=tmp_path)
    assert outcome.returncode == 2
    assert "got 8" in outcome.stderr
    assert not list(tmp_path.rglob("*.json"))


def test_a_request_beyond_the_card_is_a_cell_and_not_the_end(tmp_path):
    outcome = zoo("run", "-m", "attention=linformer", "attention.projected_length=4,40", *SMALL, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "refused" in outcome.stdout
    assert "must be less than the 17 keys" in outcome.stdout
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2


def test_missing_data_are_said_before_training(tmp_path):
    outcome = zoo("run", "task=mnist", f"task.root={tmp_path}", *SMALL, cwd=tmp_path)
    assert outcome.returncode == 2
    assert "MNIST: no data found below" in outcome.stderr


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
    outcome = zoo(*words, cwd=tmp_path)
    assert outcome.stdout.startswith(f"6 runs, {kept} of them recorded already"), outcome.stderr
    assert len(list(tmp_path.glob("runs/*.json"))) == 6


@pytest.mark.exhaustive
def test_measure_prints_exponents_and_writes_them(tmp_path):
    words = ["attention=softmax:sdpa,linformer[projected_length=16]", "lengths=64,128", "dim=16", "heads=2"]
    outcome = zoo("measure", *words, "rounds=2", "output=found.json", cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "softmax:sdpa" in outcome.stdout
    assert "linformer[projected_length=16]" in outcome.stdout
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert len(found["cells"]) == 2 * 2 * 2
    assert found["complete"] is True
    assert not any("failure" in row for row in found["rows"])
    seconds = [row for row in found["rows"] if row["quantity"] == "seconds"]
    assert sorted((row["cell"], row["round"]) for row in seconds) == [(cell, turn) for cell in range(8) for turn in range(2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["experiment=grwth"],
            "did you mean 'growth'? Known: counted, crossover, growth, models",
        ),
        (["lenghts=[64]"], "no key of experiment=growth is called 'lenghts'; did you mean 'lengths'?"),
        (["lengths=[64,x]"], "must be"),
        (["lengths=64,x"], "must be"),
        (["dim=8,16"], "dim= must be one value"),
        (["lengths=[]"], "lengths must be a list of different integers, each at least 1"),
        (["+dim=8"], "words of measure must be KEY=VALUE"),
        (["dim"], "missing EQUAL"),
        (["dim=10", "heads=4"], "dim= must be a multiple of heads="),
        (["rounds=0"], "rounds must be an integer >= 1"),
        (["attention=sofmax"], "did you mean 'softmax'"),
        (["attention=linformer[projected_length=8"], "brackets and quotes must come in pairs"),
        (["set.linformer.projected_length=3"], "no key of experiment=growth is called 'set.linformer.projected_length'"),
        (["output=nowhere/found.json"], "a file in an existing folder"),
        (["device=cpu", "precision=fp8"], "precision must be one of fp32, bf16, fp16"),
    ],
)
def test_measure_refuses_bad_input_in_words_before_work_starts(words, message, tmp_path):
    outcome = zoo("measure", *words, cwd=tmp_path)
    assert outcome.returncode == 2, outcome.stdout
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "round" not in outcome.stderr.replace("rounds", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["leaderboard", "--help"], ["show", "--help"], ["records", "verify", "--help"]]
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

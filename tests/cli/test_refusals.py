"""Bad words of ``attn-zoo run`` are refused before work, and a run without a score is told by the exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
from make import make_record

from attn_zoo.cli import main
from attn_zoo.cli.run import exit_status

RUN = ["attention=uniform", "task=needle", "level=smoke", "device=cpu"]

WORDS: dict[str | tuple[str, ...], str] = {
    (
        "attention=linformer",
        "attention.projected_lenght=3",
    ): "did you mean 'projected_length'? Known: allow_full_rank, dropout, equalised",
    ("attention=linformer", "attention.projected_length=many"): "must be",
    ("attention=linformer:sdpa", "implementation=eager"): "implementation must be given once",
    ("task=digits", "task.patch=3"): "digits.patch must be 1, 2 or 4",
    ("model.dim=10", "model.heads=4"): "model.dim must be a multiple of model.heads",
    "attention=linfomer": "no attention is called 'linfomer'; did you mean 'linformer'?",
    "--cfg=job": "no setting of a run is called 'cfg'",
    "-c": "settings of runs must be written KEY=VALUE; got '-c'",
    "task=lisops": "no task is called 'lisops'; did you mean 'listops'?",
    "experiment=quickstat": "no experiment is called 'quickstat'; did you mean 'quickstart'?",
    "launch=joblip": "no launch is called 'joblip'; did you mean 'joblib'?",
    "budget.stepps=3": "did you mean 'steps'",
    "level=huge": "no level of task needle is called 'huge'",
    "implementation=cuda": "no implementation of uniform is called 'cuda'",
    "precision=fp8": "fp32, bf16, fp16",
    "records=blocked/runs": "records=FOLDER",
    "+budgett.steps=3": "no setting of a run is called 'budgett'; did you mean 'budget'?",
    "+x._target_=os.getcwd": "no setting of a run is called 'x'",
    "hydra.launcher.partition=gpu": "no setting of a run is called 'hydra'",
    "~budget": "must not remove a setting",
    "attention={}": "attention= must be a name",
    "attention=[1,2]": "attention= must be a name",
    "attention=[uniform,none]": "attention= must be a name",
    "attention=5": "attention= must be a name",
    "attention=null": "attention= must be a name",
    "attention=ソフト": "must be of the form KEY=VALUE, but cannot be read",
    "task=[1]": "task= must be a name",
    "task={}": "task= must be a name",
    "experiment=[1]": "experiment= must be a name",
    "seed=-1": "seed must be an integer from 0 to 2**63 - 1; got -1",
    f"seed={10**23}": "seed must be an integer from 0",
    "budget.learning_rate=inf": "budget.learning_rate must be a finite number; got inf",
    "budget.weight_decay=nan": "budget.weight_decay must be a finite number; got nan",
    "budget.seconds=inf": "budget.seconds must be a finite number; got inf",
    "model.mlp_ratio=inf": "model.mlp_ratio must be a finite number; got inf",
    f"budget.batch_size={10**20}": "budget.batch_size must be an integer from -2147483647 to",
    "checkpoint.minutes=inf": "checkpoint.minutes must be a finite number; got inf",
    "threads=-1": "threads must be an integer >= 0",
    "model=3": "model is a group of settings, so one of its keys must be named; got 'model=3'. Write model.KEY=VALUE",
    "budget=[1]": "budget is a group of settings",
    "seed=one": "seed must be an integer; got 'one'",
    "threads=[1]": "threads must be an integer; got [1]",
    "records=": "records= must name a folder",
    "launcher={_target_: os.getcwd}": "launch= must be one of",
    "+launcher.x=1": "launch= must be one of",
    "launcher=[1]": "launch= must be one of",
}


@pytest.mark.parametrize("sweep", [False, pytest.param(True, marks=pytest.mark.process)], ids=["run", "sweep"])
@pytest.mark.parametrize(("word", "message"), WORDS.items(), ids=map(str, WORDS))
def test_a_bad_word_is_refused_by_name_before_work(tmp_path, monkeypatch, capsys, word, message, sweep):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    given = [word] if isinstance(word, str) else list(word)
    keys = {each.partition("=")[0] for each in given}
    words = [*(each for each in RUN if each.partition("=")[0] not in keys), *given]
    assert main(["run", *(["-m", "seed=1,2"] if sweep else []), *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == "" and "Traceback" not in said.err
    assert [path.name for path in Path().iterdir()] == ["blocked"], "nothing was begun"


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], 0),
        (["done"], 0),
        (["done", "done"], 0),
        (["refused"], 1),
        (["done", "refused"], 0),
        (["refused", "refused"], 0),
        *((["done", bad], 1) for bad in ("failed", "diverged", "timed_out", "out_of_memory")),
    ],
)
def test_the_exit_status_says_whether_runs_have_scores(outcomes, status):
    assert exit_status([None, *(make_record(status=outcome) for outcome in outcomes)]) == status


def test_a_run_that_is_refused_alone_ends_with_1_and_in_a_sweep_with_0(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["task=needle", "level=smoke", "device=cpu", "budget.steps=2"]
    assert main(["run", "attention=fnet", *few]) == 1
    assert "refused: " in capsys.readouterr().out
    assert main(["run", "-m", "attention=fnet,uniform", *few]) == 0
    assert main(["run", "attention=uniform", *few, "budget.max_seconds=1e-9"]) == 1
    assert "timed_out: " in capsys.readouterr().out

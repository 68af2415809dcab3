"""Mistyped words of every command are refused in one line before any work, and a run without a score is told by the exit status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from make import make_record

from attn_zoo.cli import main
from attn_zoo.cli.run import exit_status

RUN = ["attention=uniform", "task=needle", "level=smoke", "device=cpu"]
"""Words that are added to a command ``run``, unless a word has the same key."""
SEARCH = "run experiment=tune task=digits"
BRACKETED = "tune experiment=profile3_encoder attention=none task=mqar budget.steps=48"
TUNE = "tune attention=softmax task=digits"
ONE_STUDY = "must be one value, because a study has one mechanism, one task and one seed"

WORDS = [
    # names of commands, options and keys
    ("analize", "no command is called 'analize'; did you mean 'analyze'?"),
    ("leaderboard --tsk digits", "no option is called '--tsk'; did you mean '--task'?"),
    ("leaderboard --format htlm", "no --format is called 'htlm'; did you mean 'html'?"),
    ("leaderboard digits", "takes no further argument; got 'digits'"),
    ("leaderboard wide=yes", "wide must be true or false; got 'yes'"),
    ("leaderboard --records nosuch", "'nosuch' does not exist"),
    ("leaderboard records=nosuch", "'nosuch' does not exist"),
    ("show level=cpu task=haystack", "got 'task=haystack'. ROW is NAME or NAME[OPTION=VALUE,...]"),
    ("show level=cpu task=haystack", "To see a task, use attn-zoo list haystack"),
    ("show softmax --records nosuch", "'nosuch' does not exist"),
    ("list linfomer", "no attention or task is called 'linfomer'; did you mean 'linformer'?"),
    ("list --attention linformer", "no option is called '--attention'"),
    ("list plugin=nosuch.py", "the file nosuch.py does not exist"),
    ("measure experiment=grwth", "did you mean 'growth'? Known: counted, crossover, growth, models"),
    ("measure lenghts=[64]", "no key of experiment=growth is called 'lenghts'; did you mean 'lengths'?"),
    ("measure set.linformer.projected_length=3", "no key of experiment=growth is called 'set.linformer.projected_length'"),
    ("measure lengths=64,x", "must be"),
    ("measure dim=8,16", "dim= must be one value"),
    ("measure +dim=8", "words of measure must be KEY=VALUE"),
    ("measure dim", "missing EQUAL"),
    ("measure attention=sofmax", "did you mean 'softmax'"),
    ("measure attention=linformer[projected_length=8", "brackets and quotes must come in pairs"),
    ("measure output=nowhere/found.json", "a file in an existing folder"),
    ("measure lengths=many", "lengths must be a list of integers, such as [64,128]; got 'many'"),
    ("measure --plugin=nosuch.py", "the file nosuch.py does not exist"),
    ("measure experiment=growth read=a.json output=b.json", "Leave one of them out"),
    ("records verify runs", "takes no further argument; got 'runs'"),
    ("records rerun runs --into again", "takes no further argument; got 'runs'"),
    ("records verify --records blocked", "is a file. Name the folder that holds the records"),
    ("check none --device vulkan", "--device must be a device that PyTorch finds here, such as cpu or cuda; got 'vulkan'"),
    ("check none --device gpu", "--device must be a device that PyTorch finds here, such as cpu or cuda; got 'gpu'"),
    ("analyze error --seed 18446744073709551616", "seed must be an integer from 0 to 2**63 - 1"),
    ("transplant attention=none seed=18446744073709551616", "seed must be an integer from 0 to 2**63 - 1"),
    ("run --records", "--records must have a value. Write records=VALUE"),
    ("run --sede 3", "did you mean 'seed'"),
    ("run --cfg=job", "no setting of a run is called 'cfg'"),
    ("run -c", "settings of runs must be written KEY=VALUE; got '-c'"),
    ("run budget.stepps=3", "did you mean 'steps'"),
    ("run +budgett.steps=3", "no setting of a run is called 'budgett'; did you mean 'budget'?"),
    ("run hydra.launcher.partition=gpu", "no setting of a run is called 'hydra'"),
    ("run ~budget", "must not remove a setting"),
    ("run attention=linfomer", "no attention is called 'linfomer'; did you mean 'linformer'?"),
    ("run -m seed=1,2 attention=linfomer", "no attention is called 'linfomer'; did you mean 'linformer'?"),
    ("run task=lisops", "no task is called 'lisops'; did you mean 'listops'?"),
    ("run experiment=quickstat", "no experiment is called 'quickstat'; did you mean 'quickstart'?"),
    ("run experiment=quickstart,lra", "experiment= must be one name; got quickstart,lra"),
    ("run launch=joblip", "no launch is called 'joblip'; did you mean 'joblib'?"),
    ("run level=huge", "no level of task needle is called 'huge'"),
    ("run implementation=cuda", "no implementation of uniform is called 'cuda'"),
    ("run precision=fp8", "fp32, bf16, fp16"),
    # options of mechanisms and tasks
    (
        "run attention=linformer attention.projected_lenght=3",
        "did you mean 'projected_length'? Known: allow_full_rank, dropout, equalised",
    ),
    ("run attention=linformer attention.projected_length=many", "must be"),
    ("run attention=linformer:sdpa implementation=eager", "implementation must be given once"),
    ("run task=digits task.patch=3", "digits.patch must be 1, 2 or 4"),
    ("run -m seed=1,2 task=digits task.patch=3", "digits.patch must be 1, 2 or 4"),
    ("run -m attention=longformer attention.window=5,7,8", "got 8"),
    ("run task.lenght=3 task=mqar", "no option of task mqar is called 'lenght'; did you mean 'length'"),
    ("run dials.linformer.projected=3", "no option under 'dials.linformer' is called 'projected'"),
    ("run dials.linformr.projected_length=3", "no attention is called 'linformr'"),
    ("run dials.linformer=8", "dials.linformer is a group of options, so one of them must be named; got '8'"),
    ("run attention=softmax attention.sinks=4", "option sinks must be true or false; got '4'"),
    ("run attention=softmax[sinks=2]", "option sinks must be true or false; got '2'"),
    ("run attention=2*linformer+softmax model.depth=2", "needs at least 3 layers"),
    ("run attention=linear+softmax model.shared_weights=true", "with weights of their own, but the network has 1"),
    ("run attention=linear+softmax attention.projected_length=4", "projected_length"),
    ("run attention=linear+softmax implementation=sdpa", "no implementation of linear is called 'sdpa'"),
    # values
    ("run attention={}", "must be written NAME"),
    ("run attention=[uniform,none]", "attention= must be a name"),
    ("run attention=5", "no attention is called '5'"),
    ("run attention=linformer[projected_length=4|8]", "attention=linformer[projected_length=4|8] has several values"),
    ("run attention=ソフト", "no attention is called 'ソフト'"),
    ("run task=ソフト", "must be of the form KEY=VALUE, but cannot be read"),
    ("run task=[1]", "task= must be a name"),
    ("run seed=1,2", "seed=1,2 has several values, and each value needs a run of its own. Add -m"),
    ("run seed=one", "seed must be an integer; got 'one'"),
    ("run seed=-1", "seed must be an integer from 0 to 2**63 - 1; got -1"),
    ("run budget.steps=many", "option steps must be an integer; got 'many'"),
    ("run budget.learning_rate=inf", "budget.learning_rate must be a finite number; got inf"),
    ("run model.mlp_ratio=nan", "model.mlp_ratio must be a finite number; got nan"),
    (f"run budget.batch_size={10**20}", "budget.batch_size must be an integer from -2147483647 to"),
    ("run model.dim=10 model.heads=4", "model.dim must be a multiple of model.heads"),
    ("run checkpoint.minutes=[1]", "checkpoint.minutes must be a number; got [1]"),
    ("run checkpoint.minutes=inf", "checkpoint.minutes must be a finite number; got inf"),
    ("run report=maybe", "report must be true or false; got 'maybe'"),
    ("run data=3", "data is a group of settings, so one of its keys must be named"),
    ("run model=3", "model is a group of settings, so one of its keys must be named; got 'model=3'. Write model.KEY=VALUE"),
    ("run threads=-1", "threads must be an integer >= 0"),
    ("run threads=[1]", "threads must be an integer; got [1]"),
    ("run budget.steps=6 weights.after=[-1]", "from 0 to budget.steps=6, because weights are written after these steps; got -1"),
    ("run -m budget.steps=20,10 weights.after=[15]", "steps from 0 to budget.steps=10"),
    ("tune attention=none task=digits budget.steps=10 weights.after=[15]", "steps from 0 to budget.steps=10"),
    (f"{BRACKETED} weights.after=[48]", "steps from 0 to budget.steps=6"),
    ("run records=", "records= must name a folder"),
    ("run records=a,b", "records= must be one value, because all runs of a command share it; got records=a,b. Put a text with"),
    ("run -m records=a,b seed=1,2", "records= must be one value, because all runs of a command share it"),
    ("run -m checkpoint.every=1,2", "checkpoint.every= must be one value, because all runs of a command share it"),
    ("run -m task=listops data.root=a,b", "got {'root': 'a'} and {'root': 'b'}. Run one command for each"),
    ("run records=blocked/runs", "records=FOLDER"),
    # launchers
    ("run launcher=[1]", "launch= must be one of"),
    ("run +launcher.x=1", "launch= must be one of"),
    ("run workers=2", "Add launch=joblib, ray, submitit_local or slurm"),
    ("run launch=joblib workers=0", "workers must be an integer >= 1; got 0"),
    ("run launch=joblib threads=0", "threads must be an integer >= 1; got 0"),
    ("run launch=slurm", "sweep with launch=submitit_local"),
    # searches
    (f"{SEARCH} attention=linformer,softmax", f"attention {ONE_STUDY}"),
    (f"{SEARCH} seed=0,1", f"seed {ONE_STUDY}"),
    (f"{TUNE} seed=0,1", "Train the best settings with attn-zoo tune seeds=A,B"),
    (f"{SEARCH} attention=linear[feature_map=elu] attention.feature_map=elu,relu", "attention.feature_map must be given once"),
    (f"{SEARCH} budget.steps=10,20", "the same for all configurations of a table"),
    (f"{SEARCH} model.depth=1,2", "model.depth cannot be searched"),
    (f"{SEARCH} budget.learning_rate=interval(0,1)", "budget.learning_rate must be above 0"),
    (f"{SEARCH} budget.learning_rate=0.001", "budget.learning_rate=0.001. Leave one out, or give a range"),
    (f"{SEARCH} attention=linformer attention.projected_length=choice(4,17)", "must be less than the 17 keys"),
    (f"{SEARCH} attention=linformer attention.projected_length=int(interval(4,17))", "must be less than the 17 keys"),
    (f"{SEARCH} attention=linformer attention.projected_length=range(4,18)", "must be less than the 17 keys"),
    (
        f"{SEARCH} attention=fixed attention.stride=choice(8,4) attention.summary=choice(1,8)",
        "fixed.summary must be an integer from 0 to stride=4",
    ),
    ("run -m seed=range(3,1)", "a range must have a value, but seed=range(3,1) has none"),
    (f"{SEARCH} budget.warmup_steps=range(4,4)", "a range must have a value, but budget.warmup_steps=range(4,4) has none"),
    (f"{SEARCH} budget.learning_rate=interval(0.1,0.01)", "must not be above the second; got budget.learning_rate="),
    (f"{SEARCH} budget.weight_decay=tag(log,interval(0,0.1))", "must begin above 0; got budget.weight_decay=tag(log,"),
    (f"{SEARCH} tuning.trials=0", "an integer >= 1"),
    ("run tuning.trials=4", "tuning.trials= must go with a search, but nothing is searched. Add experiment=tune, or leave"),
    (f"{SEARCH} tuning.sampler=random", "tuning.sampler must be 'grid' or 'tpe' or 'bracket'"),
    (f"{SEARCH} tuning.sampler=grid", "has infinitely many values"),
    (
        f"{SEARCH} tuning.sampler=grid budget.learning_rate=choice(0.1,0.2) budget.warmup_steps=range(4,8,0)",
        "the step of a range must not be 0",
    ),
    (f"{SEARCH} attention=performer tuning.dials.performer.features=16", "Write tuning.dials.performer.OPTION=[A,B]"),
    (f"{BRACKETED} trials=3", "must search only budget.learning_rate"),
    (f"{BRACKETED} budget.until=steps", "with budget.until=steps"),
    (f"{BRACKETED} budget.schedule=cosine", "must go with budget.schedule=constant"),
    (f"{BRACKETED} seeds=1,1000", "seeds= must not include 1000"),
    (f"{BRACKETED} seed=4", "seeds= must not include 4"),
    ("tune task=digits", "attention= is missing"),
    ("tune attention=linfomer task=digits", "did you mean 'linformer'?"),
    ("tune experiment=tune,curves attention=none task=digits", "experiment= must name one experiment"),
    ("tune experiment=profile_encoder tuning.attention=[softmax]", "Write attention=NAME,... task=NAME,... on the command line"),
    (f"{TUNE} experiment=lra", "experiment=lra does not search any setting"),
    (f"{TUNE} seeds=0,1", "seeds= must not include 0"),
    (f"{TUNE} seed=2", "seeds= must not include 2"),
    (f"{TUNE} seeds=1,-1", "seed must be an integer from 0 to 2**63 - 1; got -1"),
    (f"{TUNE} trials=many", "trials must be an integer >= 1; got 'many'"),
    (f"{TUNE} budget.stepps=3", "did you mean 'steps'"),
]
"""Words of commands, with a part of the error message."""


def case(words: str, message: str) -> Any:
    """Return a case, in the plain tier if a single run is described."""
    slow = words.startswith((SEARCH, "run launch=", "run -m")) or not words.startswith("run ")
    return pytest.param(words, message, marks=[pytest.mark.process] * slow)


@pytest.mark.parametrize(("words", "message"), [case(*each) for each in WORDS])
def test_a_mistake_is_one_line_with_what_to_write_before_any_work(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("blocked").touch()
    given = words.split()
    keys = {word.partition("=")[0] for word in given}
    usual = [word for word in RUN if word.partition("=")[0] not in keys] if given[0] == "run" else []
    try:
        status = main([given[0], *usual, *given[1:]])
    except SystemExit as stop:
        status = int(stop.code or 0)
    said = capsys.readouterr()
    assert status == 2 and message in said.err and not said.out and len(said.err.splitlines()) == 1, said.err
    assert os.listdir() == ["blocked"], "nothing was begun"


def test_processes_that_are_started_together_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run", *RUN]) == 2
    assert "a run must be a single process, but 2 processes were started together" in capsys.readouterr().err


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

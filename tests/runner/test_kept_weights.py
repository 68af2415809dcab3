"""Weights written during training: those of the step, without influence on results, and sufficient to rebuild the network."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, replace
from itertools import chain, repeat
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from run_helpers import Quiet
from safetensors.torch import load_file, save_file

from attn_zoo.analysis import attention_matrices
from attn_zoo.analysis.sources import load_subject
from attn_zoo.cli import main
from attn_zoo.contract import Examples, Split
from attn_zoo.encoder import build_paired_model
from attn_zoo.encoder.weights import read_weights
from attn_zoo.records import RunSpec, Store
from attn_zoo.registry import build_task
from attn_zoo.runner.train import Setup, train
from attn_zoo.runner.weights import KeptWeights

RUN = ("run", "task=listops", "task.length=24", "task.train=60", "task.valid=20", "task.test=20", "model.dim=16", "model.heads=2")
BUDGET = ("budget.steps=6", "budget.batch_size=16", "budget.evaluate_every=3", "budget.warmup_steps=1", "budget.schedule=constant")
HERE = ("device=cpu", "report=false")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Folder with the record of one run and its weights before, during and after training."""
    folder = tmp_path_factory.mktemp("kept")
    words = (f"records={folder}/runs", "weights.after=[0,3,6]", f"weights.folder={folder}/weights")
    assert main([*RUN, *BUDGET, *HERE, *words]) == 0
    return folder


def files(folder: Path) -> dict[int, Path]:
    found = (folder / "weights").glob("softmax-listops-s1-*.safetensors")
    return {int(file.stem.rpartition("step")[2]): file for file in found}


def test_a_file_for_each_step_holds_the_weights_of_that_step(folder):
    by_step = files(folder)
    assert sorted(by_step) == [0, 3, 6] and len(list((folder / "weights").iterdir())) == 3
    (record,) = Store(folder / "runs").load()[0]
    for step, file in by_step.items():
        _, facts = read_weights(file)
        assert facts["step"] == step and RunSpec.from_dict(facts["spec"]) == record.spec
    spec = record.spec
    task = build_task("listops", **spec.task_options).spec
    first = build_paired_model(task, seed=1, attention="softmax", options=spec.options, **asdict(spec.model))
    for name, tensor in load_file(by_step[0]).items():
        assert torch.equal(tensor, first.state_dict()[name])


def test_weights_after_the_last_step_are_those_that_training_leaves(folder, tmp_path):
    (record,) = Store(folder / "runs").load()[0]
    spec = record.spec
    task = build_task("listops", **spec.task_options)
    model = build_paired_model(task.spec, seed=1, attention="softmax", options=spec.options, **asdict(spec.model))
    splits: dict[Split, Examples] = {"train": task.examples("train"), "valid": task.examples("valid")}
    budget = replace(spec.budget, steps=3)
    kept = KeptWeights(tmp_path, [3], replace(spec, budget=budget), "1")
    torch.manual_seed(1)
    train(model, splits, Setup(task, budget, 1, Accelerator(cpu=True), Quiet(), kept=kept))
    left, held, later = model.state_dict(), load_file(kept.path(3)), load_file(files(folder)[6])
    assert all(torch.equal(left[name], held[name]) for name in left)
    assert all(torch.equal(left[name], tensor) for name, tensor in load_file(files(folder)[3]).items())
    assert not all(torch.equal(left[name], later[name]) for name in left)


def test_a_run_is_the_same_with_and_without(folder, tmp_path):
    assert main([*RUN, *BUDGET, *HERE, f"records={tmp_path}"]) == 0
    (with_weights,), (without,) = Store(folder / "runs").load()[0], Store(tmp_path).load()[0]
    assert with_weights.run_id == without.run_id and with_weights.scores == without.scores


def test_they_build_the_network_again_for_analyses(folder):
    subjects = {step: load_subject(str(file), 2, 12) for step, file in files(folder).items()}
    assert not subjects[0].trained and subjects[6].trained
    assert subjects[3].weights == "after 3 of 6 steps, seed 1" and subjects[3].name == "softmax on listops"
    tensors = load_file(files(folder)[6])
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in subjects[6].model.state_dict().items())
    shapes = {tuple(p.shape) for p in attention_matrices(subjects[6].model, subjects[6].batches[0])}
    assert len(shapes) == 1 and next(iter(shapes))[:2] == (1, 2)


@pytest.mark.parametrize("step", [0, 6])
def test_spectra_are_those_of_the_file(step, folder, capsys):
    assert main(["analyze", "spectrum", "--model", str(files(folder)[step]), "--length", "12", "--sentences", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"softmax on listops (weights: after {step} of 6 steps, seed 1)" in printed
    assert ("The model is untrained" in printed) is (step == 0)


def test_a_recorded_run_writes_none_and_says_so(folder, tmp_path, capsys):
    assert main([*RUN, *BUDGET, *HERE, f"records={folder}/runs", "weights.after=[3]", f"weights.folder={tmp_path}/again"]) == 0
    assert "no weights were written" in capsys.readouterr().out
    assert not (tmp_path / "again").exists()


def test_a_run_that_was_stopped_after_a_chosen_step_writes_its_weights_when_it_goes_on(folder, tmp_path, monkeypatch, capsys):
    words = (f"records={tmp_path}/runs", "weights.after=[3]", f"weights.folder={tmp_path}/weights", "checkpoint.every=100")
    asked = chain([0, 0, signal.SIGINT], repeat(0))
    monkeypatch.setattr("attn_zoo.runner.train.asked", lambda: next(asked))
    assert main([*RUN, *BUDGET, *HERE, *words]) == 130
    assert not files(tmp_path)
    assert main([*RUN, *BUDGET, *HERE, *words]) == 0
    assert "weights of 1 step are in" in capsys.readouterr().out
    (file,) = files(tmp_path).values()
    assert all(torch.equal(tensor, load_file(file)[name]) for name, tensor in load_file(files(folder)[3]).items())


def test_files_of_another_kind_are_refused(folder, tmp_path):
    file = tmp_path / "foreign.safetensors"
    with pytest.raises(FileNotFoundError, match="the weights file"):
        load_subject(str(file), 1)
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="does not hold the weights of a run"):
        load_subject(str(file), 1)
    _, facts = read_weights(files(folder)[0])
    save_file({"weight": torch.zeros(1)}, file, metadata={"attn_zoo_weights": json.dumps({**facts, "task_version": "0"})})
    with pytest.raises(ValueError, match="trained with version 0 of listops"):
        load_subject(str(file), 1)
    old = {**facts, "spec": {**facts["spec"], "attention_version": 7}}
    save_file({"weight": torch.zeros(1)}, file, metadata={"attn_zoo_weights": json.dumps(old)})
    with pytest.raises(
        ValueError, match=f"trained with version 7 of {facts['spec']['attention']}, but this installation has version 1"
    ):
        load_subject(str(file), 1)
    with pytest.raises(ValueError, match="Leave --weights out"):
        load_subject(str(files(folder)[0]), 1, weights="random")
    with pytest.raises(ValueError, match="--length must be at most 24"):
        load_subject(str(files(folder)[0]), 1, 25)


def test_paths_differ_by_step_and_run(folder):
    (record,) = Store(folder / "runs").load()[0]
    kept = KeptWeights("here", [1, 2], record.spec, record.task_card["version"])
    assert kept.path(1) != kept.path(2) and record.run_id in kept.path(1).name

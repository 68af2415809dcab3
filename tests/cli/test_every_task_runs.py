"""Every task trains and is tested at its level ``smoke``, through the command line, as far as its data are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_zoo import registry
from attn_zoo.cli import main
from attn_zoo.cli.run import plan
from attn_zoo.data import data_root
from attn_zoo.records import Store

LIKE = {
    **dict.fromkeys(["pixels", "mnist", "fashion_mnist", "cifar100"], "cifar10"),
    **dict.fromkeys(["sst2"], "imdb"),
    **dict.fromkeys(["mrpc", "qnli", "qqp"], "retrieval"),
    **dict.fromkeys(["copying", "induction", "selective"], "mqar"),
    **dict.fromkeys(["fuzzy_recall", "memorise", "needle", "state_words"], "flip_flop"),
    "mosaic": "digits",
}
"""Tasks that are read and scored as another is. They run in the exhaustive tier; tests/tasks/test_every_cell.py trains on each."""


def lacks(name: str) -> str | None:
    """Why a task cannot run here."""
    card = registry.task_card(name)
    if not card.locations:  # it is generated
        return None
    try:
        registry.build_task(name, **card.levels["smoke"].options).examples("test")
    except (FileNotFoundError, ValueError) as error:
        return str(error).split(";")[0]
    return None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in LIKE)) for name in registry.task_names()]
)
def test_a_task_runs_at_its_smallest_level(name, tmp_path, monkeypatch):
    if reason := lacks(name):
        pytest.skip(reason)
    monkeypatch.setenv("ATTN_ZOO_DATA", str(data_root().resolve()))
    monkeypatch.chdir(tmp_path)
    status = main(["run", f"task={name}", "attention=linformer", "level=smoke"])
    (record,) = Store("runs").load()[0]
    task = registry.build_task(name, **record.spec.task_options)
    assert status == int(task.spec.causal), "a run that is refused alone has no score"
    if task.spec.causal:
        assert record.status == "refused" and "causal" in str(record.reason)
        return
    assert record.status == "done", record.reason
    assert record.task_card["data"] and record.chance is not None
    assert record.data["test"]["examples"] == len(task.examples("test"))


def test_long_range_arena_is_an_experiment(tmp_path, monkeypatch, capsys):
    """All that is generated, and both controls; the rest needs data."""
    monkeypatch.chdir(tmp_path)
    words = ["experiment=lra_cpu", "level=smoke", "task=listops", "attention=softmax,longformer,none", "dials.longformer.window=9"]
    assert main(["run", "-m", *words]) == 0
    said = capsys.readouterr().out
    assert "ListOps" in said and "longformer" in said
    records = Store("runs").load()[0]
    options = {record.spec.attention: record.spec.options for record in records}
    assert options["longformer"]["window"] == 9, "a dial given goes before the experiment's"
    assert {record.implementation for record in records} <= {"sdpa", "tiled", "eager"}


def test_the_longer_form_of_long_range_arena_plans_its_committed_records():
    recorded = {record.run_id for record in Store(Path(__file__).parents[2] / "results" / "lra_two_hours").load()[0]}
    words = ["-m", "experiment=lra_two_hours"]
    plain, pretrained = plan(words), plan([*words, "task=text", "attention=softmax,linformer", "budget.pretrain_steps=400"])
    assert {job.run_id for job in (*plain.jobs, *pretrained.jobs)} == recorded and len(recorded) == 10


def test_a_mechanism_that_cannot_is_a_cell_whoever_chooses_its_implementation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "-m", "task=mqar", "task.causal=true", "level=smoke", "attention=linformer,none", "implementation=auto"]
    assert main(words) == 0
    found = {record.spec.attention: record.status for record in Store("runs").load()[0]}
    assert found == {"linformer": "refused", "none": "done"}

"""Runs on several processes equal runs on one: same batches, gradients, scores and weights, one record, and a common end."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import PartialState
from together import Quiet, do_runs, go_wrong, launched, together, train_with_dropout

from attn_zoo.contract import Batch
from attn_zoo.records import Budget, ModelSpec, RunSpec, Store
from attn_zoo.records.verify import verify
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner.processes import Processes
from attn_zoo.runner.train import _loss

LISTOPS = {"length": 24, "train": 64, "valid": 50, "test": 60}
RECALL = {"length": 32, "pairs": 4, "vocabulary": 64, "train": 64, "valid": 300, "test": 20}


def spec(
    attention: str = "softmax", task: str = "listops", *, dropout: float = 0.0, batch_size: int = 8, pretrain: int = 0, **rest: Any
) -> RunSpec:
    budget = Budget(steps=8, batch_size=batch_size, evaluate_every=4, warmup_steps=2, clip_norm=0.5, pretrain_steps=pretrain)
    rest.setdefault("task_options", {"listops": LISTOPS, "mqar": RECALL}.get(task, {}))
    model = ModelSpec(dim=16, heads=2, dropout=dropout)
    return resolve_spec(RunSpec(attention=attention, task=task, model=model, budget=budget, device="cpu", **rest))


SPECS = [
    spec("softmax", "digits"),
    spec("linformer"),
    spec("softmax", "mqar"),
    spec("performer", options={"redraw": 3}),
    spec("reformer", options={"redraw": 3}),
    spec("linformer", pretrain=3),
]


def without_key_biases(weights: dict[str, Any]) -> dict[str, Any]:
    """Leave out the key biases: softmax is invariant to them, so their gradient is only rounding, which Adam turns into steps."""
    return {name: weight for name, weight in weights.items() if not name.endswith("key.bias")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (found,) = together(1, do_runs, SPECS, tmp_path_factory.mktemp("alone"))
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_end_with_the_weights_and_scores_of_one(count, alone, tmp_path):
    """Uneven shares are covered: eight examples for three processes in training, and one or two batches in evaluation."""
    found = together(count, do_runs, SPECS, tmp_path)
    for at, (record, weights) in enumerate(alone):
        assert record["status"] == "done", record["reason"]
        assert record["environment"]["processes"] == 1
        for process in range(count):
            other, _ = found[process][at]
            assert other["status"] == "done", other["reason"]
            assert other["run_id"] == record["run_id"]
            assert other["scores"] == pytest.approx(record["scores"], rel=1e-5)
            losses = [[point["train_loss"] for point in one["curve"]] for one in (other, record)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)
            assert other["environment"]["processes"] == count and other["environment"]["backend"] == "gloo"
        _, theirs = found[0][at]
        assert theirs.keys() == weights.keys() and len(weights) > 20
        for name, weight in without_key_biases(weights).items():
            assert np.abs(theirs[name] - weight).max() < 1e-5, f"{record['spec']['attention']}: {name}"


def test_the_comparison_would_see_an_average_by_process(alone, tmp_path):
    found = together(3, do_runs, SPECS[1:2], tmp_path, True)
    (_, weights), (_, theirs) = alone[1], found[0][0]
    assert max(np.abs(theirs[name] - weight).max() for name, weight in without_key_biases(weights).items()) > 1e-4


def test_losses_of_parts_add_up_to_that_of_the_whole():
    torch.manual_seed(0)
    scores, labels = torch.randn(8, 5), torch.randint(5, (8,))
    parts = [slice(0, 2), slice(2, 5), slice(5, 8)]
    assert torch.allclose(torch.stack([_loss(scores[p], labels[p], 8) for p in parts]).sum(), F.cross_entropy(scores, labels))
    assert torch.equal(_loss(scores, labels, 8), F.cross_entropy(scores, labels)), "one process computes what it always did"


def test_a_process_of_whose_examples_nothing_is_asked_adds_nothing():
    scores = torch.randn(0, 5, requires_grad=True)
    loss = _loss(scores, torch.empty(0, dtype=torch.long), 3)
    loss.backward()
    assert loss.item() == 0.0 and scores.grad is not None
    assert _loss(scores, torch.empty(0, dtype=torch.long), 0).isnan(), "nothing asked at all is nothing to learn from, as alone"


def test_parts_of_a_batch_are_the_batch():
    """Parts come in order and differ in size by at most one example, for any number of processes."""
    batch = Batch(torch.arange(20).view(10, 2), torch.ones(10, 2, dtype=torch.bool), torch.arange(10))
    PartialState(cpu=True)
    processes = Processes()
    assert processes.part(batch) is batch
    for count in (2, 3, 7, 10):
        parts = []
        for processes.index in range(count):
            processes.count = count
            parts.append(processes.part(batch))
        assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
        assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
        sizes = [len(part.labels) for part in parts]
        assert [len(part.valid) for part in parts if part.valid is not None] == sizes
        assert max(sizes) - min(sizes) <= 1 and min(sizes) > 0


def test_dropout_is_each_processes_own_and_redraws_are_alike(tmp_path):
    asked = spec("performer", options={"redraw": 1}, dropout=0.5)
    first, second = together(2, train_with_dropout, asked)
    assert not np.allclose(first[0], second[0]), "the same examples, another half of them dropped"
    assert len(first) == 3, "one drawing for each layer"
    for ours, theirs in zip(first[1:], second[1:], strict=True):
        assert np.array_equal(ours, theirs)
    ((record, _),), _ = together(2, do_runs, [asked], tmp_path)
    assert record["status"] == "done", record["reason"]


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("raises", "failed", "ZeroDivisionError: on purpose (in troubled, together.py:"),
        ("runs out of memory", "out_of_memory", "(process 1 of 2)"),
        ("no number", "diverged", "the loss became nan at step 3"),
    ],
)
def test_what_goes_wrong_in_one_process_ends_all_with_one_record(kind, status, reason):
    first, second = together(2, go_wrong, kind, spec(implementation="eager"))
    for record in (first, second):
        assert record["status"] == status
        assert reason in record["reason"]
    assert first["reason"] == second["reason"]


def test_time_runs_out_for_all_by_the_clock_of_one(tmp_path):
    asked = spec()
    hurried = RunSpec.from_dict({**asked.to_dict(), "budget": {**asked.to_dict()["budget"], "max_seconds": 1e-9}})
    found = together(2, do_runs, [hurried], tmp_path)
    assert {record["status"] for ((record, _),) in found} == {"timed_out"}


def test_a_mechanism_that_follows_the_examples_is_not_done_by_several(tmp_path):
    ((record, _),), ((other, _),) = together(2, do_runs, [spec("routing")], tmp_path)
    assert record["status"] == other["status"] == "failed", "which a later start on one process does again"
    assert "2 processes would not train as one process does" in record["reason"] and "with one process" in record["reason"]


def test_a_batch_smaller_than_the_processes_is_refused_before_work(tmp_path):
    with pytest.raises(AssertionError, match=r"a batch of 1 examples .* leaves some of 2 processes without any"):
        together(2, do_runs, [spec(batch_size=1)], tmp_path)


ENDS = """
import os
from attn_zoo.runner.processes import Processes, _disconnect
assert Processes.join("cpu").gather(1) == [1, 1]
threads = lambda: [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
assert any("gloo" in name for name in threads()), threads()
import torch._dynamo
_disconnect()
assert not any("gloo" in name for name in threads()), threads()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads of a process from /proc")
def test_no_thread_of_gloo_outlives_the_process_group(tmp_path):
    """A thread that outlives the group sometimes aborts the process when the interpreter exits."""
    (tmp_path / "ends.py").write_text(ENDS)
    done = launched("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ends.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_sweep_under_a_launcher_is_one_sweep(tmp_path):
    """The launcher is accelerate's, which starts torchrun; the page on clusters starts torchrun itself."""
    plainly = ["--multi_gpu", "--num_machines", "1", "--num_processes", "2", "--mixed_precision", "bf16", "--dynamo_backend", "no"]
    small = ["task=listops", "task.length=24", "task.train=200", "task.valid=50", "task.test=50", "device=cpu"]  # imports no timm
    small += ["budget.steps=4", "budget.evaluate_every=2", "model.dim=16", "model.heads=2"]
    words = ["-m", "attn_zoo.cli", "run", "-m", "attention=none,softmax", *small]
    done = launched("accelerate.commands.launch", *plainly, "--gradient_accumulation_steps", "4", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 runs, 0 of them recorded already, 2 to do") == 1
    assert done.stdout.count("softmax on listops, seed 1: test accuracy") == 1
    assert done.stdout.count("at equal budgets") == 1, "the leaderboard is printed once"
    records, damaged = Store(tmp_path / "runs").load()
    assert damaged == [] and sorted(record.spec.attention for record in records) == ["none", "softmax"]
    assert {(r.environment["processes"], r.environment["backend"], r.status) for r in records} == {(2, "gloo", "done")}
    assert all(str(r.environment["command"]).startswith("attn-zoo run -m") for r in records)
    assert verify(tmp_path / "runs").findings == ()
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".json", ".json"]
    for record in records:
        alone = run(record.spec, Quiet())
        losses = [[point["train_loss"] for point in one.curve] for one in (record, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), "the launcher's precision and accumulation are not the run's"

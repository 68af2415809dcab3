"""Self-pretraining: masked tokens, equal masks for every row, training from the pretrained encoder, interruption and resuming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from run_helpers import CutShort, Quiet, StepClock
from torch import Tensor, nn

from attn_zoo.contract import UNASKED, Batch, Examples, Pairs, TaskSpec
from attn_zoo.encoder import build_model, build_token_reader
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.registry import build_task
from attn_zoo.runner import execute, resolve_spec, run
from attn_zoo.runner import train as loop
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.pretrain import MASK, masked, pretrain
from attn_zoo.runner.state import Trained

LISTOPS = {"length": 24, "train": 64, "valid": 20, "test": 20}


def spec(attention: str = "softmax", task: str = "listops", *, dropout: float = 0.0, **rest: Any) -> RunSpec:
    budget = {"steps": 8, "batch_size": 16, "evaluate_every": 4, "warmup_steps": 2, "pretrain_steps": 7, **rest.pop("budget", {})}
    model = ModelSpec(dim=16, heads=2, dropout=dropout)
    options = LISTOPS if task == "listops" else {}
    return resolve_spec(RunSpec(attention, task, task_options=options, model=model, budget=Budget(**budget), device="cpu", **rest))


class Steps(Quiet):
    """Progress display that keeps the numbers and losses of the reported steps."""

    def __init__(self) -> None:
        self.told: dict[int, float] = {}

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        assert valid is None or step > 0, "pretraining is not looked at"
        self.told[step] = loss


def drawn(shape: tuple[int, ...], vocabulary: int = 50) -> Tensor:
    return torch.randint(1, vocabulary, shape, generator=torch.Generator().manual_seed(0))


def test_fifteen_per_cent_of_the_real_tokens_are_asked_and_most_of_them_masked():
    ids = drawn((200, 100))
    lengths = torch.arange(200) % 100 + 1
    real = torch.arange(100) < lengths[:, None]
    batch = masked(Batch(ids * real, real, torch.zeros(200)), 50, torch.Generator().manual_seed(1))
    asked = batch.labels != UNASKED
    assert torch.equal(asked.sum(dim=1), (lengths * 15 // 100).clamp(min=1))
    assert not (asked & ~real).any() and batch.valid is not None and torch.equal(batch.valid, real)
    assert torch.equal(batch.labels[asked], ids[asked])
    assert torch.equal(batch.inputs[~asked], (ids * real)[~asked])
    seen, told = batch.inputs[asked], ids[asked]
    shares = [float(part.float().mean()) for part in (seen == MASK, seen == told, (seen != MASK) & (seen != told))]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert (asked.sum(dim=0)[:80] > 0).all(), "any place may be asked"


def test_masks_are_a_function_of_their_generator():
    batch = Batch(drawn((8, 40)), None, torch.zeros(8))
    first, again, other = (masked(batch, 50, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(first.labels, again.labels) and first.valid is None
    assert not torch.equal(first.labels, other.labels)


def test_the_two_of_a_pair_are_sequences_of_their_own():
    ids, real = drawn((6, 2, 20)), torch.ones(6, 2, 20, dtype=torch.bool)
    batch = masked(Batch(ids, real, torch.zeros(6)), 50, torch.Generator().manual_seed(1))
    asked = batch.labels != UNASKED
    assert batch.inputs.shape == batch.labels.shape == (12, 20) and (asked.sum(dim=1) == 3).all()
    assert torch.equal(batch.labels[asked], ids.flatten(0, 1)[asked])


def reader_of(inputs: Any) -> tuple[nn.Module, Any]:
    task = TaskSpec(inputs, 24, 3)
    sizes: Any = {"dim": 16, "depth": 1, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
    model = build_model(task, attention="softmax", options={}, **sizes)
    return model, build_token_reader(model, task)


class Doubled(Examples):
    """Pairs of equal sequences, in which every second token repeats the one before."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: Any) -> Batch:
        first = torch.stack([drawn((12,), 10 + int(at) % 5).repeat_interleave(2) for at in indices])
        return Batch(torch.stack([first, first], dim=1), None, torch.zeros(len(first), dtype=torch.long))

    def labels(self) -> Tensor:
        return torch.zeros(64, dtype=torch.long)

    def digest(self) -> str:
        return ""


def test_the_encoder_learns_to_tell_masked_tokens_and_the_head_of_the_classifier_stays():
    torch.manual_seed(0)
    model, reader = reader_of(Pairs(15))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    watch, accelerator, state = Steps(), Accelerator(cpu=True), Trained()
    budget = Budget(batch_size=16, pretrain_steps=60, warmup_steps=5, learning_rate=1e-2)
    pretrain(reader, Doubled(), loop.Setup(build_task("listops", **LISTOPS), budget, 1, accelerator, watch, state))
    assert list(watch.told) == list(range(-59, 1))
    assert watch.told[0] < 0.75 * watch.told[-59]
    after = model.state_dict()
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert all(name.startswith("encoder.") for name in moved)
    assert {name for name in before if name.startswith("encoder.")} == moved
    assert state.step_seconds == [] and state.curve == [] and state.pretrain_seconds > 0
    assert state.losses == [], "the curve has losses of the task only"
    assert accelerator._optimizers == [], "the next optimiser's gradients are not unscaled by this one as well"


def test_a_run_goes_on_from_the_pretrained_encoder_and_its_curve_is_the_tasks(monkeypatch):
    began = []

    def watched(model: nn.Module, *rest: Any) -> None:
        began.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        loop.train(model, *rest)

    monkeypatch.setattr(execute, "train", watched)
    watch = Steps()
    record, scratch = run(spec(), watch), run(spec(budget={"pretrain_steps": 0}), Quiet())
    assert record.status == scratch.status == "done", record.reason
    assert list(watch.told) == list(range(-6, 9))
    assert [point["step"] for point in record.curve] == [4, 8]
    assert record.measured["pretrain_seconds"] > 0 and "pretrain_seconds" not in scratch.measured
    equal = {name for name, tensor in began[0].items() if torch.equal(tensor, began[1][name])}
    assert {"head.weight", "head.bias"} <= equal and "encoder.embedding.weight" not in equal
    assert record.curve[0]["train_loss"] != scratch.curve[0]["train_loss"]


def test_every_row_reads_the_same_masks_with_the_same_head(monkeypatch):
    found: list[list[Tensor]] = []
    step = loop._step

    def watched(training: Any, batch: Batch, clip_norm: float) -> None:
        if training.pretraining:
            if training.step == 0:
                found.append([training.model.head.weight.detach().clone()])
            found[-1] += [batch.inputs, batch.labels]
        step(training, batch, clip_norm)

    monkeypatch.setattr(loop, "_step", watched)
    for attention in ("softmax", "linformer", "synthesizer_random"):
        run(spec(attention), Quiet())
    run(spec(seed=2), Quiet())
    first, *others, seeded = found
    assert len(first) == 1 + 2 * 7
    assert all(all(map(torch.equal, first, other)) for other in others)
    assert not any(map(torch.equal, first, seeded))


def test_flops_count_the_encoder_and_what_is_asked():
    """The pretraining head scores 16 ids for each of three masked tokens, in place of the classifier's 10 classes."""
    record = run(spec(), Quiet())
    classifier = record.counted["training_flops_per_example"]
    heads = 3 * 2 * 16 * (3 * 16 - 10)
    assert record.counted["pretraining_flops_per_example"] == classifier + heads
    assert "pretraining_flops_per_example" not in run(spec(budget={"pretrain_steps": 0}), Quiet()).counted


def without_clock(record: RunRecord) -> list[dict[str, float]]:
    return [{name: value for name, value in point.items() if name != "train_seconds"} for point in record.curve]


@pytest.mark.parametrize(
    ("attention", "options"),
    [("performer", {"redraw": 3}), pytest.param("reformer", {"redraw": 4}, marks=pytest.mark.exhaustive)],
)
def test_a_run_cut_short_in_pretraining_and_after_it_comes_to_the_same_bits(attention, options, tmp_path):
    asked = spec(attention, dropout=0.1, options=options)
    whole = run(asked, Quiet())
    for after, every in ((-1, 5), (6, 3)):  # interrupted after steps 6 of pretraining and 6 of training; checkpoints are of 5 and 6
        begun = Checkpoint(tmp_path, "cut", every=every, minutes=0)
        begun.open()
        with pytest.raises(KeyboardInterrupt):
            run(asked, CutShort(after), None, begun)
        torch.manual_seed(99)
        known = Checkpoint(tmp_path, "cut", every=0, minutes=0).open()
        assert str(known).startswith(f"goes on after step {'5 of pretraining' if after < 0 else '6'}, from")
    last, watch = Checkpoint(tmp_path, "cut", every=0, minutes=0), Steps()
    last.open()
    record = run(asked, watch, None, last)
    assert min(watch.told) == 6, "no step of pretraining is done again"
    assert record.scores == whole.scores and without_clock(record) == without_clock(whole)
    parts = [(part["step"], part.get("pretraining", False)) for part in record.environment["resumed"]]
    assert parts == [(5, True), (6, False)]
    assert record.measured["pretrain_seconds"] > 0


def test_time_is_told_apart_and_a_limit_counts_both(monkeypatch):
    """Each step takes one second; the second training step is profiled and not timed."""
    monkeypatch.setattr(loop, "time", StepClock(1.0))
    timed = run(spec(budget={"steps": 100, "seconds": 5.5}), Quiet())
    assert [point["step"] for point in timed.curve] == [4, 7] and timed.status == "done"
    assert (timed.measured["pretrain_seconds"], timed.measured["train_seconds"]) == (7.0, 6.0)
    early, late = (run(spec(budget={"max_seconds": limit}), Quiet()) for limit in (5.5, 9.5))
    assert early.status == late.status == "timed_out"
    assert early.reason == "training reached max_seconds=5.5 at 6 of 7 steps of pretraining"
    assert late.reason == "training reached max_seconds=9.5 at 4 of 8 steps"
    assert early.measured == {"pretrain_seconds": 6.0}


@pytest.mark.parametrize(("task", "words"), [("digits", "are patches"), ("mqar", "are labelled by position")])
def test_tasks_without_pretraining_refuse_it(task, words):
    record = run(spec(task=task), Quiet())
    assert record.status == "refused"
    assert words in str(record.reason) and "Set budget.pretrain_steps=0" in str(record.reason)

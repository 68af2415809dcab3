"""A single run: reproducible, with correct use of its splits, and recorded whatever fails."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from mutants.sound_tasks import Pictures, Readings, ReadingsByPosition, SeveralAtOnce, Sound, card_of
from patience import HANG
from run_helpers import Quiet
from torch import Tensor

from attn_zoo import Attention, UnknownNameError, registry
from attn_zoo.contract import METRICS, UNASKED, Batch, Examples, TaskSpec, Tokens
from attn_zoo.encoder import build_paired_model
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.registry import build_task
from attn_zoo.runner import metrics, resolve_spec, run
from attn_zoo.runner.execute import _implementation
from attn_zoo.runner.state import BatchSource


class Rows(Examples):
    """Examples with given tokens and labels."""

    def __init__(self, ids: Tensor, labels: Tensor) -> None:
        self.ids, self.answers = ids, labels

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices) -> Batch:
        at = torch.as_tensor(list(indices))
        return Batch(self.ids[at], None, self.answers[at])

    def labels(self) -> Tensor:
        return self.answers

    def digest(self) -> str:
        return ""


def spec(attention: str = "softmax", task: str = "digits", **changes) -> RunSpec:
    budget = Budget(**{"steps": 12, "batch_size": 32, "evaluate_every": 4, "warmup_steps": 2, **changes.pop("budget", {})})
    return resolve_spec(RunSpec(attention=attention, task=task, model=ModelSpec(dim=16, heads=2), budget=budget, **changes))


SMALL_LISTOPS = {"length": 24, "train": 200, "valid": 50, "test": 60}


@pytest.fixture
def broken(monkeypatch):
    """Return a function that registers an attention with a given behaviour, for one test."""

    def register(behave: Callable[[Attention, Tensor], Tensor]) -> str:
        class Broken(Attention):
            def attend(self, query, key, value, key_valid):
                return behave(self, value)

        Broken.card = replace(registry.card("uniform"), name="broken", build=Broken)
        monkeypatch.setitem(registry._ATTENTIONS, "broken", Broken.card)
        return "broken"

    return register


@pytest.mark.parametrize(("task", "options"), [("digits", {}), ("listops", SMALL_LISTOPS)])
def test_a_run_is_a_whole_record(task, options):
    record = run(spec(task=task, task_options=options), Quiet())
    assert record.status == "done", record.reason
    assert set(record.scores) == {"test", "valid", "train"}
    assert [point["step"] for point in record.curve] == [4, 8, 12]
    assert record.scores["valid"] == max(point["valid"] for point in record.curve)
    assert record.counted["flops_per_example"] > 0
    assert 0 < record.counted["attention_parameters"] < record.counted["parameters"]
    assert record.measured["peak_bytes"] > 2**16
    assert record.measured["examples_per_second"] == pytest.approx(32 / record.measured["step_seconds_median"])
    assert {part["digest"] for part in record.data.values()} and len({part["digest"] for part in record.data.values()}) == 3
    assert RunRecord.from_dict(record.to_dict()) == record


def test_the_record_counts_the_examples_of_the_part_that_tables_compare():
    sizes = {"length": 16, "train": 64, "valid": 16, "test": 30}
    record = run(spec(task="flip_flop", task_options=sizes, budget={"steps": 4}), Quiet())
    sparse = int(build_task("flip_flop", **record.spec.task_options).slices("test")["sparse"].sum())
    assert {split: part.get("distant") for split, part in record.data.items()} == {"train": None, "valid": None, "test": sparse}
    assert 0 < sparse < record.data["test"]["examples"]
    assert RunRecord.from_dict(record.to_dict()) == record


@pytest.mark.parametrize("attention", ["softmax", "performer", "reformer"])
def test_the_same_seed_gives_the_same_bits(attention):
    once, again = (run(spec(attention, "listops", task_options=SMALL_LISTOPS), Quiet()) for _ in range(2))
    assert once.status == again.status == "done", once.reason
    assert once.scores == again.scores
    assert [p["train_loss"] for p in once.curve] == [p["train_loss"] for p in again.curve]
    other = run(spec(attention, "listops", task_options=SMALL_LISTOPS, seed=2), Quiet())
    assert [p["train_loss"] for p in other.curve] != [p["train_loss"] for p in once.curve]


@pytest.mark.parametrize(
    ("attend", "status", "says"),
    [
        (lambda self, value: value * math.nan if self.training else value, "diverged", "the loss became nan at step 1"),
        (lambda self, value: value + torch.empty(2**52).sum(), "out_of_memory", ""),
        (lambda self, value: value.no_such_thing(), "failed", "no_such_thing"),
        (lambda self, value: torch.nn.functional.pad(value, (1, 1), mode="raised in PyTorch's files"), "failed", "PyTorch's files"),
    ],
)
def test_a_mechanism_that_fails_is_recorded_with_the_reason_and_its_place(broken, attend, status, says):
    record = run(spec(broken(attend)), Quiet())
    assert record.status == status and says in str(record.reason) and record.scores == {}
    if status == "failed":
        assert "test_run.py:" in str(record.reason) and "/" not in str(record.reason).split("(in ")[1]


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"attention": "linformer", "options": {"projected_length": 17}}, "refused", "must be less than the 17 keys"),
        ({"budget": {"max_seconds": 1e-9}}, "timed_out", "of 12 steps"),
    ],
)
def test_a_request_beyond_the_card_and_a_run_over_its_time_are_recorded(changes, status, says):
    record = run(spec(**changes), Quiet())
    assert record.status == status and says in str(record.reason)


def test_an_interrupt_is_no_record_even_if_the_row_makes_another_error_of_it(broken):
    def interrupted(self, value):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(HANG)

    def wrapped(self, value):
        try:
            interrupted(self, value)
        except KeyboardInterrupt as error:
            raise ValueError from error

    for attend in (interrupted, wrapped):
        with pytest.raises(KeyboardInterrupt):
            run(spec(broken(attend)), Quiet())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_a_row_raises_to_end_its_process_is_a_death_of_the_row(kind, broken):
    def leave(self, value):
        raise kind("bye")

    record = run(spec(broken(leave)), Quiet())
    assert record.status == "failed" and str(record.reason).startswith(f"{kind.__name__}: bye (in leave, test_run.py:")
    assert record.is_final, "it is not tried again when its command is typed again"


@pytest.mark.parametrize("harm", [SystemExit(0), KeyboardInterrupt(), 5])
def test_a_row_whose_error_cannot_be_read_is_a_failed_row(harm, broken):
    class UnreadableError(Exception):
        def __str__(self) -> str:
            if isinstance(harm, BaseException):
                raise harm
            return harm  # no text

    def fail(self, value):
        raise UnreadableError

    record = run(spec(broken(fail)), Quiet())
    assert record.status == "failed" and "UnreadableError: its message cannot be read" in str(record.reason)
    assert not record.is_final


def test_the_test_split_is_read_once_and_after_training(monkeypatch):
    reads = []

    evaluate_parts = metrics.evaluate_parts

    def watched(model, examples, *rest):
        reads.append(len(examples))
        return evaluate_parts(model, examples, *rest)

    monkeypatch.setattr("attn_zoo.runner.metrics.evaluate_parts", watched)
    monkeypatch.setattr("attn_zoo.runner.execute.evaluate_parts", watched)
    record = run(spec(), Quiet())
    sizes = {split: part["examples"] for split, part in record.data.items()}
    assert len(set(sizes.values())) == 3
    assert reads == [sizes["valid"]] * 3 + [sizes["train"], sizes["test"]]


def test_batches_depend_on_the_seed_alone_and_cover_an_epoch():
    def some(seed: int) -> list[list[int]]:
        source = BatchSource(Rows(torch.arange(10)[:, None], torch.arange(10)), 4, seed, lambda batch, chance: batch)
        return [next(source).labels.tolist() for _ in range(6)]

    assert some(1) == some(1) != some(2)
    assert len({i for batch in some(1)[:2] for i in batch}) == 8, "an epoch repeats no example"


@pytest.mark.parametrize("task", ["digits", "listops"])
def test_rows_start_from_the_same_shared_weights(task):
    models = {}
    for name in registry.attentions():
        chosen = spec(name, task)
        task_spec = registry.build_task(task, **chosen.task_options).spec
        models[name] = build_paired_model(task_spec, seed=3, implementation="eager", **chosen.network).state_dict()
    reference = models["softmax"]
    for name, weights in models.items():
        shared = [key for key in weights if key in reference]
        assert all(torch.equal(weights[key], reference[key]) for key in shared), name
        assert len(shared) > 0.7 * len(reference), name


def test_chance_is_the_constant_answer_of_the_training_shares():
    train, test = torch.tensor([1, 1, 0]), torch.tensor([0, 0, 1, 1, 1])
    task, names = TaskSpec(Tokens(2), 1, 2), METRICS["classification"]
    found = {name: metrics.constant_score(train, test, task, metrics.MEASURES[name]) for name in names}
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["f1"] == pytest.approx(2 * 3 / (2 * 3 + 2)), "always class 1: three right, two wrong"
    assert found["perplexity"] == pytest.approx((3**2 * 1.5**3) ** 0.2), "probabilities 1/3 twice and 2/3 three times"


def test_positions_that_are_not_asked_count_for_nothing():
    labels = torch.tensor([[1, UNASKED, 0], [UNASKED, UNASKED, 1]])
    batch = Batch(torch.ones(2, 3, dtype=torch.long), None, labels)
    seen = []

    class Model(torch.nn.Module):
        def forward(self, inputs, valid, asked):
            seen.append(asked)
            return torch.eye(2)[torch.tensor([1, 1, 1])]

    scores, asked_labels = metrics.answers(Model(), batch)
    assert torch.equal(seen[0], labels != UNASKED)
    assert asked_labels.tolist() == [1, 0, 1] and scores.shape == (3, 2)


def test_every_example_is_scored_and_parts_apart_in_the_same_reading():
    ids = torch.arange(600)
    examples = Rows(ids[:, None] % 3, torch.where(ids < 300, ids % 3, (ids + 1) % 3))
    read = []

    class Model(torch.nn.Module):
        def forward(self, inputs, valid):
            read.append(len(inputs))
            return torch.nn.functional.one_hot(inputs[:, 0], 3).float()

    parts = {"all": ids >= 0, "first": ids < 300, "mixed": (ids >= 200) & (ids < 400), "none": ids < 0}
    accuracy = metrics.measure_named("accuracy")
    found = metrics.evaluate_parts(Model(), examples, TaskSpec(Tokens(3), 1, 3), accuracy, Accelerator(cpu=True), parts)
    assert found == {"all": 0.5, "first": 1.0, "mixed": 0.5}
    assert sum(read) == 600
    assert metrics.evaluate(Model(), examples, TaskSpec(Tokens(3), 1, 3), accuracy, Accelerator(cpu=True)) == 0.5
    assert sum(read) == 1200


def test_parts_of_positions_are_scored_apart():
    labels = torch.tensor([[1, UNASKED, 0], [1, 1, 1]]).repeat(200, 1)  # the model answers 1 everywhere, in two batches
    examples = Rows(torch.ones(400, 3, dtype=torch.long), labels)

    class Model(torch.nn.Module):
        def forward(self, inputs, valid, asked):
            return torch.tensor([0.0, 1.0]).expand(int(asked.sum()), 2)

    last = (labels != UNASKED) & (torch.arange(3) == 2)
    parts = {"first": (labels != UNASKED) & (torch.arange(3) == 0), "last": last, "even": torch.arange(400) % 2 == 0}
    accuracy, spec = metrics.measure_named("accuracy"), TaskSpec(Tokens(3), 3, 2, labels="position")
    found = metrics.evaluate_parts(Model(), examples, spec, accuracy, Accelerator(cpu=True), parts)
    assert found == {"first": 1.0, "last": 0.5, "even": 0.5}


def test_perplexity_is_better_when_lower_and_unknown_metrics_are_refused():
    assert metrics.measure_named("perplexity").better(2.0, 3.0) and not metrics.measure_named("perplexity").better(3.0, 2.0)
    assert metrics.measure_named("accuracy").better(0.5, 0.4) and metrics.measure_named("accuracy").better(0.1, None)
    with pytest.raises(UnknownNameError, match="no metric is called 'acuracy'; did you mean 'accuracy'"):
        metrics.measure_named("acuracy")
    with pytest.raises(ValueError, match="two classes, because it is the F1 score of class 1 against class 0; this task has 3"):
        metrics.measure_named("f1").make(3)


def test_flops_are_those_of_the_card_and_the_rest_of_the_network():
    found = {name: run(spec(name), Quiet()).counted["flops_per_example"] for name in ("none", "softmax")}
    geometry_flops = 2 * 4 * 17 * 17 * 16  # depth 2, n = 17, width 16
    projections = 2 * 2 * (2 * 17 * 16 * 16)  # of queries and keys, which the control lacks
    assert found["softmax"] - found["none"] == geometry_flops + projections


def test_records_name_the_implementation_that_auto_took():
    taken = {name: run(spec(name), Quiet()) for name in ("softmax", "linear", "uniform")}
    assert {record.spec.implementation for record in taken.values()} == {"auto"}
    wanted = {"softmax": "sdpa", "linear": "tiled", "uniform": "eager"}
    assert {name: record.implementation for name, record in taken.items()} == wanted
    assert run(spec("softmax", implementation="eager"), Quiet()).implementation == "eager"
    refused = run(replace(spec("fnet"), task="listops", task_options={}), Quiet())
    assert (refused.status, refused.implementation) == ("refused", "eager")


def test_auto_knows_the_precision_of_the_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    asked = replace(spec("gated_linear"), device="cuda")
    task = build_task(asked.task, **asked.task_options).spec
    taken = {precision: _implementation(replace(asked, precision=precision), task) for precision in ("fp32", "bf16", "fp16")}
    assert taken == {"fp32": "eager", "bf16": "fla", "fp16": "eager"}


def test_an_option_added_later_is_left_out_of_specs_where_it_is_off():
    """Older committed records of the task do not have the option."""
    plain, ladder = (
        resolve_spec(RunSpec("softmax", "mqar", task_options=given))
        for given in ({"fewest_pairs": 0, "most_pairs": 0}, {"fewest_pairs": 4, "most_pairs": 8})
    )
    assert {"pairs", "vocabulary"} <= set(plain.task_options)
    assert not {"fewest_pairs", "most_pairs"} & set(plain.task_options)
    assert (ladder.task_options["fewest_pairs"], ladder.task_options["most_pairs"]) == (4, 8)
    assert resolve_spec(plain) == plain and resolve_spec(ladder) == ladder


def test_specs_name_the_version_of_the_attention_and_ids_follow_it():
    versions = {"linear": 1, "gated_linear": 2, "linear+gated_linear": 2}
    assert {name: resolve_spec(RunSpec(name, "mqar")).attention_version for name in versions} == versions
    first = resolve_spec(RunSpec("linear", "mqar"))
    second = replace(first, attention_version=2)
    assert "attention_version" not in first.to_dict() and first.run_id("1") != second.run_id("1")
    assert RunSpec.from_dict(second.to_dict()) == second and resolve_spec(second) == first


def test_specs_are_resolved_whole_and_bad_ones_refused():
    resolved = resolve_spec(RunSpec("performer", "mnist", implementation="auto", device="auto"))
    assert resolved.implementation == "auto"
    assert resolved.device in ("cpu", "cuda")
    assert resolved.options["kernel"] == "softmax"
    assert "root" not in resolved.task_options
    assert resolve_spec(replace(resolved)) == resolved
    for bad, error, message in (
        ({"device": "tpu"}, ValueError, "auto, cpu or cuda"),
        ({"precision": "fp16", "device": "cpu"}, ValueError, "precision=fp16 needs a GPU"),
        ({"options": {"widow": 3}}, UnknownNameError, "did you mean 'window'"),
    ):
        with pytest.raises(error, match=message):
            resolve_spec(replace(RunSpec("longformer", "digits"), **bad))


def test_autocast_runs_are_possible_and_another_precision_may_follow():
    for precision in ("bf16", "fp32"):
        assert run(spec(precision=precision), Quiet()).status == "done"


def test_a_config_of_accelerates_launcher_changes_nothing(monkeypatch):
    asked_for = spec(task="listops", task_options=SMALL_LISTOPS)
    plain = run(asked_for, Quiet())
    for name, value in (("DYNAMO_BACKEND", "EAGER"), ("MIXED_PRECISION", "bf16"), ("GRADIENT_ACCUMULATION_STEPS", "4")):
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    again = run(asked_for, Quiet())
    assert again.status == "done", again.reason
    assert again.scores == plain.scores
    assert [point["train_loss"] for point in again.curve] == [point["train_loss"] for point in plain.curve]


def recorded(kind, monkeypatch, **changes) -> RunRecord:
    card = card_of(kind, **changes)
    monkeypatch.setitem(registry._TASKS, card.name, card)
    return run(spec(task=card.name, budget={"steps": 3, "batch_size": 8, "evaluate_every": 3}), Quiet())


@pytest.mark.parametrize("kind", [Sound, Pictures, SeveralAtOnce, Readings, ReadingsByPosition])
def test_a_run_is_recorded_with_its_kind_of_problem(kind, monkeypatch):
    record = recorded(kind, monkeypatch)
    assert record.status == "done", record.reason
    assert {"train", "valid", "test"} <= set(record.scores) and record.chance is not None
    assert all(math.isfinite(score) for score in record.scores.values())
    problem = kind(None).spec.problem
    assert record.task_card.get("problem", "classification") == problem
    assert ("problem" in record.task_card) == (problem != "classification"), "records of classification are as they were"
    assert record.counted["training_flops_per_example"] > record.counted["flops_per_example"] > 0
    again = RunRecord.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again == record and again.run_id == record.run_id


def test_a_metric_of_another_problem_fails_before_training(monkeypatch):
    record = recorded(Readings, monkeypatch, metric="accuracy")
    assert record.status == "failed" and not record.curve
    assert (
        record.reason is not None
        and "accuracy cannot be used for this task, because its problem is regression. Use r2 or mse" in record.reason
    )

"""Runs until a criterion: where they stop, what they test, how soon they were there, and what the seed draws."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from run_helpers import CutShort, Quiet

from attn_zoo.cli.words import _budget_from
from attn_zoo.contract import Level
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.records.criterion import ALIKE, criterion_budget, is_flat, is_met, reached
from attn_zoo.registry import build_task, task_card
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner import train as loop
from attn_zoo.runner.checkpoint import Checkpoint

MQAR = {"length": 16, "pairs": 2, "vocabulary": 16, "train": 60, "valid": 20, "test": 20}


def spec(task: str = "mqar", ceiling: float = 1.0, steps: int = 24, seed: int = 1, **rest: Any) -> RunSpec:
    budget = Budget(
        steps=steps, batch_size=8, evaluate_every=3, warmup_steps=3, schedule="constant", until="criterion", ceiling=ceiling
    )
    options = MQAR if task == "mqar" else {}
    return resolve_spec(RunSpec("softmax", task, task_options=options, model=ModelSpec(dim=16), budget=budget, seed=seed, **rest))


def points(*scores: float | None, losses: list[float] | None = None) -> list[dict[str, Any]]:
    return [
        {"step": 50 * at, "train_seconds": 1.5 * at, "train_loss": losses[at - 1] if losses else 1.0, "valid": score}
        for at, score in enumerate(scores, 1)
    ]


def test_the_criterion_is_three_validations_in_a_row_at_99_percent_of_the_ceiling():
    assert not is_met(points(1.0, 1.0), 1.0), "two are too few"
    assert is_met(points(0.2, 0.99, 1.0, 0.991), 1.0)
    assert not is_met(points(1.0, 1.0, 0.98, 1.0), 1.0), "not in a row"
    assert is_met(points(0.95, 0.95, 0.95), 0.955), "a lower ceiling"
    assert not is_met(points(40.0, 30.0, 20.0), 0.0), "a perplexity has no ceiling"
    (score,) = torch.tensor([0.99 * 0.65]).tolist()
    assert score < 0.99 * 0.65 and is_met(points(*[score] * 3), 0.65), "scores are rounded to float32"


def test_how_soon_is_the_first_validation_at_a_share_of_the_ceiling_and_none_beyond_the_cap():
    found = reached(points(0.1, 0.46, 0.3, 0.85), 0.9, 2e6)
    assert found == {
        "50": {"steps": 100, "seconds": 3.0, "flops": 2e8},
        "90": {"steps": 200, "seconds": 6.0, "flops": 4e8},
        "99": None,
    }
    assert reached(points(0.95), 1.0, None)["90"] == {"steps": 50, "seconds": 1.5}, "FLOPs are not counted"
    assert reached(points(12.0), 0.0, 1.0) == {}
    assert reached(points(torch.tensor(0.9).item()), 1.0, None)["90"], "scores are rounded to float32"


def test_a_loss_that_falls_by_less_than_two_percent_after_the_warm_up_is_flat():
    assert is_flat(points(0, 0, 0, losses=[5.0, 4.0, 3.95]), 50) is True, "the first interval is the warm-up"
    assert is_flat(points(0, 0, 0, losses=[5.0, 4.0, 3.9]), 50) is False
    assert is_flat(points(0, 0, losses=[5.0, 4.0]), 50) is None, "one interval after the warm-up"


def test_the_cap_is_four_times_the_steps_and_at_least_2400_with_48_validations():
    assert criterion_budget({"steps": 1200, "batch_size": 32}, {}, 1.0) == {
        **{"steps": 4800, "batch_size": 32, "evaluate_every": 100, "schedule": "constant", "ceiling": 1.0},
    }
    assert criterion_budget({"steps": 400}, {}, 0.98)["steps"] == 2400
    typed = criterion_budget({"steps": 400}, {"steps": 480}, 1.0)
    assert (typed["steps"], typed["evaluate_every"]) == (480, 10), "a cap that is typed"
    level = Level({}, {"steps": 500}, ceiling=0.9)
    assert _budget_from(level, "accuracy", {"until": "criterion"}).ceiling == 0.9
    assert _budget_from(level, "perplexity", {"until": "criterion"}).ceiling == 0.0
    assert _budget_from(level, "accuracy", {}).to_dict() == Budget(steps=500).to_dict(), "a fixed budget stays as it is"


def test_a_run_stops_at_the_criterion_and_is_a_whole_record(monkeypatch):
    monkeypatch.setattr(loop, "evaluate", lambda *_: 0.995)
    record = run(spec(), Quiet())
    assert (record.status, record.stopped, record.protocol) == ("done", "criterion", "3.0"), record.reason
    assert [point["step"] for point in record.curve] == [3, 6, 9]
    reach = record.reached["90"]
    assert reach is not None and reach["steps"] == 3
    assert reach["flops"] == 3 * 8 * record.counted["training_flops_per_example"]
    assert record.flat in (True, False) and record.task_card["criterion"] == "validation"
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_run_that_does_not_get_there_ends_at_the_cap_with_the_last_weights(monkeypatch):
    scores = iter([0.5, 0.9, 0.4, 0.3])
    monkeypatch.setattr(loop, "evaluate", lambda *_: next(scores))
    record = run(spec(steps=12), Quiet())
    assert (record.status, record.stopped, record.scores["valid"]) == ("done", "cap", 0.3), record.reason
    assert record.reached["99"] is None and record.reached["90"] is not None


def test_the_rate_is_constant_so_that_a_shorter_cap_is_the_beginning_of_a_longer_one():
    short, whole = run(spec(steps=6, ceiling=0.0), Quiet()), run(spec(steps=12, ceiling=0.0), Quiet())
    assert [point["valid"] for point in whole.curve][:2] == [point["valid"] for point in short.curve]
    assert [point["train_loss"] for point in whole.curve][:2] == [point["train_loss"] for point in short.curve]


def test_a_ceiling_that_every_score_or_no_score_meets_is_refused():
    with pytest.raises(ValueError, match=r"budget\.ceiling must be at most 0 for the metric perplexity, where lower is better"):
        spec("causal_language", ceiling=20.0)
    with pytest.raises(ValueError, match=r"budget\.ceiling must be at most 1 for the metric accuracy, its highest score; got 1\.5"):
        spec(ceiling=1.5)


def test_a_longer_run_goes_on_from_the_last_step_of_a_shorter_one(tmp_path):
    whole = run(spec(steps=12, ceiling=0.0), Quiet())
    begun = Checkpoint(tmp_path, "short", minutes=0)
    begun.longer = "long"
    run(spec(steps=6, ceiling=0.0), Quiet(), None, begun)
    again = Checkpoint(tmp_path, "long", minutes=0)
    assert str(again.open()).startswith("goes on after step 6")
    record = run(spec(steps=12, ceiling=0.0), Quiet(), None, again)
    assert [point["step"] for point in record.environment["resumed"]] == [6]
    assert [{**p, "train_seconds": 0} for p in record.curve] == [{**p, "train_seconds": 0} for p in whole.curve]
    assert record.scores == whole.scores


def test_a_shorter_run_that_is_cut_short_at_its_last_step_hands_on_its_state_all_the_same(tmp_path):
    begun = Checkpoint(tmp_path, "short", every=6, minutes=0)
    with pytest.raises(KeyboardInterrupt):  # begun.longer is not set: as if the process died before the state was handed on
        run(spec(steps=6, ceiling=0.0), CutShort(6), None, begun)
    again = Checkpoint(tmp_path, "short", minutes=0)
    again.longer = "long"
    assert str(again.open()).startswith("goes on after step 6")
    run(spec(steps=6, ceiling=0.0), Quiet(), None, again)
    assert str(Checkpoint(tmp_path, "long", minutes=0).open()).startswith("goes on after step 6")


def test_a_run_that_is_cut_short_stops_where_the_whole_one_does(tmp_path):
    whole = run(spec(), Quiet())
    with pytest.raises(KeyboardInterrupt):
        run(spec(), CutShort(5), None, Checkpoint(tmp_path, "cut", every=1, minutes=0))
    again = Checkpoint(tmp_path, "cut", minutes=0)
    assert str(again.open()).startswith("goes on after step 5")
    record = run(spec(), Quiet(), None, again)
    assert [{**p, "train_seconds": 0} for p in record.curve] == [{**p, "train_seconds": 0} for p in whole.curve]
    assert (record.stopped, record.scores, record.flat) == (whole.stopped, whole.scores, whole.flat)


def test_the_seed_draws_the_examples_of_a_generated_task_alone():
    assert [spec(seed=seed).task_options["data_seed"] for seed in (0, 1, 7)] == [0, 1, 7]
    first, second = (run(spec(seed=seed, steps=3), Quiet()).data for seed in (1, 2))
    assert all(first[split]["digest"] != second[split]["digest"] for split in ("train", "valid", "test"))
    assert spec("digits", seed=5).task_options["data_seed"] == 0, "the division of real images stays"
    fixed = RunSpec("softmax", "mqar", task_options=MQAR, seed=7, device="cpu")
    assert resolve_spec(fixed).task_options["data_seed"] == 0, "a fixed budget keeps its data"


def test_protocols_of_fixed_budgets_are_as_before():
    fixed = replace(spec(), budget=Budget())
    assert (fixed.protocol, spec().protocol) == ("2.0", "3.0")
    assert fixed.run_id("1") == fixed.run_id("1", "2.0") != fixed.run_id("1", "3.0")


@pytest.mark.parametrize(
    ("task", "level", "words"),
    [
        ("mqar", "profile_decoder", "validation, with 4 to 16 pairs"),
        ("mqar", "profile_encoder", ALIKE),
        ("needle", "profile_encoder", ALIKE),
        ("state_words", "profile_decoder", "validation, with words of 32 elements"),
        ("flip_flop", "profile_decoder", "validation, in distribution"),
        ("needle", "profile_decoder", "validation, with 64 tokens"),
    ],
)
def test_tasks_whose_test_has_other_examples_name_those_that_the_criterion_reads(task, level, words):
    assert build_task(task, **task_card(task).level(level).options).criterion == words

"""``experiment=linformer_table2_pretrained``: rows of Table 2 from scratch under equal budgets, and the search for their rates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from committed import records_in

from attn_zoo.cli.compose import plan
from attn_zoo.cli.tune import plan_searches, read_request
from attn_zoo.records import RunSpec


@cache
def planned(*words: str) -> tuple[RunSpec, ...]:
    return plan(["-m", "experiment=linformer_table2_pretrained", *words]).specs


TASKS = ("sst2", "imdb", "qnli", "mrpc")


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_a_task_are_pretrained_and_differ_in_attention_and_rate_alone(task):
    specs = [spec for spec in planned("seed=1") if spec.task == task]
    assert len({(str(replace(spec.budget, learning_rate=1.0)), str(spec.model), str(spec.task_options)) for spec in specs}) == 1
    assert specs[0].budget.pretrain_steps > 0
    assert {spec.attention for spec in specs} == {"softmax", "linformer", "uniform"}
    n = specs[0].task_options["length"]
    settings = {
        (n // spec.options["projected_length"], spec.options.get("init"), spec.options.get("equalised"))
        for spec in specs
        if spec.attention == "linformer"
    }
    assert settings == {(4, "pooling", True), (2, "pooling", True)}


def test_three_seeds_and_as_many_tokens_a_step_on_all_tasks():
    assert {spec.task for spec in planned()} == set(TASKS)
    assert {spec.seed for spec in planned()} == {1, 2, 3}
    assert len({spec.budget.batch_size * spec.task_options["length"] for spec in planned()}) == 1


LONGER = ("task.length=128", "budget.batch_size=16")
WORDS = {
    "sst2": (),
    "imdb": ("task=imdb", *LONGER),
    "qnli": ("task=qnli", "task.files=dev", *LONGER),
    "mrpc": ("task=mrpc", *LONGER),
}


@pytest.mark.parametrize(("task", "words"), WORDS.items())
def test_rates_are_chosen_by_trials_of_the_same_setting_at_half_of_the_steps(task, words):
    search = plan_searches(read_request(["experiment=linformer_table2_rates", "attention=softmax", *words]))[0]
    base = search.specs[0]
    assert search.study is not None and set(search.study.space) == {"budget.learning_rate"}
    like = next(spec for spec in planned("seed=1") if (spec.task, spec.attention) == (task, "softmax"))
    assert (base.task_options, base.model, base.budget.batch_size) == (like.task_options, like.model, like.budget.batch_size)
    assert (2 * base.budget.steps, 2 * base.budget.pretrain_steps) == (like.budget.steps, like.budget.pretrain_steps)


def test_rates_are_those_that_the_committed_trials_chose():
    trials = [record for record in records_in("linformer_table2_rates") if record.is_trial]
    best = {(r.spec.task, r.spec.attention): r for r in sorted(trials, key=lambda record: record.scores["valid"])}
    assert {(spec.task, spec.attention) for spec in planned("seed=1")} == best.keys()
    for spec in planned("seed=1"):
        assert spec.budget.learning_rate == best[spec.task, spec.attention].spec.budget.learning_rate

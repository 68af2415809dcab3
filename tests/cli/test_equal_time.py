"""``experiment=equal_time``: one task, network and time for every row, and a report that can be asked for."""

from __future__ import annotations

from dataclasses import replace

from attn_zoo import card
from attn_zoo.cli.compose import plan
from attn_zoo.cli.tune import plan_searches, read_request
from attn_zoo.registry import build_task
from attn_zoo.runner.count import count_mechanisms


def test_every_row_has_the_same_time_at_a_constant_rate_and_fits_the_task():
    bases = [search.study.base for search in plan_searches(read_request(["experiment=equal_time"])) if search.study]
    (shared,) = {(spec.task, spec.model, spec.budget, str(spec.task_options)) for spec in bases}
    assert (shared[2].seconds, shared[2].schedule) == (180, "constant")
    task = build_task(shared[0], **bases[0].task_options).spec
    assert (task.length, task.causal) == (1024, False)
    flops = {spec.attention: count_mechanisms(spec, task)["mechanism_flops"] for spec in bases}
    efficient = [name for name, count in flops.items() if not card(name).control and 2 * count < flops["softmax"]]
    assert len(efficient) >= 6 and set(flops) - set(efficient) == {"softmax", "uniform"}


def test_half_an_hour_has_the_same_runs_for_longer():
    bases = {
        search.study.base.attention: search.study.base
        for search in plan_searches(read_request(["experiment=equal_time"]))
        if search.study
    }
    longer = plan(["-m", "experiment=equal_time_half_hour", f"attention={','.join(bases)}"]).specs
    assert {(spec.attention, spec.seed) for spec in longer} == {(name, seed) for name in bases for seed in (1, 2, 3)}
    for spec in longer:
        base = bases[spec.attention]
        budget = replace(spec.budget, seconds=base.budget.seconds, learning_rate=base.budget.learning_rate)
        assert spec.budget.seconds == 1800 and replace(spec, budget=budget, seed=base.seed) == base


def test_budgets_can_be_given_a_time():
    planned = plan(["attention=linear", "task=listops", "budget.seconds=90", "budget.schedule=constant", "budget.steps=100000"])
    (spec,) = planned.specs
    assert (spec.budget.seconds, spec.budget.schedule, spec.budget.steps) == (90, "constant", 100_000)

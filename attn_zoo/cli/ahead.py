"""Runs and core hours that a command asks for, by task and row, before anything starts: the flag ``--plan``."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.cli.bracket import most
from attn_zoo.cli.plan import Plan
from attn_zoo.cli.search import Study, bracket_rates
from attn_zoo.cli.seeds import FEW, USUAL
from attn_zoo.records import RunRecord, RunSpec, Store
from attn_zoo.reference import packed_file, shipped
from attn_zoo.registry import build_task
from attn_zoo.rows import row_of
from attn_zoo.runner.count import count_per_example, counted_implementation
from attn_zoo.runner.facts import attention_facts
from attn_zoo.terminal import table

PLAN = "--plan"
_HEAD = ("task", "row", "runs at most", "step (ms)", "core hours at most")
_SIZES = ("train", "valid", "test", "data_seed")
"""Options of a task that do not change the time of a step."""


def ahead(planned: Sequence[Plan], seeds: Sequence[int] = ()) -> str:
    """Return a table of the runs that are not recorded yet and of their core hours, by task and row, and the sum.

    A step takes as long as in records of the same network, task and batch size, in the folder of records or shipped with the
    package: the median of the row's own, else that of softmax times the ratio of counted training FLOPs. An example in validation
    counts as a third of one in training. Every run is counted to its last step. Times are those of the machines of the records.

    Args:
        planned: plans of runs or of searches, which are followed by runs with the best settings.
        seeds: seeds of the runs with the best settings; empty for the usual number.
    """
    known = [record for plan in planned[:1] for record in _recorded(plan.settings.records)]
    lines: dict[tuple[str, str], list[tuple[int, float, float | None]]] = defaultdict(list)
    for plan in planned:
        for spec, runs, steps in _work(plan, seeds):
            validated = steps / spec.budget.evaluate_every * spec.task_options.get("valid", 0) / (3 * spec.budget.batch_size)
            lines[spec.task, spec.attention].append((runs, steps + validated, step_seconds(spec, known)))
    body, total, unknown = [], 0.0, 0
    for (task, row), parts in lines.items():
        hours = [steps * seconds / 3600 for _, steps, seconds in parts if seconds is not None]
        total, unknown = total + sum(hours), unknown + (len(hours) < len(parts))
        seconds = parts[0][2]
        told = "unknown" if seconds is None else f"{1000 * seconds:.1f}"
        body.append(
            [task, row, sum(runs for runs, _, _ in parts), told, f"{sum(hours):.2f}" if len(hours) == len(parts) else "unknown"]
        )
    runs = sum(runs for parts in lines.values() for runs, _, _ in parts)
    words = f"\n{len(body)} cells, at most {runs} runs and {total:.1f} core hours"
    words += f", without {unknown} cells whose speed is not recorded" if unknown else ""
    return table(_HEAD, body, left=(0, 1)) + f"\n{words}."


def step_seconds(spec: RunSpec, known: Sequence[RunRecord]) -> float | None:
    """Return the expected seconds of a training step; None if neither the row nor softmax has a record on the task."""
    fit = [record for record in known if _alike(record.spec, spec) and "step_seconds_median" in record.measured]
    own = [record.measured["step_seconds_median"] for record in fit if record.spec.attention == spec.attention]
    if own:
        return statistics.median(own)
    softmax = [record for record in fit if record.spec.attention == "softmax"]
    if not softmax:
        return None
    counted = count_per_example(spec, build_task(spec.task, **spec.task_options).spec, counted_implementation(spec))
    ratio = _flops(counted) / _flops(softmax[0].counted)
    return ratio * statistics.median(record.measured["step_seconds_median"] for record in softmax)


def _flops(counted: Any) -> float:
    """FLOPs of training, or those of the forward pass times three where the backward pass is not counted."""
    return counted.get("training_flops_per_example") or 3 * counted["flops_per_example"]


def _alike(one: RunSpec, other: RunSpec) -> bool:
    """Tell whether steps of two runs have the same task, network and batch size."""

    def shared(spec: RunSpec) -> Any:
        options = {name: value for name, value in spec.task_options.items() if name not in _SIZES}
        return spec.task, options, spec.model, spec.budget.batch_size, spec.device, spec.precision

    return shared(one) == shared(other)


def _recorded(folder: str) -> Iterable[RunRecord]:
    """Records of a folder and of the sets in the package."""
    for root in [Path(folder), *map(packed_file, shipped())]:
        yield from Store(root).load()[0]


def _work(plan: Plan, seeds: Sequence[int]) -> Iterable[tuple[RunSpec, int, int]]:
    """Spec, number of runs, and number of steps of all of them, to the last one."""
    if plan.study is None:
        for job in plan.left():
            yield job.spec, 1, job.spec.budget.steps
        return
    base = plan.study.base
    trials, steps = _trials(plan.study)
    main = base.attention in plan.settings.tuning.main or attention_facts(row_of(base))["control"]
    after = len(seeds) or (FEW if plan.study.trials else USUAL if main else FEW)
    yield base, trials + after, steps + after * base.budget.steps


def _trials(study: Study) -> tuple[int, int]:
    """Number of trials of a search, and of their steps."""
    if study.trials:
        return study.trials, study.trials * study.base.budget.steps
    return most(study.base.budget.steps, bracket_rates(study))

"""The flag ``--plan``: print a table of the runs and core hours that a command would need, without starting a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_zoo.cli.bracket import FEW, USUAL, most, next_trials
from attn_zoo.cli.job import Job
from attn_zoo.cli.search import Study, bracket_rates, bracket_results, trial_of
from attn_zoo.grouping import grouped
from attn_zoo.records import RunRecord, RunSpec, Store
from attn_zoo.records.tuning import trials_of
from attn_zoo.reference import packed_file, shipped
from attn_zoo.registry import build_task
from attn_zoo.runner.count import count_per_example, counted_implementation
from attn_zoo.runner.facts import attention_facts
from attn_zoo.terminal import table

if TYPE_CHECKING:
    from attn_zoo.cli.run import Plan

PLAN = "--plan"
_HEAD = ("task", "row", "runs at most", "core hours at most")
_SIZES = ("train", "valid", "test", "data_seed")
"""Options of a task that do not change the time of a training step."""


def ahead(planned: Sequence[Plan], seeds: Sequence[int] = ()) -> str:
    """Return a table of the runs that have no record yet, and of the core hours that they need. The table has one line per task and
    mechanism; the last line states the sums.

    The time of a training step comes from earlier records, whatever machine they were made on (see ``step_seconds``). Validation on
    an example is assumed to take a third of the time of training on it. A run with ``budget.seconds`` is assumed to train for this
    time, and any other run for its maximum number of steps.

    Args:
        planned: plans of runs or of searches. A search also needs the runs with its best settings.
        seeds: seeds of the runs with the best settings; if empty, the usual number of seeds is assumed.
    """
    own = [record for plan in planned[:1] for record in Store(Path(plan.settings.records)).load()[0]]
    known = [*own, *(record for name in shipped() for record in Store(packed_file(name)).load()[0])]
    lines: dict[tuple[str, str], list[tuple[int, float | None]]] = defaultdict(list)
    for plan in planned:
        for job, runs, steps in _work(plan, seeds, own):
            if runs:
                lines[job.spec.task, job.spec.attention].append((runs, _hours(job, runs, steps, known)))
    if not lines:
        return "All runs are recorded: nothing is left to do."
    body, total, unknown = [], 0.0, 0
    for (task, row), parts in lines.items():
        hours = [part for _, part in parts if part is not None]
        total, unknown = total + sum(hours), unknown + (len(hours) < len(parts))
        told = f"{sum(hours):.2f}" if len(hours) == len(parts) else "unknown"
        body.append([task, row, sum(runs for runs, _ in parts), told])
    runs = sum(runs for parts in lines.values() for runs, _ in parts)
    cells, all_runs, slow = (f"{n} {name}{'s' * (n != 1)}" for n, name in ((len(body), "cell"), (runs, "run"), (unknown, "cell")))
    if unknown == len(body):
        left = ". The core hours are unknown, because no run of these cells is recorded"
    else:
        left = f" and {total:.1f} core hours" + (f", without {slow} whose speed is not recorded" if unknown else "")
    return table(_HEAD, body, left=(0, 1)) + f"\n\n{cells}, at most {all_runs}{left}."


def _hours(job: Job, runs: int, steps: int, known: Sequence[RunRecord]) -> float | None:
    """Return the core hours of runs with ``steps`` steps in all; None if they are unknown."""
    budget = job.spec.budget
    validated = job.spec.task_options.get("valid", 0) / (3 * budget.batch_size * budget.evaluate_every)
    if budget.seconds:
        return runs * budget.seconds * (1 + validated) / 3600
    seconds = step_seconds(job.spec, known, job.locations)
    return None if seconds is None else steps * seconds * (1 + validated) / 3600


def step_seconds(spec: RunSpec, known: Sequence[RunRecord], locations: Mapping[str, Any] | None = None) -> float | None:
    """Return the expected seconds of a training step of the run ``spec``, from earlier records with the same task, device and
    precision. Only the first of these groups that has records is used:

    - the same mechanism with the same network, task options and batch size;
    - any mechanism, except controls, with the same network, task options and batch size;
    - any mechanism, except controls, with another network, task options or batch size.

    The fastest record of a mechanism counts, because others may have shared the processor with other work. Except in the first
    group, the time is scaled in proportion to the training FLOPs per step, and the median over the mechanisms is returned.

    Args:
        locations: task options with the locations of data.

    Returns:
        None if no group has a record.
    """
    timed = [record for record in known if record.spec.task == spec.task and "step_seconds_median" in record.measured]
    timed = [record for record in timed if (record.spec.device, record.spec.precision) == (spec.device, spec.precision)]
    alike = [record for record in timed if _sizes(record.spec) == _sizes(spec)]
    if own := [record.measured["step_seconds_median"] for record in alike if record.spec.attention == spec.attention]:
        return min(own)
    others = [record for record in alike or timed if not record.attention_card.get("control")]
    if not others:
        return None
    counted = count_per_example(
        spec, build_task(spec.task, **spec.task_options, **(locations or {})).spec, counted_implementation(spec)
    )
    rates = grouped(
        (record.spec.attention, record.measured["step_seconds_median"] / (_flops(record.counted) * record.spec.budget.batch_size))
        for record in others
    )
    return _flops(counted) * spec.budget.batch_size * statistics.median(map(min, rates.values()))


def _flops(counted: Any) -> float:
    """Return the training FLOPs of one example. If the backward pass is not counted, they are three times those of the forward
    pass."""
    return counted.get("training_flops_per_example") or 3 * counted["flops_per_example"]


def _sizes(spec: RunSpec) -> Any:
    """Return the settings of a run on which the time of a step depends: task options, network and batch size."""
    options = {name: value for name, value in spec.task_options.items() if name not in _SIZES}
    return options, spec.model, spec.budget.batch_size


def _work(plan: Plan, seeds: Sequence[int], own: Sequence[RunRecord]) -> Iterable[tuple[Job, int, int]]:
    """Yield the job of runs that are still to do, the number of these runs, and the sum of their steps."""
    study = plan.study
    if study is None:
        for job in plan.left():
            yield job, 1, job.spec.budget.steps
        return
    main = study.base.attention in plan.settings.tuning.main or attention_facts(study.base.attention)["control"]
    recorded = {r.spec.seed for r in own if r.tuning and r.tuning.study == study.id and not r.is_trial}
    wanted = seeds or range(1, 1 + (FEW if study.trials or not main else USUAL))
    after = len(set(wanted) - recorded)
    trials, steps = _trials(study, trials_of(own, study.id))
    yield study.job, trials + after, steps + after * study.base.budget.steps


def _trials(study: Study, done: Sequence[RunRecord]) -> tuple[int, int]:
    """Return how many trials a search may still need, and the sum of their steps."""
    cap = study.base.budget.steps
    if study.trials:
        left = max(0, study.trials - len(done))
        return left, left * cap
    if done and not next_trials(bracket_results(study, done), cap, bracket_rates(study)):
        return 0, 0
    runs, steps = most(cap, bracket_rates(study))
    furthest: dict[tuple[float, bool], int] = defaultdict(int)
    for record in done:
        trial = trial_of(study, record)
        rate = trial.rate, trial.second
        furthest[rate] = max(furthest[rate], trial.steps)
    return max(1, runs - len(done)), max(0, steps - sum(furthest.values()))

"""Leaderboard tables made from runs: which runs form a table, and which of them form the row of a configuration."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.budgets import boards, boards_at, flops_until, seconds_until
from attn_zoo.leaderboard.compare import SEEDS_NEEDED, difference, judge_rows, standing, with_fronts
from attn_zoo.leaderboard.statistics import Estimate, Resolution, estimate, resolution, steps_to_90, successes
from attn_zoo.leaderboard.table import STEADY, Block, Failure, Row, Table
from attn_zoo.records import RunRecord
from attn_zoo.records.record import PART, run_records
from attn_zoo.records.tuning import setting as setting_of

_BACKWARD = 2
"""FLOPs of a backward pass divided by those of a forward pass, assumed if records do not count them: each matrix product needs two
in the backward pass."""


def tables(
    records: Iterable[RunRecord],
    *,
    task: str | None = None,
    attention: str | None = None,
    equal: Mapping[str, float] | None = None,
    at: Sequence[float] = (),
) -> list[Table]:
    """Return the leaderboard tables of records, sorted by the name of the task, bidirectional before causal, then by length.

    If a run was repeated, its newest finished record counts or, if none is finished, its newest record. Verdicts, Pareto fronts and
    gains over the best control take all rows into account; ``attention`` only selects the rows to show.

    Args:
        records: records of runs, as ``Store.load`` returns them.
        task: name of the only task to return tables of; None for all.
        attention: mechanism whose rows the tables show; None for all.
        equal: budgets at which rows are compared, by cost (``time`` in seconds, ``FLOPs``, ``memory`` in bytes), in place of the
            default budgets.
        at: training times in seconds. For each time, ``Table.at`` has the best validation score that each row reached by then.

    Raises:
        ValueError: ``records`` holds an object that is not a ``RunRecord``.
    """
    runs = without_trials(record for record in run_records(records) if task in (None, record.spec.task))
    found = [counted_runs((_row_key(run), run) for run in members) for members in _by_table(runs)]
    settings = _settings([{key: own[0] for key, own in by_row.items()} for by_row in found])
    machines = sorted({run.machine for by_row in found for own in by_row.values() for run in own})
    names = {machine: f"machine {at}" for at, machine in enumerate(machines, 1)}
    made = [_table(by_row, settings, equal or {}, at, names) for by_row in found]
    if attention is not None:
        made = [replace(t, rows=tuple(row for row in t.rows if row.attention == attention)) for t in made]
    made = [table for table in made if table.rows]

    def place(table: Table) -> tuple[str, bool, int, str, int]:
        task = table.task
        return task["name"], bool(task.get("causal")), task["length"], key_of(table.task_options), -len(table.rows)

    return sorted(made, key=place)


def _on_distant(run: RunRecord) -> RunRecord:
    """Return a run with the score on the part of the test split that depends on distant tokens as its test score, the score on
    the whole split as a part, and the number of examples in the part, if the record has it. Without such a part, return the run
    unchanged."""
    part = run.task_card.get("distant")
    score = run.score(f"{PART}{part}")
    if score is None:
        return run
    scores = {name: value for name, value in run.scores.items() if name not in ("train", f"{PART}{part}")}
    scores |= {f"{PART}whole": run.scores["test"], "test": score}
    test = run.data.get("test", {})
    data = {**run.data, "test": {**test, "examples": test["distant"]}} if "distant" in test else run.data
    return replace(run, scores=scores, data=data, task_card={**run.task_card, "title": f"{run.task_card['title']} ({part})"})


def key_of(value: Any) -> str:
    """Return JSON text of ``value``. Equal settings give equal text."""
    return json.dumps(value, sort_keys=True, default=lambda other: dict(other) if isinstance(other, Mapping) else repr(other))


def own_options(run: RunRecord) -> dict[str, Any]:
    """Return the options that distinguish a run's row from other rows of its mechanism, without those that a search varied."""
    found = _searched(run, "attention")
    return {name: value for name, value in run.spec.options.items() if name not in found}


def _searched(run: RunRecord, group: str) -> dict[str, str]:
    """Return by name the settings of ``attention`` or ``budget`` that a study searched, with their ranges as text."""
    keys = run.tuning.space if run.tuning else {}
    return {key.removeprefix(f"{group}."): text for key, text in keys.items() if key.startswith(f"{group}.")}


def _shared_budget(run: RunRecord) -> dict[str, Any]:
    """Return the budget with ranges in place of searched settings, so that rows tuned over the same range share a table."""
    return run.spec.budget.to_dict() | {name: f"tuned: {text}" for name, text in _searched(run, "budget").items()}


def without_trials(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return records without the trials of hyperparameter searches.

    Runs with the settings that a search chose remain. If the search chose other settings later, only runs with the latest choice
    remain. Their ``tuning`` counts all trials of the search, even those that were recorded later.
    """
    runs, trials = list[RunRecord](), dict[str, set[str]]()
    for record in records:
        if record.tuning and record.is_trial:
            trials.setdefault(record.tuning.study, set()).add(record.run_id)
        else:
            runs.append(record)
    by_study = grouped((run.tuning.study, run) for run in runs if run.tuning)
    latest = {study: max(own, key=_started).spec for study, own in by_study.items()}
    kept = []
    for run in runs:
        if (tuning := run.tuning) is None:
            kept.append(run)
        elif (run.spec.options, run.spec.budget) == (latest[tuning.study].options, latest[tuning.study].budget):
            known = max(tuning.trials or 0, len(trials.get(tuning.study, ())))
            kept.append(replace(run, tuning=replace(tuning, trials=known)))
    return kept


def _started(run: RunRecord) -> str:
    return str(run.environment.get("started"))


def _by_table(runs: Sequence[RunRecord]) -> Iterable[list[RunRecord]]:
    """Return the runs of each table.

    The runs of a table have the same protocol, task, network (except heads), budget, precision, device and data. Runs of an earlier
    version of a mechanism form another table. A run that failed before reading its data joins the table with most runs of its
    settings.
    """
    shared = list(map(_shared_key, runs))
    versions = grouped(((key, run.spec.attention), run.spec.attention_version) for key, run in zip(shared, runs, strict=True))
    keyed = []
    for key, run in zip(shared, runs, strict=True):
        name, version = run.spec.attention, run.spec.attention_version
        outdated = f"{name} {version}" if version < max(versions[key, name]) else ""
        keyed.append(((key, outdated), _data_key(run), run))
    drawn = grouped((key, data) for key, data, _ in keyed if data)
    most = {key: max(dict.fromkeys(each), key=each.count) for key, each in drawn.items()}
    return grouped(((key, data or most.get(key, "")), run) for key, data, run in keyed).values()


def counted_runs(runs: Iterable[tuple[str, RunRecord]]) -> dict[str, list[RunRecord]]:
    """Return the runs of each row that count, with the scores that tables show, from pairs (row, run). For each seed, the newest
    finished run counts or, if none finished, the newest."""
    found: dict[tuple[str, int], RunRecord] = {}
    for row, run in sorted(runs, key=lambda pair: (pair[1].status == "done", _started(pair[1]))):
        found.pop((row, run.spec.seed), None)  # so that the order is that of the runs that are kept
        found[row, run.spec.seed] = run
    return grouped((row, _on_distant(run)) for (row, _), run in found.items())


def _row_key(run: RunRecord) -> str:
    """Return text that is equal for all seeds of a row."""
    spec, study = run.spec, [run.tuning.study] if run.tuning else []
    return key_of([spec.attention, own_options(run), spec.implementation, spec.model.heads, *study])


def _shared_key(run: RunRecord) -> str:
    spec = run.spec
    shared = [{**spec.model.to_dict(), "heads": 1}, _shared_budget(run), spec.precision, spec.device]
    return key_of([run.protocol, run.task_card["version"], spec.task, shared_task_options(run), *shared])


def draws_by_seed(run: RunRecord) -> bool:
    """Return True if the seed of a run draws its examples, so that other seeds have other examples."""
    return run.spec.budget.until == "criterion" and run.spec.task_options.get("data_seed") == run.spec.seed


def shared_task_options(run: RunRecord) -> Mapping[str, Any]:
    """Return the options of the task that all seeds of a table share."""
    return {name: value for name, value in run.spec.task_options.items() if name != "data_seed" or not draws_by_seed(run)}


def _shared_data(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """Return the facts about the data that all seeds of a table share. If each seed draws its own data, the digests are None."""
    return {name: {**part, "digest": None} for name, part in run.data.items()} if draws_by_seed(run) else run.data


def _data_key(run: RunRecord) -> str:
    """Return text that is equal for runs on the same data. If each seed draws its own data, the text is equal for the same number
    of examples."""
    fact = "examples" if draws_by_seed(run) else "digest"
    return key_of({split: part[fact] for split, part in run.data.items()}) if run.data else ""


def _table(
    by_row: Mapping[str, Sequence[RunRecord]],
    settings: Mapping[str, str],
    equal: Mapping[str, float],
    at: Sequence[float],
    machines: Mapping[str, str],
) -> Table:
    firsts = [own[0] for own in by_row.values()]
    whole = min((run for own in by_row.values() for run in own), key=lambda run: (run.status != "done", _started(run)))
    chance, told, measured = whole.chance, _with_unusual_heads(firsts), resolution(whole.task_card, whole.data)
    rows = [_row(own, settings[key], chance, own[0].spec.attention in told, measured) for key, own in by_row.items()]
    rows.sort(key=lambda row: (row.control, standing(row), row.label))
    controls = [row for row in rows if row.control and row.test]
    # With failed seeds, the remaining ones are the lucky ones; with few seeds, no row can be compared with the control.
    control = min(controls, key=lambda row: (bool(row.failures), len(row.seeds) < SEEDS_NEEDED), default=None)
    softmax_flops = next((row.flops_per_example for row in rows if row.attention == "softmax"), None)
    for row in rows:
        over = difference(row, control) if control and not row.control else None
        row.margin = over[0] if over else None
        if softmax_flops is not None and (row.flops_per_example or 0) > softmax_flops:
            row.warnings += ("costs more FLOPs than softmax here",)
    for members in grouped((row.block, row) for row in rows).values():
        worst = max(members, key=lambda row: row.step_quotient)
        if worst.step_quotient > STEADY:
            for row in members:
                row.unsteady = (
                    f"training times are not compared, because the steps of {worst.label} took {worst.step_quotient:.1f} times as "
                    "long with one seed as with another"
                )
    judgement = judge_rows(rows, control)
    with_fronts(rows, judgement)
    return Table(
        task=whole.task_card,
        task_options=shared_task_options(whole),
        data=_shared_data(whole),
        model={**whole.spec.model.to_dict(), "heads": _usual_heads(firsts)},
        budget=_shared_budget(whole),
        protocol=whole.protocol,
        precision=whole.spec.precision,
        device=whole.spec.device,
        chance=chance,
        control=control.label if control else None,
        best_control=control.test.mean if control and control.test else None,
        softmax_flops=softmax_flops,
        rows=tuple(rows),
        judgement=judgement,
        boards=boards(rows, equal),
        at=boards_at(rows, at),
        machines=machines,
    )


def _row(runs: Sequence[RunRecord], setting: str, chance: float | None, by_heads: bool, measured: Resolution) -> Row:
    runs = sorted(runs, key=lambda run: run.spec.seed)
    first, done, failed = runs[0], list(filter(has_score, runs)), list(filterfalse(has_score, runs))
    flops, training = _counted(runs, "flops_per_example"), _counted(runs, "training_flops_per_example")
    training_flops = training or (None if flops is None else (1 + _BACKWARD) * float(flops))
    seconds = [time for run in done if (time := seconds_until(run, run.measured.get("train_seconds"))) is not None]
    by_seed = {run.spec.seed: run.scores["test"] for run in done}
    test = estimate(list(by_seed.values()), measured.scores)
    parts = dict.fromkeys(name for run in done for name in run.scores if name.startswith(PART))
    train = [(run.score("train"), run.scores["test"]) for run in done]
    tuning = first.tuning
    return Row(
        attention=first.spec.attention,
        setting=setting,
        options=first.spec.options,
        heads=first.spec.model.heads if by_heads else None,
        control=bool(first.attention_card.get("control")),
        runs=tuple(runs),
        resolution=measured,
        warnings=tuple(dict.fromkeys(said.removeprefix(f"{first.spec.attention}: ") for run in runs for said in run.warnings)),
        test=test,
        by_seed=by_seed,
        valid=_mean(done, "valid", measured.scores),
        parts={name.removeprefix(PART): found for name in parts if (found := _mean(done, name, measured.scores))},
        train_gap=estimate([known - tested for known, tested in train if known is not None], measured.bounds),
        over_chance=None if test is None or chance is None else test.minus(chance),
        curve=_curve(done, training_flops, measured.scores),
        failures=tuple(Failure(run.status, run.spec.seed, run.reason or "its test score is not a number") for run in failed),
        parameters=_counted(runs, "parameters"),
        flops_per_example=flops,
        training_flops_per_example=training_flops,
        training_flops_counted=training is not None,
        mechanism_flops_4096=_counted(runs, "mechanism_flops_4096"),
        state_bytes=_counted(runs, "state_bytes"),
        examples_per_second=_measured(done, "examples_per_second"),
        train_seconds=statistics.median(seconds) if seconds else None,
        train_seconds_range=(min(seconds), max(seconds)) if seconds else None,
        peak_bytes=_measured(done, "peak_bytes"),
        block=Block(measured_as(first), tuple(sorted({run.machine for run in done or runs}))),
        card={**first.attention_card, "version": first.spec.attention_version},
        implementation=next(filter(None, (run.implementation for run in done or runs)), first.spec.implementation),
        tuning=tuning,
        tuned={key: setting_of(first.spec, key) for key in tuning.space} if tuning else {},
        learned=successes(runs),
        steps_to_90=steps_to_90(runs),
    )


def has_score(run: RunRecord) -> bool:
    """Return True if a run is done and its test score is a number."""
    return run.status == "done" and run.score("test") is not None


def measured_as(run: RunRecord) -> str:
    """Return ``auto`` if a run left the choice of the implementation to ``auto``, else the name of the implementation. Measured
    costs are compared only between runs for which this function returns the same text."""
    asked = run.spec.implementation
    return "auto" if asked == "auto" else run.implementation or asked


def _counted(runs: Iterable[RunRecord], name: str) -> int | None:
    """Return the first known value of a count, or None if there is none."""
    return next((run.counted[name] for run in runs if name in run.counted), None)


def _measured(runs: Iterable[RunRecord], name: str) -> float | None:
    """Return the median of a measurement, or None if it is not known."""
    known = [run.measured[name] for run in runs if name in run.measured]
    return float(statistics.median(known)) if known else None


def _mean(runs: Iterable[RunRecord], name: str, bounds: tuple[float, float]) -> Estimate | None:
    """Return the mean of a score over the runs that have it."""
    return estimate([score for run in runs if (score := run.score(name)) is not None], bounds)


def _curve(done: Sequence[RunRecord], training_flops: float | None, bounds: tuple[float, float]) -> tuple[Mapping[str, Any], ...]:
    """Return the curve at the steps at which every seed was validated. Under a time limit, the last steps differ between seeds."""
    validations = grouped(
        (point["step"], (point["train_seconds"] + run.measured.get("pretrain_seconds", 0.0), point["valid"]))
        for run in done
        for point in run.validations
        if point.get("train_seconds") is not None
    )
    points = []
    for step, seen in sorted((step, seen) for step, seen in validations.items() if len(seen) == len(done)):
        valid = estimate([score for _, score in seen], bounds)
        seconds, flops = statistics.median(seconds for seconds, _ in seen), flops_until(step, done[0], training_flops)
        points.append({"step": step, "seconds": seconds, "flops": flops, "valid": valid})
    return tuple(points)


def _settings(made: Sequence[Mapping[str, RunRecord]]) -> dict[str, str]:
    """Return the setting that distinguishes each row from others of its mechanism.

    The setting has the requested implementation, the options in which the rows differ, and the number of heads if a row of the
    mechanism has an unusual one. The implementations ``auto`` and ``eager`` are left out, but ``eager`` is named if a table also
    has rows of the mechanism with ``auto``. A tuned row is marked as tuned if the mechanism also has rows that are not tuned.
    """
    by_heads = {name for members in made for name in _with_unusual_heads(members.values())}
    asked = [grouped((run.spec.implementation, run.spec.attention) for run in of.values()) for of in made]
    with_both = {name for of in asked for name in of.get("auto", ()) if name in of.get("eager", ())}
    by_attention = grouped((row[1].spec.attention, row) for members in made for row in members.items())
    settings = {}
    for members in map(dict, by_attention.values()):
        known = dict.fromkeys(option for run in members.values() for option in run.spec.options)
        plain = any(run.tuning is None for run in members.values())
        differing = [option for option in known if len(_values(option, members.values())) > 1]
        for key, run in members.items():
            unsaid = ("auto",) if run.spec.attention in with_both else ("auto", "eager")
            kernel = [] if run.spec.implementation in unsaid else [f"({run.spec.implementation})"]
            own = own_options(run)
            told = [f"{option}={own[option]}" for option in differing if option in own]
            told += [f"heads={run.spec.model.heads}"] if run.spec.attention in by_heads else []
            settings[key] = " ".join([*kernel, *told, *(["(tuned)"] if run.tuning and plain else [])])
    return _distinct(settings, made)


def _usual_heads(rows: Iterable[RunRecord]) -> int:
    """Return the most frequent number of heads among rows, given one run of each. Of equally frequent ones, return the smallest."""
    counts = Counter(run.spec.model.heads for run in rows)
    return int(min(counts, key=lambda heads: (-counts[heads], heads)))


def _with_unusual_heads(rows: Collection[RunRecord]) -> set[str]:
    """Return the mechanisms that have a row whose number of heads differs from that of most rows of the table."""
    usual = _usual_heads(rows)
    return {run.spec.attention for run in rows if run.spec.model.heads != usual}


def _values(option: str, rows: Iterable[RunRecord]) -> set[str]:
    """Return the values of an option among rows. Rows for which a study searched the option are left out. A row without the option
    has an empty text."""
    fixed = [run for run in rows if option in own_options(run) or option not in run.spec.options]
    return {key_of(run.spec.options[option]) if option in run.spec.options else "" for run in fixed}


def _distinct(settings: Mapping[str, str], made: Sequence[Mapping[str, RunRecord]]) -> dict[str, str]:
    """Append the study to the setting of a tuned row if another row of the table would have the same name."""
    found = dict(settings)
    for members in made:
        named = [(run.spec.attention, settings[key]) for key, run in members.items()]
        for key, run in members.items():
            if run.tuning and named.count((run.spec.attention, settings[key])) > 1:
                found[key] = f"{settings[key]} (study {run.tuning.study})".strip()
    return found

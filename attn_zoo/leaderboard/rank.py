"""Leaderboard tables made from runs: which runs form a table, and which of them form the row of a configuration."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import Any

import polars as pl

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.budgets import boards, boards_at, flops_until, seconds_until
from attn_zoo.leaderboard.compare import SEEDS_NEEDED, difference, judge_rows, resolution, standing, with_fronts
from attn_zoo.leaderboard.statistics import Run, estimate, steps_to_90, successes
from attn_zoo.leaderboard.table import STEADY, Block, Failure, Row, Table, runs_of
from attn_zoo.records import RunRecord, Tuning, frame
from attn_zoo.records.record import bounds

_BACKWARD = 2
"""FLOPs of a backward pass divided by those of a forward pass, assumed if records do not count them: each matrix product needs two
in the backward pass."""
SETTING = (
    "task",
    "task_options",
    "attention",
    "attention_version",
    "options",
    "requested",
    "model",
    "budget",
    "precision",
    "device",
)
"""Columns of a dataframe of runs that are equal for all seeds of a row."""


def tables(
    runs: pl.DataFrame | Iterable[RunRecord],
    *,
    task: str | None = None,
    attention: str | None = None,
    equal: Mapping[str, float] | None = None,
    at: Sequence[float] = (),
) -> list[Table]:
    """Return the leaderboard tables of the runs, sorted by the name of the task.

    If a run was repeated, its newest finished record counts or, if none is finished, its newest record. Verdicts, Pareto fronts and
    gains over the best control take all rows into account; ``attention`` only selects the rows to show.

    Args:
        runs: dataframe that ``attn_zoo.records.frame`` returns, or records.
        task: name of the only task to return tables of; None for all.
        attention: mechanism whose rows the tables show; None for all.
        equal: budgets at which rows are compared, by cost (``time`` in seconds, ``FLOPs``, ``memory`` in bytes), in place of the
            default budgets.
        at: training times in seconds. For each time, ``Table.at`` has the best validation score that each row reached by then.

    Raises:
        ValueError: ``runs`` holds an object that is not a ``RunRecord``.
    """
    runs = runs if isinstance(runs, pl.DataFrame) else frame(runs)
    counted = _counted_once(without_trials(runs if task is None else runs.filter(pl.col("task") == task)))
    found = [list(grouped((run["row"], on_distant(run)) for run in of_table).values()) for of_table in counted]
    settings = _settings([{rows[0]["row"]: rows[0] for rows in groups} for groups in found])
    machines = sorted({run["machine"] for groups in found for rows in groups for run in rows})
    names = {machine: f"machine {at}" for at, machine in enumerate(machines, 1)}
    made = [_table(groups, settings, equal or {}, at, names) for groups in found]
    if attention is not None:
        made = [replace(t, rows=tuple(row for row in t.rows if row.attention == attention)) for t in made]
    made = [table for table in made if table.rows]
    return sorted(made, key=lambda table: (table.task["name"], key_of(table.task_options), -len(table.rows)))


def on_distant(run: Run) -> Run:
    """Return a run with the score on the part of the test split that depends on distant tokens as its test score, and the score on
    the whole split as a part. Without such a part, return the run unchanged."""
    part = run["task_card"].get("distant")
    score = next((found["score"] for found in run["parts"] if found["part"] == part), None)
    if score is None:
        return run
    parts = [{"part": "whole", "score": run["test"]}, *(found for found in run["parts"] if found["part"] != part)]
    card = {**run["task_card"], "title": f"{run['task_card']['title']} ({part})"}
    return {**run, "test": score, "train": None, "parts": parts, "task_card": card}


def key_of(value: Any) -> str:
    """Return JSON text of ``value``. Equal settings give equal text."""
    return json.dumps(value, sort_keys=True, default=lambda other: dict(other) if isinstance(other, Mapping) else repr(other))


def own_options(run: Run) -> dict[str, Any]:
    """Return the options that distinguish a run's row from other rows of its mechanism, without those that a search varied."""
    found = _searched(run, "attention")
    return {name: value for name, value in run["options"].items() if name not in found}


def _searched(run: Run, group: str) -> dict[str, str]:
    """Return by name the settings of ``attention`` or ``budget`` that a study searched, with their ranges as text."""
    keys = run["tuning"]["space"] if run["tuning"] else {}
    return {key.removeprefix(f"{group}."): text for key, text in keys.items() if key.startswith(f"{group}.")}


def _shared_budget(run: Run) -> dict[str, Any]:
    """Return the budget with ranges in place of searched settings, so that rows tuned over the same range share a table."""
    return run["budget"] | {name: f"tuned: {text}" for name, text in _searched(run, "budget").items()}


def _found_settings(run: Run) -> dict[str, Any]:
    """Return by key the best settings that the study of a run found."""
    keys = [key.partition(".") for key in (run["tuning"]["space"] if run["tuning"] else ())]
    return {f"{group}.{name}": run["options" if group == "attention" else group][name] for group, _, name in keys}


def without_trials(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of a dataframe without the trials of hyperparameter searches.

    Runs with the settings that a search chose remain. If the search chose other settings later, only runs with the latest choice
    remain. Their column ``trials`` counts all trials of the search, even those that were recorded later.
    """
    trial = pl.col("trial").is_not_null()
    recorded = runs.filter(trial).group_by("study").agg(pl.col("run_id").n_unique().cast(pl.Int64).alias("recorded"))
    runs = runs.filter(~trial).with_columns(pl.struct("options", "budget").alias("setting"))  # all that a study can search
    by_age = runs.sort("started", descending=True, maintain_order=True)
    chosen = by_age.filter(pl.col("study").is_not_null()).group_by("study").agg(pl.col("setting").first().alias("chosen"))
    runs = runs.join(recorded, on="study", how="left", maintain_order="left").join(
        chosen, on="study", how="left", maintain_order="left"
    )
    runs = runs.filter(pl.col("study").is_null() | (pl.col("setting") == pl.col("chosen")))
    return runs.with_columns(pl.max_horizontal("trials", "recorded").alias("trials")).drop("setting", "chosen", "recorded")


def _counted_once(runs: pl.DataFrame) -> list[list[Run]]:
    """Return the runs of each table with their ``row``, one run per row and seed.

    The runs of a table have the same protocol, task, network (except heads), budget, precision, device and data. Runs of an earlier
    version of a mechanism form another table. A run that failed before reading its data joins the table with most runs of its
    settings.
    """
    each = runs_of(runs.select(*SETTING, "protocol", "task_version", "heads", "seed", "data", "study", "tuning"))
    made = {"row": map(_row_key, each), "shared": map(_shared_key, each), "drawn": map(_data_key, each)}
    runs = runs.with_columns(*(pl.Series(name, list(keys), pl.String) for name, keys in made.items()))
    outdated = pl.col("attention_version") < pl.col("attention_version").max().over("shared", "attention")
    of_version = pl.when(outdated).then(pl.concat_str("attention", "attention_version")).otherwise(pl.lit(""))
    runs = runs.with_columns(pl.concat_str("shared", of_version).alias("shared"))
    counts = runs.filter(pl.col("drawn") != "").group_by("shared", "drawn", maintain_order=True).len()
    most = counts.sort("len", descending=True, maintain_order=True).group_by("shared", maintain_order=True).first()
    runs = runs.join(most.select("shared", most="drawn"), on="shared", how="left", maintain_order="left")
    drawn = pl.when(pl.col("drawn") == "").then(pl.col("most").fill_null("")).otherwise(pl.col("drawn"))
    runs = runs.with_columns(pl.concat_str("shared", drawn).alias("table"), pl.int_range(pl.len()).alias("at"))
    runs = newest(runs.with_columns(pl.col("at").min().over("table")), "table", "row")
    by_table = grouped(((run["at"], run["table"]), run) for run in runs_of(runs))
    return [by_table[key] for key in sorted(by_table)]


def newest(runs: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return one run for each seed and each combination of values in ``columns``: the newest finished run or, if none finished,
    the newest."""
    by_age = runs.sort(pl.col("status") == "done", pl.col("started").fill_null("None"), maintain_order=True)
    return by_age.unique([*columns, "seed"], keep="last", maintain_order=True)


def _row_key(run: Run) -> str:
    return key_of([run["attention"], own_options(run), run["requested"], run["heads"], *([run["study"]] if run["study"] else [])])


def _shared_key(run: Run) -> str:
    shared = [{**run["model"], "heads": 1}, _shared_budget(run), run["precision"], run["device"]]
    return key_of([run["protocol"], run["task_version"], run["task"], shared_task_options(run), *shared])


def draws_by_seed(run: Run) -> bool:
    """Return True if the seed of a run draws its examples, so that other seeds have other examples."""
    return run["budget"].get("until") == "criterion" and run["task_options"].get("data_seed") == run["seed"]


def shared_task_options(run: Run) -> Mapping[str, Any]:
    """Return the options of the task that all seeds of a table share."""
    return {name: value for name, value in run["task_options"].items() if name != "data_seed" or not draws_by_seed(run)}


def _data_key(run: Run) -> str:
    """Return text that is equal for runs on the same data. If each seed draws its own data, the text is equal for the same number
    of examples."""
    data = run["data"]
    if not data or not draws_by_seed(run):
        return key_of(data) if data else ""
    return key_of({split: part["examples"] for split, part in data.items()})


def _table(
    groups: Sequence[Sequence[Run]],
    settings: Mapping[str, str],
    equal: Mapping[str, float],
    at: Sequence[float],
    machines: Mapping[str, str],
) -> Table:
    firsts = [group[0] for group in groups]
    whole = min((run for group in groups for run in group), key=lambda run: (run["status"] != "done", str(run["started"])))
    chance, told, measured = whole["chance"], _with_unusual_heads(firsts), resolution(whole["task_card"], whole["data"])
    rows = [_row(group, settings[group[0]["row"]], chance, group[0]["attention"] in told) for group in groups]
    rows.sort(key=lambda row: (row.control, standing(row, measured.sign), row.label))
    controls = [row for row in rows if row.control and row.test]
    # With failed seeds, the remaining ones are the lucky ones; with few seeds, no row can be compared with the control.
    control = min(controls, key=lambda row: (bool(row.failures), len(row.seeds) < SEEDS_NEEDED), default=None)
    softmax_flops = next((row.flops_per_example for row in rows if row.attention == "softmax"), None)
    for row in rows:
        over = difference(row, control, measured) if control and not row.control else None
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
    judgement = judge_rows(rows, control, measured)
    with_fronts(rows, judgement, measured.sign)
    return Table(
        task=whole["task_card"],
        task_options=shared_task_options(whole),
        data=whole["data"],
        model={**whole["model"], "heads": _usual_heads(firsts)},
        budget=_shared_budget(whole),
        protocol=whole["protocol"],
        precision=whole["precision"],
        device=whole["device"],
        chance=chance,
        control=control.label if control else None,
        best_control=control.test.mean if control and control.test else None,
        softmax_flops=softmax_flops,
        rows=tuple(rows),
        judgement=judgement,
        boards=boards(rows, measured.sign, equal),
        at=boards_at(rows, measured.sign, at),
        machines=machines,
    )


def _row(runs: Sequence[Run], setting: str, chance: float | None, by_heads: bool) -> Row:
    runs = sorted(runs, key=lambda run: run["seed"])
    first, done, failed = runs[0], list(filter(_has_score, runs)), list(filterfalse(_has_score, runs))
    flops, training = _first(runs, "flops_per_example"), _first(runs, "training_flops_per_example")
    training_flops = training or (None if flops is None else (1 + _BACKWARD) * float(flops))
    seconds = [time for run in done if (time := seconds_until(run, run["train_seconds"])) is not None]
    scores = bounds(first["task_card"]["metric"])
    gaps = resolution(first["task_card"], {}).bounds
    test = estimate([run["test"] for run in done], scores)
    parts = grouped((part["part"], part["score"]) for run in done for part in run["parts"] if part["score"] is not None)
    return Row(
        attention=first["attention"],
        setting=setting,
        options=first["options"],
        heads=first["heads"] if by_heads else None,
        control=first["control"],
        runs=tuple(runs),
        warnings=tuple(dict.fromkeys(said.removeprefix(f"{first['attention']}: ") for run in runs for said in run["warnings"])),
        test=test,
        by_seed={run["seed"]: run["test"] for run in done},
        valid=estimate(_known(done, "valid"), scores),
        parts={name: found for name, values in parts.items() if (found := estimate(values, scores))},
        train_gap=estimate([run["train"] - run["test"] for run in done if run["train"] is not None], gaps),
        over_chance=None if test is None or chance is None else test.minus(chance),
        curve=_curve(done, training_flops),
        failures=tuple(Failure(run["status"], run["seed"], run["reason"] or "its test score is not a number") for run in failed),
        parameters=_first(runs, "parameters"),
        flops_per_example=flops,
        training_flops_per_example=training_flops,
        training_flops_counted=training is not None,
        mechanism_flops_4096=_first(runs, "mechanism_flops_4096"),
        state_bytes=_first(runs, "state_bytes"),
        examples_per_second=_median(_known(done, "examples_per_second")),
        train_seconds=_median(seconds),
        train_seconds_range=(min(seconds), max(seconds)) if seconds else None,
        peak_bytes=_median(_known(done, "peak_bytes")),
        block=Block(measured_as(first), tuple(sorted({run["machine"] for run in done or runs}))),
        card={**first["attention_card"], "version": first["attention_version"]},
        implementation=_first(done or runs, "implementation") or first["requested"],
        files=_different(runs, "source"),
        commands=_different(runs, "command"),
        commits=_different(runs, "commit"),
        tuning=Tuning(**{**first["tuning"], "trials": first["trials"]}) if first["tuning"] else None,
        tuned=_found_settings(first),
        learned=successes(runs),
        steps_to_90=steps_to_90(runs),
    )


def _has_score(run: Run) -> bool:
    return run["status"] == "done" and run["test"] is not None


def measured_as(run: Run) -> str:
    """Return ``auto`` if a run left the choice of the implementation to ``auto``, else the name of the implementation. Measured
    costs are compared only between runs for which this function returns the same text."""
    return str("auto" if run["requested"] == "auto" else run["implementation"] or run["requested"])


def _known(runs: Iterable[Run], name: str) -> list[Any]:
    """Return the values of a column that are known."""
    return [run[name] for run in runs if run[name] is not None]


def _first(runs: Iterable[Run], name: str) -> Any:
    """Return the first known value of a column, or None if there is none."""
    return next(iter(_known(runs, name)), None)


def _different(runs: Iterable[Run], name: str) -> tuple[str, ...]:
    """Return the different known texts of a column in their order."""
    return tuple(dict.fromkeys(filter(None, _known(runs, name))))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _curve(done: Sequence[Run], training_flops: float | None) -> tuple[Mapping[str, Any], ...]:
    """Return the curve at the steps at which every seed was validated. Under a time limit, the last steps differ between seeds."""
    validations = grouped(
        (point["step"], (point["train_seconds"] + (run["pretrain_seconds"] or 0.0), point["valid"]))
        for run in done
        for point in run["curve"]
        if point["valid"] is not None and point["train_seconds"] is not None
    )
    points = []
    for step, seen in sorted((step, seen) for step, seen in validations.items() if len(seen) == len(done)):
        valid = estimate([score for _, score in seen], bounds(done[0]["task_card"]["metric"]))
        seconds, flops = statistics.median(seconds for seconds, _ in seen), flops_until(step, done[0], training_flops)
        points.append({"step": step, "seconds": seconds, "flops": flops, "valid": valid})
    return tuple(points)


def _settings(made: Sequence[Mapping[str, Run]]) -> dict[str, str]:
    """Return the setting that distinguishes each row from others of its mechanism.

    The setting has the requested implementation, the options in which the rows differ, and the number of heads if a row of the
    mechanism has an unusual one. The implementations ``auto`` and ``eager`` are left out, but ``eager`` is named if a table also
    has rows of the mechanism with ``auto``. A tuned row is marked as tuned if the mechanism also has rows that are not tuned.
    """
    by_heads = {name for members in made for name in _with_unusual_heads(members.values())}
    asked = [
        {kind: {run["attention"] for run in of.values() if run["requested"] == kind} for kind in ("auto", "eager")} for of in made
    ]
    with_both = {name for of in asked for name in of["auto"] & of["eager"]}
    by_attention = grouped((row[1]["attention"], row) for members in made for row in members.items())
    settings = {}
    for members in map(dict, by_attention.values()):
        known = dict.fromkeys(option for run in members.values() for option in run["options"])
        plain = any(run["tuning"] is None for run in members.values())
        differing = [option for option in known if len(_values(option, members.values())) > 1]
        for key, run in members.items():
            unsaid = ("auto",) if run["attention"] in with_both else ("auto", "eager")
            kernel = [] if run["requested"] in unsaid else [f"({run['requested']})"]
            own = own_options(run)
            told = [f"{option}={own[option]}" for option in differing if option in own]
            told += [f"heads={run['heads']}"] if run["attention"] in by_heads else []
            settings[key] = " ".join([*kernel, *told, *(["(tuned)"] if run["tuning"] and plain else [])])
    return _distinct(settings, made)


def _usual_heads(rows: Iterable[Run]) -> int:
    """Return the most frequent number of heads among rows, given one run of each. Of equally frequent ones, return the smallest."""
    counts = Counter(run["heads"] for run in rows)
    return int(min(counts, key=lambda heads: (-counts[heads], heads)))


def _with_unusual_heads(rows: Collection[Run]) -> set[str]:
    """Return the mechanisms that have a row whose number of heads differs from that of most rows of the table."""
    usual = _usual_heads(rows)
    return {run["attention"] for run in rows if run["heads"] != usual}


def _values(option: str, rows: Iterable[Run]) -> set[str]:
    """Return the values of an option among rows. Rows for which a study searched the option are left out. A row without the option
    has an empty text."""
    fixed = [run for run in rows if option in own_options(run) or option not in run["options"]]
    return {key_of(run["options"][option]) if option in run["options"] else "" for run in fixed}


def _distinct(settings: Mapping[str, str], made: Sequence[Mapping[str, Run]]) -> dict[str, str]:
    """Append the study to the setting of a tuned row if another row of the table would have the same name."""
    found = dict(settings)
    for members in made:
        named = [(run["attention"], settings[key]) for key, run in members.items()]
        for key, run in members.items():
            if run["tuning"] and named.count((run["attention"], settings[key])) > 1:
                found[key] = f"{settings[key]} (study {run['study']})".strip()
    return found

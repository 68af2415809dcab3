"""Tables made from records: groups of comparable records, and the row of each setting. Pure functions."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.boards import boards, boards_at, flops_until, pretrain_seconds, was_disturbed
from attn_zoo.leaderboard.comparisons import resolution
from attn_zoo.leaderboard.pareto import with_fronts
from attn_zoo.leaderboard.ranking import ranked
from attn_zoo.leaderboard.rows import Block, Costs, CurvePoint, Failure, Provenance, Row, Scores, Table
from attn_zoo.leaderboard.statistics import Estimate, estimate, paired
from attn_zoo.leaderboard.tuned import found_settings, own_options, records_of_rows, shared_budget
from attn_zoo.records import ModelSpec, RunRecord, RunSpec

_PART = "test: "
"""Prefix of the names of scores on parts of the test split."""
_BACKWARD = 2
"""FLOPs of a backward pass relative to a forward pass, assumed where records do not count it: two products for each one."""


def tables(
    records: Iterable[RunRecord],
    *,
    task: str | None = None,
    attention: str | None = None,
    equal: Mapping[str, float] | None = None,
    at: Sequence[float] = (),
) -> list[Table]:
    """Build all tables of the records, in the order of task names.

    Repeated runs count once: the newest finished run, else the newest. Ranks, fronts and margins are computed
    among all rows, also where ``attention`` selects some of them.

    Args:
        equal: budgets of the boards by cost (``time`` in seconds, ``FLOPs``, ``memory`` in bytes) in place of the default ones.
        at: seconds of training for the boards of ``Table.at``.

    Raises:
        ValueError: ``records`` holds an object that is not a ``RunRecord``.
    """
    records = list(records) if isinstance(records, Iterable) else [records]
    if strangers := [record for record in records if not isinstance(record, RunRecord)]:
        raise ValueError(f"records must be RunRecord objects, such as Store(FOLDER).load() returns; got {strangers[0]!r:.80}")
    chosen = records_of_rows(record for record in records if task is None or record.spec.task == task)
    groups = [_counted_once(group) for group in _comparable(chosen)]
    settings = _settings([{key: record for (key, _), record in group.items()} for group in groups])
    made = [_table(group, settings, equal or {}, at) for group in groups]
    if attention is not None:
        made = [replace(t, rows=tuple(row for row in t.rows if row.attention == attention)) for t in made]
    made = [table for table in made if table.rows]
    return sorted(made, key=lambda table: (table.task["name"], key_of(table.task_options), -len(table.rows)))


def _comparable(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Group records that share a table: equal protocol, task, network (heads excepted), budget, precision, device and data.

    Runs of an attention's earlier version form a table of their own. A run that failed before reading its data joins the group
    that holds most runs of its spec.
    """
    newest: dict[tuple[str, str], int] = {}

    def key(record: RunRecord) -> str:
        spec = record.spec
        shared = [_without_heads(spec.model), shared_budget(record), spec.precision, spec.device]
        return key_of([record.protocol, record.task_card["version"], spec.task, _shared_task_options(spec), *shared])

    keyed = [(key(record), record) for record in records]
    for shared, record in keyed:
        newest[shared, record.spec.attention] = max(record.spec.attention_version, newest.get((shared, record.spec.attention), 1))

    def outdated(shared: str, spec: RunSpec) -> str:
        return f"{spec.attention} {spec.attention_version}" * (spec.attention_version < newest[shared, spec.attention])

    groups = []
    for same_spec in grouped(((shared, outdated(shared, record.spec)), record) for shared, record in keyed).values():
        by_data = grouped((_data_key(record) if record.data else "", record) for record in same_spec)
        before_data = by_data.pop("", [])
        members = sorted(by_data.values(), key=len, reverse=True) or [[]]
        groups += [before_data + members[0], *members[1:]]
    return groups


def _draws_by_seed(spec: RunSpec) -> bool:
    """Tell whether the examples of a run are drawn by its own seed, so that other seeds have other examples."""
    return spec.budget.until == "criterion" and spec.task_options.get("data_seed") == spec.seed


def _shared_task_options(spec: RunSpec) -> Mapping[str, Any]:
    """Options of the task that all seeds of a table share."""
    return {name: value for name, value in spec.task_options.items() if name != "data_seed" or not _draws_by_seed(spec)}


def _data_key(record: RunRecord) -> str:
    """Text that is equal for runs on the same data or, where each seed draws its own, on as many examples."""
    if not _draws_by_seed(record.spec):
        return key_of(record.data)
    return key_of({split: part["examples"] for split, part in record.data.items()})


@lru_cache
def _without_heads(model: ModelSpec) -> ModelSpec:
    """Network with one head; the number of heads is a setting of rows, because a mechanism's result depends on the head width."""
    return replace(model, heads=1)


def _counted_once(records: Iterable[RunRecord]) -> dict[tuple[str, int], RunRecord]:
    """Records by row and seed; of repeated runs the newest finished one, else the newest."""
    return {(_row_key(record), record.spec.seed): record for record in best_last(records)}


def best_last(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Sort records such that of repeated runs the one that counts comes last: the newest finished one, else the newest."""
    return sorted(records, key=lambda record: (record.status == "done", str(record.environment.get("started"))))


def _table(
    group: Mapping[tuple[str, int], RunRecord], settings: Mapping[str, str], equal: Mapping[str, float], at: Sequence[float]
) -> Table:
    runs_in_order = sorted(group.items(), key=lambda item: item[0])
    members = grouped(((record.spec.attention, settings[key]), record) for (key, _), record in runs_in_order)
    whole = min(group.values(), key=lambda r: r.status != "done")  # the first finished one, else the first
    higher = bool(whole.task_card.get("higher_is_better", True))
    sign = -1 if higher else 1
    firsts = [found[0] for found in members.values()]
    told = _with_unusual_heads(firsts)
    rows = [_row(found, setting, whole.chance, name in told) for (name, setting), found in members.items()]
    runs = {row.label: found for row, found in zip(rows, members.values(), strict=True)}
    rows.sort(key=lambda row: (row.control, sign * row.scores.test.mean if row.scores.test else math.inf, row.label))
    controls = sorted((row for row in rows if row.control and row.scores.test), key=lambda row: bool(row.scores.failures))
    control = controls[0] if controls else None  # the best without failed seeds: with them the remaining seeds are the lucky ones
    softmax_flops = next((row.costs.flops_per_example for row in rows if row.attention == "softmax"), None)
    rows = [_with_margin(row, control, softmax_flops) for row in rows]
    rows, ranking = ranked(rows, higher, resolution(whole.task_card, whole.data))
    rows = with_fronts(rows, ranking, higher)
    return Table(
        task=whole.task_card,
        task_options=_shared_task_options(whole.spec),
        data=whole.data,
        model={**whole.spec.model.to_dict(), "heads": _usual_heads(firsts)},
        budget=shared_budget(whole),
        protocol=whole.protocol,
        precision=whole.spec.precision,
        device=whole.spec.device,
        chance=whole.chance,
        control=control.label if control else None,
        best_control=control.scores.test.mean if control and control.scores.test else None,
        softmax_flops=softmax_flops,
        rows=tuple(rows),
        ranking=ranking,
        boards=boards(rows, runs, higher, equal),
        at=boards_at(rows, runs, higher, at),
    )


def _row(members: Sequence[RunRecord], setting: str, chance: float | None, by_heads: bool) -> Row:
    first = members[0]
    done = [r for r in members if r.status == "done" and _is_figure(r.scores["test"])]
    counted = next((r.counted for r in members if r.counted), {})
    flops = counted.get("flops_per_example")
    training = counted.get("training_flops_per_example")
    training_flops = training or (None if flops is None else (1 + _BACKWARD) * float(flops))
    steady = [r for r in done if "train_seconds" in r.measured and not was_disturbed(r)]
    limit = first.spec.budget.seconds or math.inf  # the step in which a time limit ends is no cost
    seconds = _figures(min(r.measured["train_seconds"], limit) + pretrain_seconds(r) for r in steady)
    return Row(
        attention=first.spec.attention,
        setting=setting,
        options=first.spec.options,
        heads=first.spec.model.heads if by_heads else None,
        control=bool(first.attention_card.get("control")),
        warnings=tuple(dict.fromkeys(said.removeprefix(f"{r.spec.attention}: ") for r in members for said in r.warnings)),
        scores=_scores(members, done, chance, training_flops),
        costs=Costs(
            parameters=counted.get("parameters"),
            flops_per_example=flops,
            training_flops_per_example=training_flops,
            training_flops_counted=training is not None,
            mechanism_flops_4096=counted.get("mechanism_flops_4096"),
            state_bytes=counted.get("state_bytes"),
            examples_per_second=_median(r.measured.get("examples_per_second") for r in done),
            train_seconds=_median(seconds),
            train_seconds_range=(min(seconds), max(seconds)) if seconds else None,
            peak_bytes=_median(r.measured.get("peak_bytes") for r in done),
            block=Block(measured_as(first), tuple(sorted({machine(r.environment) for r in done or members}))),
        ),
        provenance=Provenance(
            card={**first.attention_card, "version": first.spec.attention_version},
            implementation=next((r.implementation for r in done or members if r.implementation), first.spec.implementation),
            files=tuple(r.source for r in members if r.source),
            commands=_recorded(members, "command"),
            commits=_recorded(members, "commit"),
            tuning=first.tuning,
            tuned=found_settings(first),
        ),
    )


def _scores(members: Sequence[RunRecord], done: Sequence[RunRecord], chance: float | None, training_flops: float | None) -> Scores:
    by_seed = {r.spec.seed: r.scores["test"] for r in done}
    test = estimate(list(by_seed.values()))
    failed = [r for r in members if r.spec.seed not in by_seed]
    return Scores(
        test=test,
        by_seed=by_seed,
        valid=estimate(_figures(r.scores.get("valid") for r in done)),
        parts=_parts(done),
        train_gap=estimate([r.scores["train"] - r.scores["test"] for r in done if _is_figure(r.scores.get("train"))]),
        over_chance=None if test is None or chance is None else test.minus(chance),
        curve=_curve(done, training_flops),
        failures=tuple(Failure(r.status, r.spec.seed, r.reason or "its test score is not a number") for r in failed),
    )


def _with_margin(row: Row, control: Row | None, softmax_flops: int | None) -> Row:
    """Add to a row its margin over the control, and a warning where it costs more FLOPs than softmax."""
    margin = paired(row.scores.by_seed, control.scores.by_seed) if control and not row.control else None
    costly = softmax_flops is not None and (row.costs.flops_per_example or 0) > softmax_flops
    warnings = (*row.warnings, "costs more FLOPs than softmax here") if costly else row.warnings
    return replace(row, scores=replace(row.scores, margin=margin), warnings=warnings)


def measured_as(record: RunRecord) -> str:
    """Group of implementations whose measured costs are compared: ``auto``, or the name of the one that was asked for."""
    return "auto" if record.spec.implementation == "auto" else str(record.implementation or record.spec.implementation)


def _parts(done: Sequence[RunRecord]) -> dict[str, Estimate]:
    names = [name for name in (done[0].scores if done else ()) if name.startswith(_PART)]
    found = {name.removeprefix(_PART): estimate(_figures(r.scores.get(name) for r in done)) for name in names}
    return {name: score for name, score in found.items() if score}


def _curve(done: Sequence[RunRecord], training_flops: float | None) -> tuple[CurvePoint, ...]:
    """Curve at the steps at which every seed was validated; under a time limit last steps differ between seeds and drop out."""
    validations = grouped(
        (int(point["step"]), (point["train_seconds"] + pretrain_seconds(record), point["valid"]))
        for record in done
        for point in record.curve
        if _is_figure(point.get("valid")) and _is_figure(point.get("train_seconds"))
    )
    points = []
    for step, seen in sorted((step, seen) for step, seen in validations.items() if len(seen) == len(done)):
        valid = estimate([score for _, score in seen])
        assert valid is not None, "every listed step has validation scores"
        flops = flops_until(step, done[0], training_flops)
        points.append(CurvePoint(step, statistics.median(seconds for seconds, _ in seen), flops, valid))
    return tuple(points)


def machine(environment: Mapping[str, Any]) -> str:
    """Name of the machine that took measurements: device, threads and version of torch."""
    device = environment.get("gpu") or environment.get("cpu") or "unknown device"
    return f"{device}, {environment.get('threads')} threads, torch {environment.get('torch')}"


def _recorded(members: Sequence[RunRecord], name: str) -> tuple[str, ...]:
    """Different values of an entry of the environments, as text."""
    return tuple(dict.fromkeys(str(r.environment[name]) for r in members if r.environment.get(name)))


def _settings(tables: Sequence[Mapping[str, RunRecord]]) -> dict[str, str]:
    """Setting that distinguishes each row from others of its attention: an implementation asked for by name, options in which the
    rows differ, and heads where the attention has a row with unusual heads.

    A tuned row is marked as tuned where the records also hold untuned rows of its attention.
    """
    by_heads = {name for members in tables for name in _with_unusual_heads(members.values())}
    by_attention = grouped((row[1].spec.attention, row) for members in tables for row in members.items())
    settings = {}
    for members in map(dict, by_attention.values()):
        known = dict.fromkeys(option for record in members.values() for option in record.spec.options)
        plain = any(record.tuning is None for record in members.values())
        differing = [option for option in known if len(_values(option, members.values())) > 1]
        for key, record in members.items():
            kernel = [] if record.spec.implementation in ("auto", "eager") else [f"({record.spec.implementation})"]
            own = own_options(record)
            told = [f"{option}={own[option]}" for option in differing if option in own]
            told += [f"heads={record.spec.model.heads}"] if record.spec.attention in by_heads else []
            settings[key] = " ".join([*kernel, *told, *(["(tuned)"] if record.tuning and plain else [])])
    return _distinct(settings, tables)


def _usual_heads(rows: Iterable[RunRecord]) -> int:
    """Most frequent number of heads among rows, given one record of each; the smallest of equally frequent ones."""
    counts = Counter(record.spec.model.heads for record in rows)
    return min(counts, key=lambda heads: (-counts[heads], heads))


def _with_unusual_heads(rows: Collection[RunRecord]) -> set[str]:
    """Attentions with a row whose number of heads differs from that of most rows of the table, given one record of each row."""
    usual = _usual_heads(rows)
    return {record.spec.attention for record in rows if record.spec.model.heads != usual}


def _values(option: str, records: Iterable[RunRecord]) -> set[str]:
    """Values of an option among rows, except rows for which a study searched it; empty text where a row lacks the option."""
    fixed = [record for record in records if option in own_options(record) or option not in record.spec.options]
    return {key_of(record.spec.options[option]) if option in record.spec.options else "" for record in fixed}


def _distinct(settings: Mapping[str, str], tables: Sequence[Mapping[str, RunRecord]]) -> dict[str, str]:
    """Append the study to the settings of tuned rows that would otherwise share a name with another row of their table."""
    found = dict(settings)
    for members in tables:
        named = [(record.spec.attention, settings[key]) for key, record in members.items()]
        for key, record in members.items():
            if record.tuning and named.count((record.spec.attention, settings[key])) > 1:
                found[key] = f"{settings[key]} (study {record.tuning.study})".strip()
    return found


def _row_key(record: RunRecord) -> str:
    tuned = [] if record.tuning is None else [record.tuning.study]
    return key_of([record.spec.attention, own_options(record), record.spec.implementation, record.spec.model.heads, *tuned])


def key_of(value: Any) -> str:
    """Text that is equal for equal settings."""
    return json.dumps(value, sort_keys=True, default=lambda other: dict(other) if isinstance(other, Mapping) else repr(other))


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _figures(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _median(values: Iterable[float | None]) -> float | None:
    known = _figures(values)
    return statistics.median(known) if known else None

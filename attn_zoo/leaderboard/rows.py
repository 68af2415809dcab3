"""From records to tables: which may stand together, and what a row says. Pure functions."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.statistics import Estimate, estimate
from attn_zoo.records import RunRecord

_PART = "test: "
"""Begins the names of scores of parts of the test."""


@dataclass(frozen=True, slots=True)
class Row:
    """One attention, with its options and implementation, on one task: what its seeds found."""

    label: str
    attention: str
    options: Mapping[str, Any]
    implementation: str
    control: bool
    score: Estimate | None
    """Test score of the seeds that are done."""
    parts: Mapping[str, Estimate]
    """Test score of each part of the test that the task names, such as depths."""
    train_gap: Estimate | None
    """Training score minus test score, of the same weights."""
    seeds: tuple[int, ...]
    """Those that are done."""
    failures: tuple[str, ...]
    """``status of seed n: reason`` of the others."""
    parameters: int | None
    flops_per_example: int | None
    examples_per_second: float | None
    """Median over seeds, in training."""
    peak_bytes: float | None
    """Median over seeds, of a training step."""
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that may be compared: same task, data, network, budget, precision and kind of device."""

    task: Mapping[str, Any]
    """The task's card as it was recorded."""
    task_options: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Any]
    budget: Mapping[str, Any]
    protocol: str
    precision: str
    device: str
    chance: float | None
    rows: tuple[Row, ...]
    """Contenders, the best first, then controls."""

    @property
    def higher_is_better(self) -> bool:
        """Whether the metric is one of which more is better."""
        return bool(self.task.get("higher_is_better", True))

    @property
    def data_title(self) -> str:
        """Which data the figures are of; records older than this fact name the source."""
        return str(self.task.get("data") or str(self.task.get("source", "unknown")).split(";")[0])

    @property
    def best_control(self) -> float | None:
        """Mean score of the best control."""
        means = [row.score.mean for row in self.rows if row.control and row.score]
        return (max if self.higher_is_better else min)(means, default=None)

    @property
    def softmax_flops(self) -> int | None:
        """FLOPs an example of the softmax row, the yardstick of cost."""
        found = [row.flops_per_example for row in self.rows if row.attention == "softmax"]
        return found[0] if found else None


def tables(records: Iterable[RunRecord], *, task: str | None = None, attention: str | None = None) -> list[Table]:
    """All tables that the records make, in the order of task names.

    Runs that were done again count once: the newest that is done, else the newest.
    """
    chosen = [r for r in _newest(records) if (task is None or r.spec.task == task) and (attention in (None, r.spec.attention))]
    labels = _labels(chosen)
    groups: dict[str, list[RunRecord]] = defaultdict(list)
    for record in chosen:
        groups[_comparable(record)].append(record)
    made = [_table(group, labels) for group in groups.values()]
    return sorted(made, key=lambda table: (table.task["name"], _key(table.task_options), -len(table.rows)))


def _newest(records: Iterable[RunRecord]) -> list[RunRecord]:
    best: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda r: (r.status == "done", str(r.environment.get("started")))):
        best[_key([_comparable(record), _row_key(record), record.spec.seed])] = record
    return list(best.values())


def _comparable(record: RunRecord) -> str:
    """Equal for records that share a table. A run that failed before its data was read stands with its spec's others."""
    spec = record.spec.to_dict()
    shared = {name: spec[name] for name in ("task", "task_options", "model", "budget", "precision", "device")}
    return _key([record.protocol, record.task_card["version"], shared])


def _table(group: Sequence[RunRecord], labels: Mapping[str, str]) -> Table:
    by_row: dict[str, list[RunRecord]] = defaultdict(list)
    for record in group:
        by_row[_row_key(record)].append(record)
    rows = [_row(members, labels[key]) for key, members in by_row.items()]
    whole = next((r for r in group if r.status == "done"), group[0])
    sign = -1 if whole.task_card.get("higher_is_better", True) else 1
    rows.sort(key=lambda row: (row.control, sign * row.score.mean if row.score else math.inf, row.label))
    return Table(
        task=whole.task_card,
        task_options=whole.spec.task_options,
        data=whole.data,
        model=whole.spec.to_dict()["model"],
        budget=whole.spec.to_dict()["budget"],
        protocol=whole.protocol,
        precision=whole.spec.precision,
        device=whole.spec.device,
        chance=whole.chance,
        rows=tuple(rows),
    )


def _row(members: Sequence[RunRecord], label: str) -> Row:
    members = sorted(members, key=lambda r: r.spec.seed)
    done = [r for r in members if r.status == "done"]
    first = members[0]
    counted = next((r.counted for r in members if r.counted), {})
    return Row(
        label=label,
        attention=first.spec.attention,
        options=first.spec.options,
        implementation=first.spec.implementation,
        control=bool(first.attention_card.get("control")),
        score=estimate([r.scores["test"] for r in done]),
        parts=_parts(done),
        train_gap=estimate([r.scores["train"] - r.scores["test"] for r in done if "train" in r.scores]),
        seeds=tuple(r.spec.seed for r in done),
        failures=tuple(f"{r.status} with seed {r.spec.seed}: {r.reason}" for r in members if r.status != "done"),
        parameters=counted.get("parameters"),
        flops_per_example=counted.get("flops_per_example"),
        examples_per_second=_median(r.measured.get("examples_per_second") for r in done),
        peak_bytes=_median(r.measured.get("peak_bytes") for r in done),
        machines=tuple(sorted({machine(r.environment) for r in members})),
    )


def _parts(done: Sequence[RunRecord]) -> dict[str, Estimate]:
    names = [name for name in (done[0].scores if done else ()) if name.startswith(_PART)]
    found = {name.removeprefix(_PART): estimate([r.scores[name] for r in done if name in r.scores]) for name in names}
    return {name: score for name, score in found.items() if score}


def machine(environment: Mapping[str, Any]) -> str:
    """What a measured figure is a figure of."""
    device = environment.get("gpu") or environment.get("cpu") or "unknown device"
    return f"{device}, {environment.get('threads')} threads, torch {environment.get('torch')}"


def _labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """A name for every row: the attention, its implementation unless eager, and the options in which its rows differ."""
    by_attention: dict[str, dict[str, RunRecord]] = defaultdict(dict)
    for record in records:
        by_attention[record.spec.attention][_row_key(record)] = record
    labels = {}
    for name, members in by_attention.items():
        options = [r.spec.options for r in members.values()]
        differing = [key for key in options[0] if len({_key(o.get(key)) for o in options}) > 1]
        for key, record in members.items():
            kernel = [] if record.spec.implementation == "eager" else [f"({record.spec.implementation})"]
            labels[key] = " ".join([name, *kernel, *(f"{option}={record.spec.options.get(option)}" for option in differing)])
    return labels


def _row_key(record: RunRecord) -> str:
    return _key([record.spec.attention, record.spec.options, record.spec.implementation])


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None

"""Comparison of two sets of records, A (earlier) and B (later), row by row, and its text, which ``attn-zoo diff`` prints. It finds
worse scores, higher costs, and rows that cannot be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import resolution
from attn_zoo.leaderboard.gate import METHOD, Change, Finding, Judged, Pair, cost_changes, judged
from attn_zoo.leaderboard.metrics import SHARES, style
from attn_zoo.leaderboard.rank import (
    SETTING,
    draws_by_seed,
    key_of,
    measured_as,
    newest,
    shared_task_options,
    tables,
    without_trials,
)
from attn_zoo.leaderboard.statistics import Estimate, Run, estimate
from attn_zoo.leaderboard.table import runs_of
from attn_zoo.leaderboard.text import Grid, lines, tabulated
from attn_zoo.records import Budget, ModelSpec, RunRecord, frame

TOLERANCE = 0.01
"""Largest loss of score that does not count as worse: absolute for percentage metrics, else relative to the earlier mean."""
COST_TOLERANCE = 0.1
"""Largest relative rise of a measured cost that does not count as worse."""
_COSTS = {"time": "step_seconds_median", "memory": "peak_bytes"}


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of one row (a configuration on one task) between two sets of records, A (earlier) and B (later)."""

    label: str
    task: str
    """Title of the task. If the task has several tables, the settings in which they differ follow."""
    metric: str
    a: Estimate | None
    """Mean test score in A over all finished seeds; None if A has no score."""
    b: Estimate | None
    judged: Judged | None
    """Verdict on the scores. None if they cannot be compared; ``findings`` then has the reasons."""
    costs: tuple[Change, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Comparison of all rows of two sets of records, A (earlier) and B (later)."""

    rows: tuple[Compared, ...]
    tolerance: float
    cost_tolerance: float

    def failing(self, kinds: Iterable[str]) -> tuple[Finding, ...]:
        """Return the findings whose kind is one of ``kinds``."""
        wanted = set(kinds)
        return tuple(finding for row in self.rows for finding in row.findings if finding.kind in wanted)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of one row by seed. If a run was repeated, the newest finished one counts or, if none finished, the newest."""

    by_seed: Mapping[int, Run]

    @property
    def first(self) -> Run:
        """First finished run or, if none finished, the first run."""
        return min(self.by_seed.values(), key=lambda run: run["status"] != "done")

    @property
    def scores(self) -> dict[int, float]:
        return {seed: run["test"] for seed, run in self.by_seed.items() if run["status"] == "done" and run["test"] is not None}


def difference(
    a: Sequence[RunRecord], b: Sequence[RunRecord], *, tolerance: float = TOLERANCE, cost_tolerance: float = COST_TOLERANCE
) -> Difference:
    """Return the comparison of later records ``b`` with earlier records ``a``, row by row.

    Records belong to the same row if all their settings except the seed are equal. Only scores with the same seed are compared,
    because data order and initial weights are then the same.

    Args:
        tolerance: largest loss of score that does not count as worse; see ``TOLERANCE``.
        cost_tolerance: largest relative rise of a measured cost that does not count as worse.

    Raises:
        ValueError: ``a`` or ``b`` has no record, or a tolerance is negative.
    """
    if tolerance < 0 or cost_tolerance < 0:
        raise ValueError(f"tolerances must be at least 0; got {tolerance} for scores and {cost_tolerance} for costs")
    runs = [without_trials(frame(records)) for records in (a, b)]
    for name, found in zip("AB", runs, strict=True):
        if not found.height:
            raise ValueError(
                f"{name} must hold at least one record, but holds none. Give a folder of records or the file of one record"
            )
    before, after = map(_rows, runs)
    told = _Names(pl.concat(runs, how="diagonal"))
    partners = _partners(before, after)
    both = [key for key in before if key in after]
    steady = [key for key in both if not _changed(before[key], after[key])]
    verdicts = dict(zip(steady, judged([_pair(before[key], after[key], tolerance) for key in steady]), strict=True))
    rows = []
    for key in [*before, *(k for k in after if k not in before and k not in partners.values())]:
        then, now = before.get(key), after.get(partners.get(key, key))
        rows.append(_compared(told, then, now, verdicts.get(key), cost_tolerance))
    rows.sort(key=lambda row: (row.task, row.label))
    return Difference(tuple(rows), tolerance, cost_tolerance)


def _compared(told: _Names, then: _Runs | None, now: _Runs | None, verdict: Judged | None, cost_tolerance: float) -> Compared:
    run = (then or now).first  # type: ignore[union-attr]  # a row is in one of the two
    label, task = told.row(run), told.task(run)
    costs = cost_changes(then.by_seed, now.by_seed, cost_tolerance) if verdict and then and now else ()
    return Compared(
        label=label,
        task=task,
        metric=run["task_card"]["metric"],
        a=estimate(list(then.scores.values())) if then else None,
        b=estimate(list(now.scores.values())) if now else None,
        judged=verdict,
        costs=costs,
        findings=tuple(_findings(f"{label} on {task}", then, now, verdict, costs)),
    )


def _findings(
    row: str, then: _Runs | None, now: _Runs | None, verdict: Judged | None, costs: Sequence[Change]
) -> Iterator[Finding]:
    if then is None:
        yield Finding("new", row, "only in B")
        return
    if now is None:
        yield Finding("missing", row, "only in A")
        return
    if changes := _changed(then, now):
        yield Finding("changed", row, f"not compared, because {'; '.join(changes)}")
        return
    for seed, run in then.by_seed.items():
        other = now.by_seed.get(seed)
        if other is None:
            yield Finding("missing", row, f"seed {seed} is only in A")
        elif run["status"] == "done" != other["status"]:
            yield Finding("failing", row, f"seed {seed} was done and is now {other['status']}: {other['reason']}")
        elif run["status"] != "done" == other["status"]:
            yield Finding("fixed", row, f"seed {seed} was {run['status']} and is now done")
    if verdict and verdict.word in ("worse", "better"):
        yield Finding(verdict.word, row, verdict.why)
    for change in costs:
        if change.kind:
            yield Finding(change.kind, row, change.why)


def _pair(then: _Runs, now: _Runs, tolerance: float) -> Pair:
    measured, scores = resolution(then.first["task_card"], then.first["data"]), then.scores
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    return Pair(scores, now.scores, measured, tolerance if measured.share else tolerance * abs(mean))


def _rows(runs: pl.DataFrame) -> dict[str, _Runs]:
    """Group runs into rows by their specs without the seed."""
    runs = newest(runs, *SETTING).sort("seed")
    rows = grouped((key_of(_spec(run)), run) for run in runs_of(runs))
    return {key: _Runs({run["seed"]: run for run in members}) for key, members in sorted(rows.items())}


def _partners(before: Mapping[str, _Runs], after: Mapping[str, _Runs]) -> dict[str, str]:
    """Pair a row that is only in A with a row that is only in B, if each side has exactly one such row of their mechanism and
    task."""
    alone: dict[tuple[str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, rows, other in ((0, before, after), (1, after, before)):
        for key, runs in rows.items():
            if key not in other:
                alone[runs.first["attention"], runs.first["task"]][side].append(key)
    return {then[0]: now[0] for then, now in alone.values() if len(then) == len(now) == 1}


def _changed(rows_then: _Runs, rows_now: _Runs) -> list[str]:
    """Return why two rows cannot be compared: differences of spec, protocol, task version, metric or data.

    If each seed draws its own data, the data are compared at a shared seed only.
    """
    shared = [(run, rows_now.by_seed[seed]) for seed, run in rows_then.by_seed.items() if seed in rows_now.by_seed]
    then, now = min(shared, key=lambda pair: [run["status"] != "done" for run in pair], default=(rows_then.first, rows_now.first))
    a, b = _flat(_spec(then)), _flat(_spec(now))
    told = [f"{name} {a.get(name)} became {b.get(name)}" for name in {**a, **b} if a.get(name) != b.get(name)]
    for name, was, became in (
        ("protocol", then["protocol"], now["protocol"]),
        ("task version", then["task_version"], now["task_version"]),
        ("metric", then["task_card"]["metric"], now["task_card"]["metric"]),
    ):
        told += [f"{name} {was} became {became}"] if was != became else []
    for split in then["data"].keys() & now["data"].keys() if shared or not draws_by_seed(then) else ():
        was, became = then["data"][split].get("digest"), now["data"][split].get("digest")
        told += [f"digest of {split} {str(was)[:8]} became {str(became)[:8]}"] if was != became else []
    return told


class _Names:
    """Unique names of rows and of tasks."""

    def __init__(self, runs: pl.DataFrame) -> None:
        self._labels = {
            key_of([row.attention, row.options, row.heads or table.model["heads"], row.block.measured_as]): row.label
            for table in tables(runs)
            for row in table.rows
        }
        by_task: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for run in runs_of(runs):
            setting = self._setting(run)
            by_task[run["task"]][key_of(setting)] = setting
        self._differing = {
            task: [name for name in next(iter(found.values())) if len({key_of(s.get(name)) for s in found.values()}) > 1]
            for task, found in by_task.items()
        }

    def row(self, run: Run) -> str:
        key = key_of([run["attention"], run["options"], run["heads"], measured_as(run)])
        # Where a study chose differently in A and B, the tables of both show the later choice only.
        return self._labels.get(key, f"{run['attention']} (tuned)")

    def task(self, run: Run) -> str:
        setting = self._setting(run)
        settings = ", ".join(f"{name}={setting.get(name)}" for name in self._differing[run["task"]])
        return str(run["task_card"]["title"]) + (f" ({settings})" if settings else "")

    def _setting(self, run: Run) -> dict[str, Any]:
        shared = {
            "task": shared_task_options(run),
            "model": asdict(ModelSpec()) | run["model"],
            "budget": asdict(Budget()) | run["budget"],
        }
        return _flat({**shared, "precision": run["precision"], "device": run["device"]})


def _spec(run: Run) -> dict[str, Any]:
    """Return the settings of a run, without its seed, and without the seed of its data if each seed draws its own."""
    settings = {{"requested": "implementation"}.get(name, name): run[name] for name in SETTING}
    return settings | {"task_options": shared_task_options(run)}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def render_difference(found: Difference, kinds: Sequence[str], format: str = "terminal") -> str:
    """Return the comparison of two sets of records as text.

    The text has one table per task, the findings that make ``attn-zoo diff`` fail, all other findings, and the rules of the
    comparison.

    Args:
        kinds: kinds of findings that make ``attn-zoo diff`` fail.
        format: ``terminal`` or ``github``.
    """
    parts = [
        tabulated(
            Grid(
                f"{task}: A, B and B - A{_unit(found, task)}; seeds in brackets",
                ["attention", "A", "B", "B - A", "detectable loss", "verdict", *_COSTS],
                [_line(row) for row in found.rows if row.task == task],
            ),
            format,
        )
        for task in dict.fromkeys(row.task for row in found.rows)
    ]
    failing = found.failing(kinds)
    others = [f for row in found.rows for f in row.findings if f not in failing]
    for head, findings in ((f"Fails ({', '.join(kinds)})", failing), ("Also found", others)):
        if findings:
            parts.append(f"{head}:\n{lines([f'{f.kind}: {f.row}: {f.text}' for f in findings], format)}")
    if not failing:
        parts.append(f"No regressions (checked for: {', '.join(kinds) or 'nothing, because --fail-on is empty'}).")
    tolerances = (
        f"tolerances: {found.tolerance:g} for a score (relative to its mean in A if the metric is not a percentage), "
        f"{found.cost_tolerance:.0%} for a measured cost"
    )
    parts.append(lines([*METHOD, tolerances], format))
    return "\n\n".join(parts)


def _line(row: Compared) -> list[str]:
    judged = row.judged
    costs = {change.name: change for change in row.costs}
    shifts = [f"{costs[name].b / costs[name].a - 1:+.1%}" if name in costs else "-" for name in _COSTS.values()]
    gap = "-" if judged is None or judged.difference is None else _estimate(judged.difference, row, "+")
    least = "-" if judged is None or judged.least is None else Estimate(judged.least, None, 0).written(*style(row.metric))
    word = judged.word if judged else "/".join(dict.fromkeys(finding.kind for finding in row.findings))
    return [row.label, _estimate(row.a, row), _estimate(row.b, row), gap, least, word, *shifts]


def _estimate(found: Estimate | None, row: Compared, sign: str = "") -> str:
    return "-" if found is None else f"{found.written(*style(row.metric), sign)} ({found.count})"


def _unit(found: Difference, task: str) -> str:
    return " in %" if all(row.metric in SHARES for row in found.rows if row.task == task) else ""

"""Comparison of two sets of records, A (earlier) and B (later), row by row, and its text, which ``attn-zoo diff`` prints. It finds
worse scores, higher costs, and rows that cannot be compared."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import polars as pl

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import SEEDS_NEEDED, resolution
from attn_zoo.leaderboard.metrics import SHARES, style
from attn_zoo.leaderboard.rank import SETTING, draws_by_seed, key_of, newest, shared_task_options, tables, without_trials
from attn_zoo.leaderboard.statistics import Estimate, Run, estimate, holm, paired_p_value
from attn_zoo.leaderboard.table import runs_of
from attn_zoo.leaderboard.text import Grid, lines, tabulated
from attn_zoo.records import Budget, ModelSpec, RunRecord, frame
from attn_zoo.records.frames import COUNTED

LEVEL = 0.05
"""Significance level. If the later records are as good as the earlier ones, this is the greatest probability that any row is
called worse."""
TOLERANCE = 0.01
"""Largest loss of score that does not count as worse: absolute for percentage metrics, else relative to the earlier mean."""
COST_TOLERANCE = 0.1
"""Largest relative rise of a measured cost that does not count as worse."""
REGRESSIONS: Mapping[str, str] = {
    "worse": "a score is significantly worse",
    "slower": "a training step takes longer",
    "larger": "a training step takes more memory",
    "costlier": "a counted cost rose: parameters, FLOPs",
    "failing": "a seed that succeeded in A failed in B",
    "missing": "a configuration or seed is only in A",
    "changed": "data, protocol or settings changed, so nothing was compared",
}
"""Kinds of findings that can make ``attn-zoo diff`` fail. The other kinds (better, faster, smaller, cheaper, fixed, new) cannot."""
METHOD = (
    "scores: worse or better by a one-sided paired t test over shared seeds, with Holm's correction over all rows "
    f"({100 * LEVEL:.0f} % for the whole comparison), and by more than the tolerance; with fewer than {SEEDS_NEEDED} shared seeds "
    "the spread is unknown, and the tolerance alone decides",
    "counted costs: any difference counts",
    "measured costs: higher or lower for every shared seed by more than the tolerance and, for time, by more than the "
    "interquartile ranges of the steps; compared only on the same processor with the same number of threads",
)
_MEASURED = {
    "time": ("step_seconds_median", "step_seconds_iqr", ("slower", "faster")),
    "memory": ("peak_bytes", "", ("larger", "smaller")),
}
"""For each measured cost, its column, the column with its spread, and the kinds of findings if it is higher or lower in B."""

_Rows = Mapping[str, Mapping[int, Run]]
"""Runs by row and seed. If a run was repeated, the newest finished one counts or, if none finished, the newest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Difference of one row between A and B, of a kind such as ``worse`` or ``slower``."""

    kind: str
    row: str
    text: str


class Shared(NamedTuple):
    """Scores of one row at the seeds that A and B share."""

    gains: Sequence[float]
    """Score in B minus score in A by seed, with the sign turned if lower scores are better."""
    grain: float
    """Smallest step between two scores; 0 if it is not known."""
    tolerance: float
    """Largest loss that does not count as worse, in the unit of the score."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of one row (a configuration on one task) between A and B."""

    label: str
    task: str
    """Title of the task. If the task has several tables, the settings in which they differ follow."""
    metric: str
    a: Estimate | None
    """Mean test score in A over all finished seeds; None if A has no score."""
    b: Estimate | None
    difference: Estimate | None
    """Score in B minus score in A, averaged over shared seeds. Its interval is not corrected for the number of rows. None if the
    scores were not compared."""
    word: str
    """``worse``, ``better``, ``within noise``, ``within tolerance`` (with few seeds), or the kinds of findings that prevented a
    comparison."""
    costs: Mapping[str, float]
    """Relative change of measured costs, ``time`` and ``memory``."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Comparison of all rows of A and B."""

    rows: tuple[Compared, ...]
    tolerance: float
    cost_tolerance: float

    def failing(self, kinds: Iterable[str]) -> tuple[Finding, ...]:
        """Return the findings whose kind is one of ``kinds``."""
        wanted = set(kinds)
        return tuple(finding for row in self.rows for finding in row.findings if finding.kind in wanted)


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
    names, partners = _names(pl.concat(runs, how="diagonal")), _partners(before, after)
    steady = [key for key in before if key in after and not _changed(before[key], after[key])]
    shared = {key: _shared(before[key], after[key], tolerance) for key in steady}
    words = dict(zip(shared, judged(list(shared.values())), strict=True))
    rows = []
    for key in [*before, *(k for k in after if k not in before and k not in partners.values())]:
        then, now = before.get(key, {}), after.get(partners.get(key, key), {})
        run = _first(then or now)
        label, task = names[run["run_id"]]
        row, metric = f"{label} on {task}", run["task_card"]["metric"]
        word, p = words.get(key, ("", None))
        findings = [Finding(kind, row, text) for kind, text in _apart(then, now)]
        gap, costs = None, dict[str, float]()
        if key in shared:
            gap = estimate([_scores(now)[seed] - score for seed, score in _scores(then).items() if seed in _scores(now)])
            if gap and word in ("worse", "better"):
                findings.append(Finding(word, row, _why(gap, p, shared[key], metric in SHARES)))
            for cost, change, kind, text in _costs(then, now, cost_tolerance):
                findings += [Finding(kind, row, text)] if kind else []
                costs |= {cost: change} if cost in _MEASURED else {}
        told = word or "/".join(dict.fromkeys(finding.kind for finding in findings))
        a_mean, b_mean = (estimate(list(_scores(side).values())) for side in (then, now))
        rows.append(Compared(label, task, metric, a_mean, b_mean, gap, told, costs, tuple(findings)))
    return Difference(tuple(sorted(rows, key=lambda row: (row.task, row.label))), tolerance, cost_tolerance)


def judged(rows: Sequence[Shared]) -> list[tuple[str, float | None]]:
    """Return for each row the verdict on its later scores, and the p value of a one-sided paired t test.

    The p values are corrected for the number of rows with at least ``SEEDS_NEEDED`` shared seeds. For other rows, the p value is
    None, and the tolerance alone decides.
    """
    tested = [at for at, row in enumerate(rows) if len(row.gains) >= SEEDS_NEEDED]
    p_values = [_p_worse(rows[at]) for at in tested]
    corrected = dict(zip(tested, zip(holm(p_values), holm([1 - p for p in p_values]), strict=True), strict=True))
    return [_verdict(row, corrected.get(at)) for at, row in enumerate(rows)]


def _p_worse(row: Shared) -> float:
    """Return the one-sided p value for B being worse."""
    two_sided = paired_p_value(row.gains, row.grain)
    return two_sided / 2 if statistics.fmean(row.gains) < 0 else 1 - two_sided / 2


def _verdict(row: Shared, corrected: tuple[float, float] | None) -> tuple[str, float | None]:
    if not row.gains:
        return "not compared", None
    gain = statistics.fmean(row.gains)
    side = "worse" if gain < -row.tolerance else "better" if gain > row.tolerance else ""
    if corrected is None:
        return side or "within tolerance", None
    p = corrected[side == "better"]
    return side if side and p <= LEVEL else "within noise", p


def _why(gap: Estimate, p: float | None, row: Shared, share: bool) -> str:
    over = f"{gap.in_points(share)} over {gap.count} shared seed{'s' if gap.count > 1 else ''}"
    if p is not None:
        return f"{over}, corrected p = {p:.2g}"
    return f"{over}, tolerance {Estimate(row.tolerance, None, 0).in_points(share, '')}; the noise is unknown"


def _apart(then: Mapping[int, Run], now: Mapping[int, Run]) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each finding that is not about scores or costs."""
    if not then or not now:
        yield ("missing", "only in A") if then else ("new", "only in B")
    elif changes := _changed(then, now):
        yield "changed", f"not compared, because {'; '.join(changes)}"
    else:
        for seed, run in then.items():
            other = now.get(seed)
            if other is None:
                yield "missing", f"seed {seed} is only in A"
            elif run["status"] == "done" != other["status"]:
                yield "failing", f"seed {seed} was done and is now {other['status']}: {other['reason']}"
            elif run["status"] != "done" == other["status"]:
                yield "fixed", f"seed {seed} was {run['status']} and is now done"


def _costs(then: Mapping[int, Run], now: Mapping[int, Run], tolerance: float) -> Iterator[tuple[str, float, str, str]]:
    """Yield costs of a row: the name, the relative change, the kind of finding (empty for a change that does not count), and the
    text. A counted cost is yielded only if it differs, time and memory only if they were measured on the same kind of processor."""
    shared = [(run, now[seed]) for seed, run in then.items() if seed in now and run["status"] == now[seed]["status"] == "done"]
    for name in COUNTED if shared else ():
        old, new = (run[name] for run in shared[0])
        if old is not None and new is not None and old != new:
            yield name, 0.0, "costlier" if new > old else "cheaper", _became(name, old, new)
    here = [pair for pair in shared if pair[0]["processor"] == pair[1]["processor"]]
    for cost, (name, spread, kinds) in _MEASURED.items():
        known = [pair for pair in here if pair[0][name] and pair[1][name]]
        if known:
            kind = next((k for k, s in zip(kinds, (1, -1), strict=True) if _beyond(known, name, spread, s, tolerance)), "")
            old, new = (statistics.median(pair[side][name] for pair in known) for side in (0, 1))
            text = f"{_became(name, old, new)} over {len(known)} shared seed{'s' if len(known) > 1 else ''}"
            yield cost, new / old - 1, kind, text


def _beyond(pairs: Sequence[tuple[Run, Run]], name: str, spread: str, sign: int, tolerance: float) -> bool:
    """Return True if a cost rose (``sign`` 1) or fell (-1) at every seed, by more than the tolerance and the steps' spreads."""
    noise = [max(tolerance * min(a[name], b[name]), a.get(spread) or 0.0, b.get(spread) or 0.0) for a, b in pairs]
    return all(sign * (b[name] - a[name]) > most for (a, b), most in zip(pairs, noise, strict=True))


def _became(name: str, old: float, new: float) -> str:
    change = f" ({new / old - 1:+.1%})" if old else ""
    return f"{name.replace('_', ' ')} {old:,.4g} became {new:,.4g}{change}"


def _shared(then: Mapping[int, Run], now: Mapping[int, Run], tolerance: float) -> Shared:
    run, a, b = _first(then), _scores(then), _scores(now)
    measured = resolution(run["task_card"], run["data"])
    unit = 1.0 if measured.share else abs(statistics.fmean(a.values() or [0.0]))
    gains = [measured.sign * (b[seed] - a[seed]) for seed in sorted(a.keys() & b.keys())]
    return Shared(gains, measured.grain, tolerance * unit)


def _first(runs: Mapping[int, Run]) -> Run:
    """Return the first finished run or, if none finished, the first run."""
    return min(runs.values(), key=lambda run: run["status"] != "done")


def _scores(runs: Mapping[int, Run]) -> dict[int, float]:
    return {seed: run["test"] for seed, run in runs.items() if run["status"] == "done" and run["test"] is not None}


def _rows(runs: pl.DataFrame) -> _Rows:
    """Group runs into rows by their specs without the seed."""
    runs = newest(runs, *SETTING).sort("seed")
    rows = grouped((key_of(_spec(run)), run) for run in runs_of(runs))
    return {key: {run["seed"]: run for run in members} for key, members in sorted(rows.items())}


def _partners(before: _Rows, after: _Rows) -> dict[str, str]:
    """Pair a row that is only in A with a row that is only in B, if each side has exactly one such row of their mechanism and
    task."""
    alone: dict[tuple[str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, rows, other in ((0, before, after), (1, after, before)):
        for key in rows.keys() - other.keys():
            run = _first(rows[key])
            alone[run["attention"], run["task"]][side].append(key)
    return {then[0]: now[0] for then, now in alone.values() if len(then) == len(now) == 1}


def _changed(rows_then: Mapping[int, Run], rows_now: Mapping[int, Run]) -> list[str]:
    """Return why two rows cannot be compared: differences of spec, protocol, task version, metric or data.

    If each seed draws its own data, the data are compared at a shared seed only.
    """
    shared = [(run, rows_now[seed]) for seed, run in rows_then.items() if seed in rows_now]
    then, now = min(
        shared, key=lambda pair: [run["status"] != "done" for run in pair], default=(_first(rows_then), _first(rows_now))
    )
    a, b = (
        {
            **_flat(_spec(run)),
            "protocol": run["protocol"],
            "task version": run["task_version"],
            "metric": run["task_card"]["metric"],
        }
        for run in (then, now)
    )
    told = [f"{name} {a.get(name)} became {b.get(name)}" for name in {**a, **b} if a.get(name) != b.get(name)]
    for split in then["data"].keys() & now["data"].keys() if shared or not draws_by_seed(then) else ():
        was, became = (str(run["data"][split].get("digest")) for run in (then, now))
        told += [f"digest of {split} {was[:8]} became {became[:8]}"] if was != became else []
    return told


def _names(runs: pl.DataFrame) -> dict[str, tuple[str, str]]:
    """Return for each id of a run the label of its row, and the title of its task. If runs of a task differ in a setting that all
    rows of a table share, the title has its value."""
    labels = {run["run_id"]: row.label for table in tables(runs) for row in table.rows for run in row.runs}
    names = {}
    for members in grouped((run["task"], (run, _setting(run))) for run in runs_of(runs)).values():
        first = members[0][1]
        differing = [name for name in first if len({key_of(setting.get(name)) for _, setting in members}) > 1]
        for run, setting in members:
            told = ", ".join(f"{name}={setting.get(name)}" for name in differing)
            # If a study chose differently in A and B, the tables of both have the later choice only.
            label = labels.get(run["run_id"], f"{run['attention']} (tuned)")
            names[run["run_id"]] = label, str(run["task_card"]["title"]) + (f" ({told})" if told else "")
    return names


def _setting(run: Run) -> dict[str, Any]:
    model, budget = asdict(ModelSpec()) | run["model"], asdict(Budget()) | run["budget"]
    own = {"precision": run["precision"], "device": run["device"]}
    return _flat({"task": shared_task_options(run), "model": model, "budget": budget, **own})


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
    parts = []
    for task, rows in grouped((row.task, row) for row in found.rows).items():
        unit = " in %" if all(row.metric in SHARES for row in rows) else ""
        title = f"{task}: A, B and B - A{unit}; seeds in brackets"
        parts.append(
            tabulated(Grid(title, ["attention", "A", "B", "B - A", "verdict", *_MEASURED], list(map(_line, rows))), format)
        )
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
    scores = [(row.a, ""), (row.b, ""), (row.difference, "+")]
    told = ["-" if one is None else f"{one.written(*style(row.metric), sign)} ({one.count})" for one, sign in scores]
    return [row.label, *told, row.word, *(f"{row.costs[name]:+.1%}" if name in row.costs else "-" for name in _MEASURED)]

"""Comparison of two sets of records, A (earlier) and B (later), row by row, and its text, which ``attn-zoo diff`` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import SEEDS_NEEDED
from attn_zoo.leaderboard.metrics import style
from attn_zoo.leaderboard.rank import (
    counted_runs,
    draws_by_seed,
    has_score,
    key_of,
    shared_task_options,
    tables,
    without_trials,
)
from attn_zoo.leaderboard.statistics import SHARES, Estimate, estimate, holm, paired_p_value, resolution
from attn_zoo.leaderboard.table import titles
from attn_zoo.leaderboard.text import Grid, lines, tabulated
from attn_zoo.records import RunRecord
from attn_zoo.records.record import COUNTED

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
    f"measured costs: higher or lower for every shared seed by more than {COST_TOLERANCE:.0%} and, for time, by more than the "
    "interquartile ranges of the steps; compared only on the same processor with the same number of threads",
)
_MEASURED = {
    "time": ("step_seconds_median", "step_seconds_iqr", ("slower", "faster")),
    "memory": ("peak_bytes", "", ("larger", "smaller")),
}
"""For each measured cost, its column, the column with its spread, and the kinds of findings if it is higher or lower in B."""

_Seeds = Mapping[int, RunRecord]
"""Runs of one row that count, by seed."""


class Finding(NamedTuple):
    """Difference of one row between A and B, of a kind such as ``worse`` or ``slower``."""

    kind: str
    text: str


@dataclass(slots=True)
class Compared:
    """Comparison of one row (a configuration on one task) between A and B."""

    label: str
    task: str
    """Title of the task. If the task has several tables, the settings in which they differ follow."""
    metric: str
    a: Estimate | None
    """Mean test score in A over all finished seeds; None if A has no score."""
    b: Estimate | None
    difference: Estimate | None = None
    """Score in B minus score in A, averaged over shared seeds. Its interval is not corrected for the number of rows. None if the
    scores were not compared."""
    gains: Sequence[float] = ()
    """Score in B minus score in A by shared seed, with the sign turned if lower scores are better."""
    grain: float = 0.0
    """Smallest step between two scores; 0 if it is not known."""
    tolerance: float = 0.0
    """Largest loss that does not count as worse, in the unit of the score."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Relative change of measured costs, ``time`` and ``memory``."""
    findings: list[Finding] = field(default_factory=list)
    verdict: str = ""
    """``worse``, ``better``, ``within noise``, ``within tolerance`` (with few seeds), or the kinds of findings that prevented a
    comparison."""


def difference(a: Sequence[RunRecord], b: Sequence[RunRecord], tolerance: float = TOLERANCE) -> list[Compared]:
    """Return the comparison of later records ``b`` with earlier records ``a``, row by row.

    Records belong to the same row if all their settings except the seed are equal. Only scores with the same seed are compared,
    because data order and initial weights are then the same.

    Args:
        tolerance: largest loss of score that does not count as worse; see ``TOLERANCE``.

    Raises:
        ValueError: ``a`` or ``b`` has no record, or the tolerance is negative, infinite or NaN.
    """
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"the tolerance must be at least 0 and finite; got {tolerance}")
    runs = [without_trials(records) for records in (a, b)]
    for name, found in zip("AB", runs, strict=True):
        if not found:
            raise ValueError(
                f"{name} must hold at least one record, but holds none. Give a folder of records or the file of one record"
            )
    names = _names([*runs[0], *runs[1]])
    rows = [_compared(then, now, names, tolerance) for then, now in _pairs(*map(_rows, runs))]
    with_scores = [row for row in rows if row.gains]
    for row, (verdict, p) in zip(with_scores, judged(with_scores), strict=True):
        row.verdict = verdict
        if verdict in ("worse", "better"):
            row.findings.insert(0, Finding(verdict, _why(row, p)))
    for row in rows:
        row.verdict = row.verdict or "/".join(dict.fromkeys(finding.kind for finding in row.findings)) or "not compared"
    return sorted(rows, key=lambda row: (row.task, row.label))


def judged(rows: Sequence[Compared]) -> list[tuple[str, float | None]]:
    """Return for each row the verdict on its later scores, and the p value of a one-sided paired t test.

    The p values are corrected for the number of rows with at least ``SEEDS_NEEDED`` shared seeds. For other rows, the p value is
    None, and the tolerance alone decides.
    """
    tested = [at for at, row in enumerate(rows) if len(row.gains) >= SEEDS_NEEDED]
    halves = [paired_p_value(rows[at].gains, rows[at].grain) / 2 for at in tested]
    worse = [half if statistics.fmean(rows[at].gains) < 0 else 1 - half for at, half in zip(tested, halves, strict=True)]
    corrected = dict(zip(tested, zip(holm(worse), holm([1 - p for p in worse]), strict=True), strict=True))
    found: list[tuple[str, float | None]] = []
    for at, row in enumerate(rows):
        gain = statistics.fmean(row.gains)
        side = "worse" if gain < -row.tolerance else "better" if gain > row.tolerance else ""
        p = corrected[at][side == "better"] if at in corrected else None
        noise = "within tolerance" if p is None else "within noise"
        found.append((side if side and (p is None or p <= LEVEL) else noise, p))
    return found


def _rows(runs: Iterable[RunRecord]) -> dict[str, _Seeds]:
    """Return the runs by row and seed."""
    by_row = counted_runs((key_of([_settings(run)]), run) for run in runs)
    return {key: {run.spec.seed: run for run in own} for key, own in sorted(by_row.items())}


def _settings(run: RunRecord) -> dict[str, object]:
    """Return the settings by key that all seeds of a row share, such as ``options.projected_length``."""
    spec, found = run.spec, dict[str, object]()
    given: dict[str, object] = {"task": spec.task, "task_options": shared_task_options(run)}
    given |= {name: getattr(spec, name) for name in ("attention", "attention_version", "options", "implementation")}
    given |= {"model": spec.model.to_dict(), "budget": spec.budget.to_dict(), "precision": spec.precision, "device": spec.device}
    for name, value in given.items():
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
    return found


def _pairs(before: Mapping[str, _Seeds], after: Mapping[str, _Seeds]) -> Iterator[tuple[_Seeds, _Seeds]]:
    """Yield the runs of each row in A and in B. A row that is only in A is paired with one that is only in B, if each side has
    exactly one such row of their mechanism and task."""
    yield from ((then, after[key]) for key, then in before.items() if key in after)
    only_a, only_b = (
        grouped(((_first(rows[key]).spec.attention, _first(rows[key]).spec.task), rows[key]) for key in rows if key not in others)
        for rows, others in ((before, after), (after, before))
    )
    for key in {**only_a, **only_b}:
        left, right = only_a.get(key, []), only_b.get(key, [])
        if len(left) == len(right) == 1:
            yield left[0], right[0]
        else:
            yield from ((then, {}) for then in left)
            yield from (({}, now) for now in right)


def _names(runs: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """Return for each id of a run the label of its row, and the unique title of its table."""
    made = tables(runs)
    named = zip(made, titles(made), strict=True)
    return {run.run_id: (row.label, title) for table, title in named for row in table.rows for run in row.runs}


def _compared(then: _Seeds, now: _Seeds, names: Mapping[str, tuple[str, str]], tolerance: float) -> Compared:
    """Return the comparison of one row, as yet without a verdict on its scores."""
    run, old, new = _first(then or now), _scores(then), _scores(now)
    # If a study chose differently in A and B, the tables of both have the later choice only.
    label, task = names.get(run.run_id, (f"{run.spec.attention} (tuned)", str(run.task_card["title"])))
    metric, measured = run.task_card["metric"], resolution(run.task_card, run.data)
    row = Compared(label, task, metric, estimate(list(old.values())), estimate(list(new.values())))
    row.findings = [Finding(*found) for found in _apart(then, now)]
    if then and now and not any(finding.kind == "changed" for finding in row.findings):
        gaps = [new[seed] - old[seed] for seed in sorted(old.keys() & new.keys())]
        row.difference, row.gains = estimate(gaps), [measured.sign * gap for gap in gaps]
        row.grain, row.tolerance = measured.grain, tolerance * (1.0 if measured.share else abs(row.a.mean if row.a else 0.0))
        row.costs = _measured(then, now, row.findings)
    return row


def _first(runs: _Seeds) -> RunRecord:
    """Return the first finished run or, if none finished, the first run."""
    return min(runs.values(), key=lambda run: run.status != "done")


def _scores(runs: _Seeds) -> dict[int, float]:
    return {seed: run.scores["test"] for seed, run in runs.items() if has_score(run)}


def _apart(then: _Seeds, now: _Seeds) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each finding that is not about scores or measured costs."""
    if not then or not now:
        yield ("missing", "only in A") if then else ("new", "only in B")
        return
    if changes := _changes(then, now):
        yield "changed", f"not compared, because {'; '.join(changes)}"
        return
    for seed, run in then.items():
        other = now.get(seed)
        if other is None:
            yield "missing", f"seed {seed} is only in A"
        elif run.status == "done" != other.status:
            yield "failing", f"seed {seed} was done and is now {other.status}: {other.reason}"
        elif run.status != "done" == other.status:
            yield "fixed", f"seed {seed} was {run.status} and is now done"
    if shared := _both_done(then, now):
        for name in COUNTED:
            old, new = (run.counted.get(name) for run in shared[0])
            if old is not None and new is not None and old != new:
                yield "costlier" if new > old else "cheaper", _became(name, old, new)


def _changes(then: _Seeds, now: _Seeds) -> list[str]:
    """Return why two rows cannot be compared: differences of settings, protocol, version, metric, part or data. If each seed draws
    its own data, the data are compared at a shared seed only."""
    shared = [(run, now[seed]) for seed, run in then.items() if seed in now]
    old, new = min(shared, key=lambda pair: [run.status != "done" for run in pair], default=(_first(then), _first(now)))
    a, b = (
        {**_settings(r), "protocol": r.protocol, "task version": r.task_card["version"]}
        | {"metric": r.task_card["metric"], "distant part": r.task_card.get("distant")}
        for r in (old, new)
    )
    told = [f"{name} {a.get(name)} became {b.get(name)}" for name in {**a, **b} if a.get(name) != b.get(name)]
    for split in old.data.keys() & new.data.keys() if shared or not draws_by_seed(old) else ():
        was, became = (str(run.data[split].get("digest")) for run in (old, new))
        told += [f"digest of {split} {was[:8]} became {became[:8]}"] if was != became else []
    return told


def _both_done(then: _Seeds, now: _Seeds) -> list[tuple[RunRecord, RunRecord]]:
    return [(run, now[seed]) for seed, run in then.items() if seed in now and run.status == now[seed].status == "done"]


def _measured(then: _Seeds, now: _Seeds, findings: list[Finding]) -> dict[str, float]:
    """Return the relative change of time and memory, if they were measured on the same kind of processor. Add a finding for each
    change that counts: at every seed, by more than the tolerance and the spreads of the steps."""
    here = [(a.measured, b.measured) for a, b in _both_done(then, now) if a.processor == b.processor]
    costs = {}
    for cost, (name, spread, kinds) in _MEASURED.items():
        known = [(a, b) for a, b in here if a.get(name) and b.get(name)]
        if known:
            old, new = (statistics.median(pair[side][name] for pair in known) for side in (0, 1))
            costs[cost] = new / old - 1
            noise = [max(COST_TOLERANCE * min(a[name], b[name]), a.get(spread) or 0.0, b.get(spread) or 0.0) for a, b in known]
            for kind, sign in zip(kinds, (1, -1), strict=True):
                if all(sign * (b[name] - a[name]) > most for (a, b), most in zip(known, noise, strict=True)):
                    findings.append(Finding(kind, f"{_became(name, old, new)} over {_shared_seeds(len(known))}"))
    return costs


def _shared_seeds(count: int) -> str:
    return f"{count} shared seed{'s' * (count > 1)}"


def _became(name: str, old: float, new: float) -> str:
    change = f" ({new / old - 1:+.1%})" if old else ""
    return f"{name.replace('_', ' ')} {old:,.4g} became {new:,.4g}{change}"


def _why(row: Compared, p: float | None) -> str:
    assert row.difference is not None, "only rows with scores have a verdict"
    share = row.metric in SHARES
    over = f"{row.difference.in_points(share)} over {_shared_seeds(row.difference.count)}"
    if p is not None:
        return f"{over}, corrected p = {p:.2g}"
    return f"{over}, tolerance {Estimate(row.tolerance, None, 0).in_points(share, '')}; the noise is unknown"


def render_difference(rows: Sequence[Compared], kinds: Collection[str], tolerance: float = TOLERANCE) -> str:
    """Return the comparison of two sets of records as text: one table per task, the findings of the given kinds, which make
    ``attn-zoo diff`` fail, all other findings, and the rules of the comparison."""
    parts = []
    for task, members in grouped((row.task, row) for row in rows).items():
        unit = " in %" if all(row.metric in SHARES for row in members) else ""
        head = ["attention", "A", "B", "B - A", "verdict", *_MEASURED]
        parts.append(
            tabulated(Grid(f"{task}: A, B and B - A{unit}; seeds in brackets", head, list(map(_line, members))), "terminal")
        )
    said = grouped((f.kind in kinds, f"{f.kind}: {row.label} on {row.task}: {f.text}") for row in rows for f in row.findings)
    for fails, name in ((True, f"Fails ({', '.join(kinds)})"), (False, "Also found")):
        parts += [f"{name}:\n{lines(said[fails], 'terminal')}"] if fails in said else []
    if True not in said:
        parts.append(f"No regressions (checked for: {', '.join(kinds) or 'nothing, because --fail-on is empty'}).")
    allowed = f"tolerance: {tolerance:g} of a score, relative to its mean in A if the metric is not a percentage"
    return "\n\n".join([*parts, lines([*METHOD, allowed], "terminal")])


def _line(row: Compared) -> list[str]:
    scores = [(row.a, ""), (row.b, ""), (row.difference, "+")]
    told = ["-" if one is None else f"{one.written(*style(row.metric), sign)} ({one.count})" for one, sign in scores]
    return [row.label, *told, row.verdict, *(f"{row.costs[name]:+.1%}" if name in row.costs else "-" for name in _MEASURED)]

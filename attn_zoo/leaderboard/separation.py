"""Verdict on whether a task separates mechanisms: softmax must beat the best control, and groups of rows must differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import SEEDS_NEEDED, Resolution, apart, compare, difference, fit_to_compare, resolution, standing
from attn_zoo.leaderboard.data import csv_text, plain
from attn_zoo.leaderboard.heatmap import titles as titles_of
from attn_zoo.leaderboard.metrics import estimated, unit
from attn_zoo.leaderboard.notes import COLUMNS_PAGE
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import Grid, lines, tabulated

LEAD_NEEDED = 0.3
"""Gain over the best control that softmax needs for a task to separate mechanisms: 30 points for percentage metrics, else 0.3
times the control's score."""
GROUPS_NEEDED = 3
"""Number of groups of rows that must differ significantly."""
_NAMED = 6
"""Greatest number of left-out rows that a note names. If there are more, the note has only their number."""


@dataclass(frozen=True, slots=True)
class Separation:
    """Verdict on whether a task separates good mechanisms from bad ones. Each row (a configuration or a control) is compared with
    every other row."""

    table: Table
    rows: tuple[str, ...]
    """Labels of the compared rows."""
    left_out: tuple[str, ...]
    """Labels of rows that were not compared, because a seed failed or there are too few seeds."""
    seeds: int
    """Smallest number of seeds of a compared row."""
    pairs: int
    differing: int
    """Number of pairs that differ significantly."""
    groups: tuple[tuple[str, ...], ...]
    """Groups of rows, the best group first. All rows of a group are significantly better than all rows of the next; rows that fit
    no group are left out."""
    baseline: str
    control: str | None
    """Label of the best control."""
    margin: Estimate | None
    """Score of the row ``baseline`` (softmax unless another was asked for) minus that of the best control."""
    separates: bool
    reasons: tuple[str, ...]
    """Reasons why the task does not separate mechanisms, or the evidence that it does."""


def separates(table: Table, row: str = "softmax") -> Separation:
    """Return the verdict on whether a task separates mechanisms.

    Two conditions must hold. First, the 95 % interval of the score of ``row`` minus that of the best control lies above
    ``LEAD_NEEDED``. Second, at least ``GROUPS_NEEDED`` groups of rows differ significantly.

    Args:
        row: label or mechanism of the row that must beat the best control. If a mechanism has several rows, its best row is taken.
    """
    kept, left_out = fit_to_compare(table.rows)
    measured = resolution(table.task, table.data)
    in_order = sorted(kept, key=lambda r: standing(r, table.sign))
    differing = apart(compare(list(combinations(kept, 2)), measured))
    groups = groups_apart([r.label for r in in_order], differing)
    baseline = next((r for r in table.rows if row in (r.label, r.attention)), None)
    controls = [r for r in kept if r.control and r is not baseline]
    lead, against = _lead(row, baseline if baseline in kept else None, controls, table, measured)
    against = against if baseline else [f"there is no row of {row}"]
    if len(groups) < GROUPS_NEEDED:
        against.append(
            f"only {len(groups)} group{' differs' if len(groups) == 1 else 's differ'} significantly, and {GROUPS_NEEDED} are "
            "needed"
        )
    led = f"{row} minus {controls[0].label} is {lead.in_points(measured.share)}" if lead else ""
    evidence = (led, f"{len(groups)} groups differ significantly")
    return Separation(
        table=table,
        rows=tuple(r.label for r in kept),
        left_out=tuple(left_out),
        seeds=min((len(r.seeds) for r in kept), default=0),
        pairs=len(kept) * (len(kept) - 1) // 2,
        differing=len(differing),
        groups=groups,
        baseline=baseline.label if baseline else row,
        control=controls[0].label if controls else None,
        margin=lead,
        separates=not against,
        reasons=tuple(against or evidence),
    )


def groups_apart(labels: Sequence[str], better: set[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Return as many groups of rows as possible, the best group first. All rows of a group are significantly better than all rows
    of the next group.

    Each group starts with one row of a longest chain of rows, in which each row is significantly better than the next. Every
    other row joins the first group that it fits; a row that fits none is left out.

    Args:
        labels: labels of rows, the best first.
        better: pairs of labels that differ significantly, as (better, worse).

    Source:
        Mirsky 1971, "A dual of Dilworth's decomposition theorem".
    """
    chains: dict[str, tuple[str, ...]] = {}
    for label in labels:
        above = [chain for other, chain in chains.items() if (other, label) in better]
        chains[label] = (*max(above, key=len, default=()), label)
    chain = max(chains.values(), key=len, default=())
    groups = [[label] for label in chain]
    for label in labels:
        for at, group in enumerate(groups if label not in chain else []):
            before = groups[at - 1] if at else []
            after = groups[at + 1] if at + 1 < len(groups) else []
            if all((one, label) in better for one in before) and all((label, one) in better for one in after):
                group.append(label)
                break
    return tuple(tuple(group) for group in groups)


def _lead(
    name: str, baseline: Row | None, controls: Sequence[Row], table: Table, measured: Resolution
) -> tuple[Estimate | None, list[str]]:
    """Return the gain of the baseline over the best control, and any reasons why it is not enough: the gain is too small, or a
    control is significantly better."""
    if baseline is None or not controls:
        return None, [f"{name} and a control do not have {SEEDS_NEEDED} seeds without a failed seed"]
    against = []
    for control in controls:
        margin = _margin(baseline, control, measured)
        least, most = sorted((table.sign * margin.low, table.sign * margin.high))
        needed = LEAD_NEEDED * (1.0 if measured.share or not control.test else abs(control.test.mean))
        said = f"{baseline.label} minus {control.label} is {margin.in_points(measured.share)}"
        if most < 0:
            against.append(f"the control {control.label} is significantly better: {said}")
        elif control is controls[0] and least < needed:
            side = "above" if table.sign > 0 else "below"
            goal = Estimate(table.sign * needed, None, 0).in_points(measured.share)
            against.append(f"{said}, but the whole interval must lie {side} {goal}")
    return _margin(baseline, controls[0], measured), against


def _margin(baseline: Row, control: Row, measured: Resolution) -> Estimate:
    found = difference(baseline, control, measured)
    assert found is not None, "rows that are compared have scores"
    return found[0]


def render_separations(found: Sequence[Separation], format: str) -> str:
    """Return text in one of ``FORMATS`` that states which tasks separate mechanisms.

    The table has one line per task. Notes below the table state the reasons, and how many pairs of rows differ significantly over
    all tasks.
    """
    if format == "json":
        return json.dumps([_data(one) for one in found], indent=1)
    if format == "csv":
        return csv_text(list(_data(found[0])), map(_data, found))
    titles = titles_of([one.table for one in found])
    head = ["task", "rows", "seeds", "pairs that differ", "groups", "over control", "separates"]
    body = [_cells(title, one) for title, one in zip(titles, found, strict=True)]
    table = tabulated(Grid("Separation", head, body), format)
    return f"{table}\n\n{lines(_notes(titles, found), format)}"


def _cells(title: str, one: Separation) -> list[str]:
    share = f"{100 * one.differing / one.pairs:.0f} %" if one.pairs else "-"
    margin = estimated(one.margin, one.table, "+") + (unit(one.table, " %") if one.margin else "")
    return [title, str(len(one.rows)), str(one.seeds), share, str(len(one.groups)), margin, "yes" if one.separates else "no"]


def _notes(titles: Sequence[str], found: Sequence[Separation]) -> list[str]:
    differing, pairs = sum(one.differing for one in found), sum(one.pairs for one in found)
    share = f" ({100 * differing / pairs:.0f} %)" if pairs else ""
    whole = (
        f"all tasks: {sum(one.separates for one in found)} of {len(found)} separate mechanisms, and {differing:,} of {pairs:,} "
        f"pairs of rows differ significantly{share}"
    )
    named = list(zip(titles, found, strict=True))
    against = grouped(("; ".join(one.reasons), title) for title, one in named if not one.separates)
    notes = [
        f"{', '.join(tasks[:-1])}{' and ' * (len(tasks) > 1)}{tasks[-1]} do{'es' * (len(tasks) == 1)} not separate mechanisms: "
        f"{why}"
        for why, tasks in against.items()
    ]
    out = [(title, ", ".join(one.left_out) if len(one.left_out) <= _NAMED else f"{len(one.left_out)} rows") for title, one in named]
    notes += [f"{title} leaves out {rows}, because seeds failed or are too few" for title, rows in out if rows]
    return [f"{whole}; columns and statistics: {COLUMNS_PAGE}", *notes]


def _data(one: Separation) -> dict[str, Any]:
    task = one.table.task
    known = {"task": task["name"], "task_options": dict(one.table.task_options), "metric": task["metric"]}
    return known | {field.name: plain(getattr(one, field.name)) for field in fields(one) if field.name != "table"}

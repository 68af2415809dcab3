"""Verdict on whether a task separates mechanisms: softmax must beat the best control, and groups of rows must differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from attn_zoo.leaderboard.compare import SEEDS_NEEDED, Resolution, apart, compare, difference, fit_to_compare, resolution, standing
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table

LEAD_NEEDED = 0.3
"""Gain over the best control that softmax needs for a task to separate mechanisms: 30 points for percentage metrics, else 0.3
times the control's score."""
GROUPS_NEEDED = 3
"""Number of groups of rows that must differ significantly."""


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
    in_order = sorted(kept, key=lambda r: standing(r, table.higher_is_better))
    differing = apart(compare(list(combinations(kept, 2)), table.higher_is_better, measured))
    groups = groups_apart([r.label for r in in_order], differing)
    baseline = next((r for r in table.rows if row in (r.label, r.attention)), None)
    controls = [r for r in kept if r.control and r is not baseline]
    lead, against = _lead(row, baseline if baseline in kept else None, controls, table, measured)
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

"""Whether a task separates: attention must be needed to solve it, and mechanisms must differ on it beyond noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_zoo.leaderboard.comparisons import SEEDS_NEEDED, Resolution, compare, fit_to_compare, resolution
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.statistics import Estimate, Floats, benjamini_hochberg, holm, paired

LEAD_NEEDED = 0.3
"""Lead of the yardstick over the best control: of shares as it is (30 points), of other metrics relative to the control."""
GROUPS_NEEDED = 3
"""Tie groups that must stand apart."""
RULE = (
    "a task separates where softmax, or the mechanism that solves it by its card, leads the best control by "
    f"{100 * LEAD_NEEDED:.0f} points ({100 * LEAD_NEEDED:.0f} % where the metric is no share) with its whole 95 % interval, and "
    f"{GROUPS_NEEDED} tie groups stand apart: all members of one are told apart from all of the next, with Holm's correction"
)


@dataclass(frozen=True, slots=True)
class Separation:
    """How far the rows of a table, controls included, are told apart."""

    table: Table
    rows: tuple[str, ...]
    """Labels of the rows that are compared."""
    left_out: tuple[str, ...]
    """Labels of rows of which seeds failed or are too few."""
    seeds: int
    """Fewest seeds of a row that is compared."""
    pairs: int
    told_apart: int
    """Pairs that are told apart at a false discovery rate of 5 %."""
    groups: tuple[tuple[str, ...], ...]
    """Tie groups that stand apart, the best first; rows that tie with members of two groups are in none."""
    yardstick: str
    control: str | None
    """Label of the best control."""
    margin: Estimate | None
    """Score of the yardstick minus that of the best control, paired by seed."""
    separates: bool
    reasons: tuple[str, ...]
    """Why it does not, or by what it does."""


def separates(table: Table, row: str = "softmax") -> Separation:
    """The verdict on a task.

    Args:
        row: the yardstick, by its label or by the name of the attention; of several rows of an attention the best.
    """
    kept, left_out = fit_to_compare(table.rows)
    measured = resolution(table.task, table.data)
    by_score = sorted(kept, key=lambda r: r.scores.test.mean if r.scores.test else 0.0, reverse=table.higher_is_better)
    groups = groups_apart([r.label for r in by_score], _apart(kept, table, measured, holm))
    yardstick = next((r for r in table.rows if row in (r.label, r.attention)), None)
    controls = [r for r in kept if r.control and r is not yardstick]
    lead, against = _lead(row, yardstick if yardstick in kept else None, controls, table, measured)
    if len(groups) < GROUPS_NEEDED:
        against.append(f"{len(groups)} tie group{' stands' if len(groups) == 1 else 's stand'} apart, of {GROUPS_NEEDED} needed")
    by = [f"{row} minus {controls[0].label} is {lead.in_points(measured.share)}"] if lead else []
    by += [f"{len(groups)} tie groups stand apart"] if lead else []
    return Separation(
        table=table,
        rows=tuple(r.label for r in kept),
        left_out=tuple(left_out),
        seeds=min((len(r.scores.seeds) for r in kept), default=0),
        pairs=len(kept) * (len(kept) - 1) // 2,
        told_apart=len(_apart(kept, table, measured, benjamini_hochberg)),
        groups=groups,
        yardstick=yardstick.label if yardstick else row,
        control=controls[0].label if controls else None,
        margin=lead,
        separates=not against,
        reasons=tuple(against or by),
    )


def groups_apart(labels: Sequence[str], apart: set[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """The most groups of which every member is told apart from every member of the next.

    They are a longest chain of rows each of which is told apart from the next, with every other row that fits beside one of them.
    By Mirsky 1971 ("A dual of Dilworth's decomposition theorem") as many sets of ties are the fewest that can hold all rows.

    Args:
        labels: of rows, the best first.
        apart: (better, worse) of the pairs that are told apart.
    """
    chains: dict[str, tuple[str, ...]] = {}
    for label in labels:
        above = [chain for other, chain in chains.items() if (other, label) in apart]
        chains[label] = (*max(above, key=len, default=()), label)
    chain = max(chains.values(), key=len, default=())
    groups = [[label] for label in chain]
    for label in labels:
        for at, group in enumerate(groups if label not in chain else []):
            better = groups[at - 1] if at else []
            worse = groups[at + 1] if at + 1 < len(groups) else []
            if all((b, label) in apart for b in better) and all((label, w) in apart for w in worse):
                group.append(label)
                break
    return tuple(tuple(group) for group in groups)


def _apart(rows: Sequence[Row], table: Table, measured: Resolution, correction: Callable[[Floats], Floats]) -> set[tuple[str, str]]:
    if len(rows) < 2:
        return set()
    return {(c.better, c.worse) for c in compare(rows, table.higher_is_better, measured, correction) if c.apart}


def _lead(
    name: str, yardstick: Row | None, controls: Sequence[Row], table: Table, measured: Resolution
) -> tuple[Estimate | None, list[str]]:
    """The yardstick minus the best control, and why that is too little; a control that is better beyond noise is named as well."""
    if yardstick is None or not controls:
        return None, [f"{name} and a control do not have {SEEDS_NEEDED} seeds in common, none failed"]
    sign = 1 if table.higher_is_better else -1
    against = []
    for control in controls:
        margin = _margin(yardstick, control)
        least, most = (sign * margin.mean + side * (margin.half_width or 0.0) for side in (-1, 1))
        needed = LEAD_NEEDED * (1.0 if measured.share or not control.scores.test else abs(control.scores.test.mean))
        said = f"{yardstick.label} minus {control.label} is {margin.in_points(measured.share)}"
        if most < 0:
            against.append(f"the control {control.label} is better beyond noise: {said}")
        elif control is controls[0] and least < needed:
            goal = Estimate(sign * needed, None, 0).in_points(measured.share)
            against.append(f"{said}, and all of the interval must lie beyond {goal}")
    return _margin(yardstick, controls[0]), against


def _margin(yardstick: Row, control: Row) -> Estimate:
    found = paired(yardstick.scores.by_seed, control.scores.by_seed)
    assert found is not None, "rows that are compared share seeds"
    return found

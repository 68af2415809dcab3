"""Verdict on whether a task separates mechanisms: softmax must beat the best control, and groups of rows must differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from attn_zoo.checks import check_text
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import SEEDS_NEEDED, apart, compare, difference, fit_to_compare, standing
from attn_zoo.leaderboard.metrics import estimated, unit
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table, titles
from attn_zoo.leaderboard.text import COLUMNS_PAGE, Grid, lines, tabulated
from attn_zoo.terminal import FORMATS

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
    rows: tuple[Row, ...]
    """Rows that were compared."""
    left_out: tuple[str, ...]
    """Labels of rows that were not compared, because a seed failed or there are too few seeds."""
    pairs: int
    differing: int
    """Number of pairs that differ significantly."""
    groups: tuple[tuple[str, ...], ...]
    """Groups of rows, the best group first. All rows of a group are significantly better than all rows of the next; rows that fit
    no group are left out."""
    margin: Estimate | None
    """Score of softmax, or of the mechanism in its place, minus that of the best control."""
    against: tuple[str, ...]
    """Reasons why the task does not separate mechanisms; empty if it does."""


def separates(table: Table, mechanism: str = "softmax") -> Separation:
    """Return the verdict on whether a task separates mechanisms.

    Two conditions must hold. First, the 95 % interval of the score of ``mechanism`` minus that of the best control lies above
    ``LEAD_NEEDED``. Second, at least ``GROUPS_NEEDED`` groups of rows differ significantly.

    Args:
        mechanism: mechanism that must beat the best control. If it has several rows, its best row is taken.
    """
    kept, left_out = fit_to_compare(table.rows)
    differing = apart(compare(list(combinations(kept, 2))))
    groups = groups_apart([row.label for row in sorted(kept, key=standing)], differing)
    baseline = next((row for row in table.rows if row.attention == mechanism), None)
    controls = [row for row in kept if row.control and row is not baseline]
    margin, against = None, [f"there is no row of {mechanism}"]
    if baseline and (baseline not in kept or not controls):
        against = [f"{mechanism} and a control do not have {SEEDS_NEEDED} seeds without a failed seed"]
    elif baseline:
        margin, against = _margin(baseline, controls[0]), _too_close(baseline, controls)
    if len(groups) < GROUPS_NEEDED:
        differs = "group differs" if len(groups) == 1 else "groups differ"
        against.append(f"only {len(groups)} {differs} significantly, and {GROUPS_NEEDED} are needed")
    pairs = len(kept) * (len(kept) - 1) // 2
    return Separation(table, tuple(kept), tuple(left_out), pairs, len(differing), groups, margin, tuple(against))


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
            before, after = groups[at - 1] if at else [], groups[at + 1] if at + 1 < len(groups) else []
            if all((one, label) in better for one in before) and all((label, one) in better for one in after):
                group.append(label)
                break
    return tuple(tuple(group) for group in groups)


def _too_close(baseline: Row, controls: Sequence[Row]) -> list[str]:
    """Return why the gain over the best control is too small, and which controls are significantly better than the baseline."""
    against, sign, share = [], baseline.resolution.sign, baseline.resolution.share
    for control in controls:
        margin = _margin(baseline, control)
        least, most = sorted((sign * margin.low, sign * margin.high))
        needed = LEAD_NEEDED * (1.0 if share or not control.test else abs(control.test.mean))
        said = f"{baseline.label} minus {control.label} is {margin.in_points(share)}"
        if most < 0:
            against.append(f"the control {control.label} is significantly better: {said}")
        elif control is controls[0] and least < needed:
            goal = Estimate(sign * needed, None, 0).in_points(share)
            against.append(f"{said}, but the whole interval must lie {'above' if sign > 0 else 'below'} {goal}")
    return against


def _margin(baseline: Row, control: Row) -> Estimate:
    found = difference(baseline, control)
    assert found is not None, "rows that are compared have scores"
    return found[0]


def render_separations(found: Sequence[Separation], format: str) -> str:
    """Return a table that states which tasks separate mechanisms, with one line per task. Notes below the table state the reasons,
    and how many pairs of rows differ significantly over all tasks.

    Args:
        format: one of ``terminal.FORMATS``.
    """
    check_text("format with --separation", format, FORMATS)
    named = list(zip(titles([one.table for one in found]), found, strict=True))
    head = ["task", "rows", "seeds", "pairs that differ", "groups", "over control", "separates"]
    body = []
    for title, one in named:
        seeds = min((len(row.seeds) for row in one.rows), default=0)
        margin = estimated(one.margin, one.table, "+") + (unit(one.table, " %") if one.margin else "")
        numbers = [len(one.rows), seeds, _share(one.differing, one.pairs), len(one.groups)]
        body.append([title, *map(str, numbers), margin, "no" if one.against else "yes"])
    differing, pairs = sum(one.differing for one in found), sum(one.pairs for one in found)
    notes = [
        f"all tasks: {sum(not one.against for one in found)} of {len(found)} separate mechanisms, and {differing:,} of {pairs:,} "
        f"pairs of rows differ significantly{f' ({_share(differing, pairs)})' if pairs else ''}; columns and statistics: "
        f"{COLUMNS_PAGE}"
    ]
    for why, tasks in grouped(("; ".join(one.against), title) for title, one in named if one.against).items():
        several = f"{', '.join(tasks[:-1])} and {tasks[-1]} do" if len(tasks) > 1 else f"{tasks[0]} does"
        notes.append(f"{several} not separate mechanisms: {why}")
    for title, one in named:
        rows = ", ".join(one.left_out) if len(one.left_out) <= _NAMED else f"{len(one.left_out)} rows"
        notes += [f"{title} leaves out {rows}, because seeds failed or are too few"] if rows else []
    return f"{tabulated(Grid('Separation', head, body), format)}\n\n{lines(notes, format)}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"

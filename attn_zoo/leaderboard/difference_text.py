"""Comparison of two sets of records (A and B) as text."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.leaderboard.difference import Compared, Difference
from attn_zoo.leaderboard.gate import METHOD
from attn_zoo.leaderboard.metrics import SHARES, style
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.text import Grid, lines, tabulated

_COSTS = {"time": "step_seconds_median", "memory": "peak_bytes"}


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

"""How often the same was called a tie and a tenth more was found, as a Markdown table with its protocol beneath."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from tabulate import tabulate

from attn_zoo.cost.compare import METHOD
from attn_zoo.cost.honesty.experiment import PASSES
from attn_zoo.cost.protocol import ORDERS, TimingProtocol

WANTED = {"same": ("the same layer twice", "tie"), "slower": (f"one pass in {PASSES} more", "A faster")}
"""In words, and the verdict that is right."""

CLAIMED = 0.95
"""Least share of right verdicts."""


def right(points: Sequence[Mapping[str, Any]], name: str) -> int:
    """How many comparisons of a kind, a key of ``WANTED``, came to the right verdict."""
    return sum(point[name]["verdict"] == WANTED[name][1] for point in points)


def is_honest(points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether both kinds came to the right verdict as often as is claimed."""
    return bool(points) and all(right(points, name) >= CLAIMED * len(points) for name in WANTED)


def honesty_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=honesty``, as ``output=`` writes them."""
    points = found["points"]
    head = ["B against A", "right verdict", "found", "share (95 % interval)", "median B / A", "middle 95 % of B / A"]
    rows = [_row(points, name) for name in WANTED] if points else []
    align = ("left", "left", "right", "right", "right", "right")
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align if rows else None)
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    return "\n\n".join([*partial, table, _said(found)])


def _row(points: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    words, verdict = WANTED[name]
    count, of = right(points, name), len(points)
    low, high = stats.binomtest(count, of).proportion_ci(0.95, "exact")
    quotients = [point[name]["quotient"] for point in points]
    between = np.quantile(quotients, [0.025, 0.975])
    return [
        words,
        verdict,
        f"{count} of {of}",
        f"{100 * count / of:.0f} % ({100 * low:.1f} to {100 * high:.1f})",
        f"{statistics.median(quotients):.3f}",
        f"{between[0]:.3f} to {between[1]:.3f}",
    ]


def _said(found: Mapping[str, Any]) -> str:
    """What was compared, where and how, in words."""
    setting, machine = found["setting"], found["environment"]
    protocol = TimingProtocol.from_dict(found["protocol"])
    subject, steps = setting["subject"], [point["seconds"]["first"][1] for point in found["points"]]
    took = f"; a step of A took {1e3 * statistics.median(steps):.2f} ms (median)" if steps else ""
    return (
        f"A step is {PASSES} forward passes through one layer of {subject['attention']} ({subject['implementation']}), "
        f"length {setting['length']}, width {setting['dim']}, {setting['heads']} heads, fp32{took}. Each of {setting['repeats']} "
        f"repeats takes {protocol.rounds} rounds, which visit A and both Bs, each in a process of its own, "
        f"{ORDERS[protocol.order]}; a visit is {protocol.warmup} untimed and {protocol.most_repeats} timed steps, of which the "
        f"fastest counts. Processes are started anew every {setting['fresh_every']} repeats. A difference counts where the whole "
        f"95 % interval of B / A ({METHOD}) lies beyond {100 * setting['smallest_difference']:g} %; else it is a tie. "
        f"Share: exact binomial interval. Measured on {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}."
    )

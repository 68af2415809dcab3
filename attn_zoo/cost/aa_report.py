"""Report of the A/A test: share of repeated comparisons with the right verdict, against the share that is claimed."""

from __future__ import annotations

import statistics

import numpy as np
from scipy import stats

from attn_zoo.cost.compare import METHOD, Comparison
from attn_zoo.cost.measurement import Measurement
from attn_zoo.cost.protocol import ORDERS
from attn_zoo.cost.tables import joined, markdown
from attn_zoo.cost.timing import quartiles

PASSES = 10
WANTED = {"same": ("the same layer twice", "tie"), "slower": (f"one pass in {PASSES} more", "A faster")}
"""Description and right verdict of each comparison, by name."""

CLAIMED = 0.95
"""Minimum share of right verdicts, below which the test fails."""


def aa_report(found: Measurement) -> str:
    """Report of ``experiment=aa_test``."""
    head = ["B against A", "right verdict", "found", "share (95 % interval)", "median B / A", "middle 95 % of B / A"]
    rows = [_row(found, name) for name in WANTED if _comparisons(found, name)]
    return joined(found, markdown(head, rows, words=(0, 1)), _method(found))


def all_right(found: Measurement) -> bool:
    """Tell whether both comparisons have the right verdict as often as claimed."""
    compared = {name: len(_comparisons(found, name)) for name in WANTED}
    return all(compared.values()) and all(right(found, name) >= CLAIMED * count for name, count in compared.items())


def right(found: Measurement, name: str) -> int:
    """Number of comparisons with the right verdict; ``name`` is a key of ``WANTED``."""
    return sum(comparison.verdict == WANTED[name][1] for comparison in _comparisons(found, name))


def _comparisons(found: Measurement, name: str) -> list[Comparison]:
    compared = [f for cell, f in found.cells.items() if cell.label == name and "quotient" in f.values]
    rounds, smallest = 0 if found.protocol is None else found.protocol.rounds, found.grid["smallest_difference"]
    bounds = [[f.all(quantity)[0] for quantity in ("quotient", "low", "high")] for f in compared]
    return [Comparison(rounds, middle, low, high, smallest) for middle, low, high in bounds]


def _row(found: Measurement, name: str) -> list[str]:
    words, verdict = WANTED[name]
    quotients = [comparison.quotient for comparison in _comparisons(found, name)]
    count, total = right(found, name), len(quotients)
    low, high = stats.binomtest(count, total).proportion_ci(0.95, "exact")
    between = np.quantile(quotients, [0.025, 0.975])
    share = f"{100 * count / total:.0f} % ({100 * low:.1f} to {100 * high:.1f})"
    middle = f"{statistics.median(quotients):.3f}"
    return [words, verdict, f"{count} of {total}", share, middle, f"{between[0]:.3f} to {between[1]:.3f}"]


def _method(found: Measurement) -> str:
    grid, there, protocol = found.grid, found.environment, found.protocol
    assert protocol is not None
    steps = [quartiles(f.all("seconds"))[1] for cell, f in found.cells.items() if cell.label == "first" and f.values]
    took = f"; a step of A took {1e3 * statistics.median(steps):.2f} ms (median)" if steps else ""
    return (
        f"A step is {PASSES} forward passes through one layer of {grid['layer']}, "
        f"length {grid['length']}, width {grid['dim']}, {grid['heads']} heads, fp32{took}. Each of {grid['repeats']} "
        f"repeats takes {protocol.rounds} rounds, which visit A and both Bs, each in a process of its own, "
        f"{ORDERS[protocol.order]}; a visit is {protocol.warmup} untimed and {protocol.most_repeats} timed steps, of which the "
        f"fastest counts. Processes are started anew every {grid['fresh_every']} repeats. A difference counts where the whole "
        f"95 % interval of B / A ({METHOD}) lies beyond {100 * grid['smallest_difference']:g} %; else it is a tie. "
        f"Share: exact binomial interval. Measured on {there['cpu']}, {there['threads']} threads, torch {there['torch']}."
    )

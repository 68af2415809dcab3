"""A/A test of this machine's timings: ``python benchmarks/aa_test.py`` compares a layer with itself, and with a tenth more work.

Step A is ``PASSES`` passes through one layer. Step ``same`` is A again. Step ``slower`` has one pass more, so it costs a tenth more
by construction. Each step runs in a process of its own. A repeat times the three in shuffled rounds, and compares ``same`` and
``slower`` with A. The claim is that ``same`` ties with A, and that ``slower`` is found to be slower.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats

from attn_zoo.bench.compare import FEWEST_ROUNDS, ROUNDS, Comparison, compare
from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.probes import Probe
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.tables import joined, notes
from attn_zoo.bench.timed import subjects_of
from attn_zoo.bench.timing import quartiles
from attn_zoo.cli.measure import run_experiment
from attn_zoo.count.rigs import Subject, build_layer
from attn_zoo.rows import only_row, option
from attn_zoo.terminal import table

PASSES = 10
WANTED = {"same": ("the same layer twice", "tie"), "slower": (f"{PASSES + 1} passes against {PASSES}", "A faster")}
"""Description and right verdict of each comparison, by name."""

CLAIMED = 0.95
"""Minimum share of right verdicts, below which the test fails."""


def aa_report(found: Measurement, format: str = "github") -> str:
    """Return the report of the A/A test as text: how often each comparison of two timings had the right verdict."""
    head = ["B against A", "right verdict", "found", "share (95 % interval)", "median B / A", "middle 95 % of B / A"]
    rows = [_row(found, name) for name in WANTED if _comparisons(found, name)]
    return joined(found, table(head, rows, format, left=(0, 1)), _notes(found))


def all_right(found: Measurement) -> bool:
    """Return True if both comparisons (the same layer again, and a layer with more work) had the right verdict at least as often
    as the test requires."""
    compared = {name: len(_comparisons(found, name)) for name in WANTED}
    return all(compared.values()) and all(right(found, name) >= CLAIMED * count for name, count in compared.items())


def right(found: Measurement, name: str) -> int:
    """Return the number of repeats in which a comparison had the right verdict.

    Args:
        name: name of the comparison, a key of ``WANTED``.
    """
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


def _notes(found: Measurement) -> str:
    grid, protocol = found.grid, found.protocol
    assert protocol is not None
    steps = [quartiles(f.all("seconds"))[1] for cell, f in found.cells.items() if cell.label == "first" and f.values]
    took = f"; median {1e3 * statistics.median(steps):.2f} ms" if steps else ""
    what = (
        f"A is {PASSES} forward passes through a layer of {grid['layer']}: length {grid['length']}, width {grid['dim']}, "
        f"{grid['heads']} heads, fp32{took}"
    )
    return notes(found, what, "aa_test", rounds=f"{grid['repeats']} repeats of {protocol.rounds} rounds")


STEPS: Mapping[str, int] = {"first": PASSES, "same": PASSES, "slower": PASSES + 1}
"""Number of forward passes in a step, by label of the cell."""


class Passes:
    """Attention layer that is timed on one random sequence, in a worker process."""

    def __init__(self, subject: Subject, dim: int, heads: int, length: int) -> None:
        torch.manual_seed(0)
        self._layer = build_layer(subject, dim, heads, length).eval()
        self._tokens = torch.randn(1, length, dim)

    def fastest(self, passes: int, steps: int, warmup: int) -> float:
        """Return the seconds of the fastest step.

        Args:
            passes: forward passes in a step.
            steps: number of timed steps.
            warmup: number of untimed steps before them.
        """
        taken = []
        for _ in range(warmup + steps):
            started = time.perf_counter()
            with torch.inference_mode():
                for _ in range(passes):
                    self._layer(self._tokens)
            taken.append(time.perf_counter() - started)
        return min(taken[warmup:])


@dataclass
class AATest(Grid):
    """A/A test of timings: the same layer must tie, and a tenth more work must be slower, in 95 of 100 repeats.

    If the test fails, the program ends with status 1.
    """

    layer: str = option("softmax", "row of the layer")
    length: int = option(64, "length")
    dim: int = option(64, "width of the layer")
    heads: int = option(4, "heads")
    repeats: int = option(100, "comparisons of each kind")
    rounds: int = option(ROUNDS, "interleaved rounds of a comparison")
    steps: int = option(3, "timed steps of a visit, of which the fastest counts")
    fresh_every: int = option(10, "repeats after which the processes are started anew")
    smallest_difference: float = option(0.02, "share beyond which a difference is no tie")
    time_limit: float = option(60.0, "seconds that one visit may take")
    seed: int = option(1, "seed of the order within the rounds")

    fewest_rounds: ClassVar[int] = FEWEST_ROUNDS
    whole_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smallest_difference < 1 / PASSES:
            raise ValueError(f"smallest_difference must be at least 0 and below {1 / PASSES:g}; got {self.smallest_difference}")
        with torch.device("meta"):
            build_layer(self.subject, self.dim, self.heads, self.length)

    @cached_property
    def subject(self) -> Subject:
        """Layer that is timed: a mechanism with its options and implementation."""
        only_row("layer", self.layer)
        return next(iter(subjects_of([self.layer]).values()))

    @cached_property
    def protocol(self) -> TimingProtocol:
        """Timing protocol. Its ``most_repeats`` is the number of timed steps that follow each other in one process before the next
        process takes its turn.

        The fastest step counts, because other load on the machine only adds time.
        """
        return TimingProtocol.on("cpu", rounds=self.rounds, seed=self.seed, most_repeats=self.steps)

    def groups(self) -> list[list[Cell]]:
        cell = Cell("", "forward", self.length, subject=self.subject)
        return [[replace(cell, label=name, group=str(repeat)) for name in STEPS] for repeat in range(self.repeats)]

    def process(self, cell: Cell) -> str:
        return f"{cell.label} {int(cell.group) // self.fresh_every}"

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        return Passes, self.subject, self.dim, self.heads, self.length

    def each(self, cell: Cell) -> Sequence[Probe]:
        given = (STEPS[cell.label], self.steps, self.protocol.warmup)
        return (Probe("seconds", lambda ask, found: {"seconds": ask("fastest", *given)}),)

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Return the timed cases in the order in which round ``turn`` measures them. The order is shuffled, with another seed in
        each repeat of the test."""
        return replace(self.protocol, seed=1000 * self.seed + int(cells[0].group)).ordered(cells, turn)

    def summarise(self, cells: Sequence[Cell], found: Measurement) -> None:
        """Replace the seconds of each timed case by their quartiles, and add the results of its comparison with the first case,
        which is A."""
        taken = {cell.label: found.of(cell).all("seconds") for cell in cells}
        for cell in cells:
            values = found.of(cell).values = {"seconds": list(quartiles(taken[cell.label]))}
            if cell.label in WANTED:
                compared = compare(taken["first"], taken[cell.label], smallest=self.smallest_difference)
                values |= {name: [getattr(compared, name)] for name in ("quotient", "low", "high")}

    succeeded = staticmethod(all_right)
    report = staticmethod(aa_report)


if __name__ == "__main__":
    raise SystemExit(run_experiment("aa_test", AATest, sys.argv[1:]))

"""A/A test of this machine's timings: ``python benchmarks/aa_test.py`` compares a layer with itself, and with a tenth more work.

Step A is ``PASSES`` passes through one layer. Step ``same`` is A again. Step ``slower`` has one pass more, so it costs a tenth more
by construction. Each step runs in a process of its own. A repeat times the three in shuffled rounds, and compares ``same`` and
``slower`` with A. The claim is that ``same`` ties with A, and that ``slower`` is found to be slower. If this is not so in 95 of 100
repeats, the program ends with status 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from attn_zoo.bench.compare import ROUNDS, Comparison, compare, quartiles
from attn_zoo.bench.experiment import attention_cells
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.tables import joined, notes
from attn_zoo.bench.workers import Worker, WorkerError
from attn_zoo.contract import UnknownNameError
from attn_zoo.count.subjects import Subject, build_module
from attn_zoo.records import describe_environment
from attn_zoo.terminal import show, table

PASSES = 10
WANTED = {"same": ("the same layer twice", "tie"), "slower": (f"{PASSES + 1} passes against {PASSES}", "A faster")}
"""Description and right verdict of each comparison, by name."""

STEPS: Mapping[str, int] = {"first": PASSES, "same": PASSES, "slower": PASSES + 1}
"""Number of forward passes in a step, by label of the cell."""

CLAIMED = 0.95
"""Minimum share of right verdicts, below which the test fails."""

SIZES = {"length": 64, "dim": 64, "heads": 4}
FRESH_EVERY = 10
"""Number of repeats after which the processes are started anew."""
TIMED_STEPS = 3
"""Number of timed steps of a visit, of which the fastest counts, because other load on the machine only adds time."""
SMALLEST = 0.02
"""Smallest difference that is not a tie, as a share."""


class Passes:
    """Attention layer that is timed on one random sequence, in a worker process."""

    def __init__(self, subject: Subject, dim: int, heads: int, length: int) -> None:
        torch.manual_seed(0)
        self._layer = build_module("layer", subject, dim, heads, length).eval()
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


def repeat_rounds(found: Measurement, repeat: int, workers: Mapping[str, Worker]) -> None:
    """Time the three steps in rounds, and add three cells: with the quartiles of their seconds, and with the results of the
    comparison with A."""
    assert found.protocol is not None
    seconds: dict[str, list[float]] = {name: [] for name in STEPS}
    protocol = TimingProtocol(seed=1000 + repeat)
    for turn in range(found.protocol.rounds):
        for name in protocol.ordered(list(STEPS), turn):
            seconds[name].append(workers[name].ask("fastest", STEPS[name], TIMED_STEPS, protocol.warmup, limit=60.0))
    for name, taken in seconds.items():
        cell = found.of(Cell(name, "forward", SIZES["length"], group=str(repeat)))
        cell.values["seconds"] = list(quartiles(taken))
        if name in WANTED:
            compared = compare(seconds["first"], taken, smallest=SMALLEST)
            cell.values.update({key: [getattr(compared, key)] for key in ("quotient", "low", "high")})


def report(found: Measurement, format: str = "github") -> str:
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
    assert found.protocol is not None
    bounds = [[cell.all(key)[0] for key in ("quotient", "low", "high")] for cell in found.cells if cell.label == name]
    rounds, smallest = found.protocol.rounds, found.settings["smallest_difference"]
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
    settings, protocol = found.settings, found.protocol
    assert protocol is not None
    steps = [quartiles(cell.all("seconds"))[1] for cell in found.cells if cell.label == "first"]
    took = f"; median {1e3 * statistics.median(steps):.2f} ms" if steps else ""
    what = (
        f"A is {PASSES} forward passes through a layer of {settings['layer']}: length {settings['length']}, width "
        f"{settings['dim']}, {settings['heads']} heads, fp32{took}"
    )
    return notes(found, what, "aa_test", rounds=f"{settings['repeats']} repeats of {protocol.rounds} rounds")


def main(words: Sequence[str]) -> int:
    """Run the test and print its report. Return the exit status: 0 if the claim holds, 1 if not, 2 for bad input."""
    parser = argparse.ArgumentParser("aa_test.py", description="Compare a layer with itself, and with a tenth more work.")
    parser.add_argument("--layer", default="softmax", metavar="ROW", help="mechanism of the layer (default: softmax)")
    parser.add_argument("--repeats", type=int, default=100, metavar="N", help="comparisons of each kind (default: 100)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds of a comparison (default: {ROUNDS})")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the result to this JSON file")
    parsed = parser.parse_args(words)
    protocol = TimingProtocol.on("cpu", rounds=parsed.rounds, most_repeats=TIMED_STEPS)
    settings = {**SIZES, "layer": parsed.layer, "repeats": parsed.repeats, "smallest_difference": SMALLEST}
    found = Measurement("aa_test", settings, protocol, describe_environment("cpu"))
    try:
        (layer,) = attention_cells([parsed.layer])
        for start in range(0, parsed.repeats, FRESH_EVERY):
            with ExitStack() as stack:
                made = (Passes, layer.subject, SIZES["dim"], SIZES["heads"], SIZES["length"])
                workers = {name: Worker(*made) for name in STEPS}
                for worker in workers.values():
                    stack.callback(worker.stop)
                for repeat in range(start, min(start + FRESH_EVERY, parsed.repeats)):
                    repeat_rounds(found, repeat, workers)
    except (ValueError, UnknownNameError, WorkerError) as error:
        print(f"aa_test.py: {error}", file=sys.stderr)
        return 2
    found.complete = True
    if parsed.output is not None:
        found.write(parsed.output)
    show(report(found, "terminal" if sys.stdout.isatty() else "github"))
    return 0 if all_right(found) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

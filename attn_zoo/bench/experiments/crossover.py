"""Experiment ``crossover``: the length from which each mechanism costs less than softmax attention, with an interval.

At each length, the cost of the mechanism is divided by that of softmax in every round. The median of these quotients has a
confidence interval (see ``attn_zoo.bench.compare``). Between the measured lengths, the median is interpolated linearly on
logarithmic axes. The crossover is the length at which the median falls below 1 for the last time. The bounds of the crossover are
found in the same way from the bounds of the interval. Memory is measured once, so its crossover has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

from attn_zoo.bench.compare import FEWEST_ROUNDS, compare, fit_exponent
from attn_zoo.bench.experiment import KINDS, LayerTiming, attention_cells, softmax_cells
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import failures, joined, notes
from attn_zoo.plotting.theme import check_plot
from attn_zoo.rows import option
from attn_zoo.terminal import table

QUANTITIES: Mapping[str, str] = {"time": "seconds", "memory": "peak_bytes"}
"""Costs that have a crossover, each with the name of its quantity in a measurement."""

BASELINES: Mapping[str, str] = {"materialised": "materialised softmax", "sdpa": "SDPA"}
"""Names of the baselines in reports, by their roles in a measurement."""

FITTED_LENGTHS = 4
"""The exponent of cost against length is fitted to this number of the longest lengths. At shorter lengths, linear terms hide the
growth."""


@dataclass
class CrossoverExperiment(LayerTiming):
    """Length from which each mechanism costs less time or memory than softmax, with intervals. Softmax is measured in two ways:
    with all weights in memory (materialised), and fused.

    If the time limit is too short, some measurements are left out and marked: the shortest lengths if the command contains
    ``lengths=``, otherwise the slowest measurements. To measure them later, run the same command with the same output again.
    """

    attention: list[str] = option(
        ["linformer", "performer", "longformer", "reformer"], "mechanisms to compare with softmax, which is always measured"
    )
    # Null until the device is known.
    lengths: list[int] | None = option(None, "sequence lengths in tokens (cpu: 256 to 16384, cuda: 256 to 65536)")  # type: ignore[assignment]  # None: by level or device
    precision: str | None = option(None, "fp32, bf16 or fp16 (cuda: bf16, cpu: fp32)")  # type: ignore[assignment]  # None: by level or device
    rounds: int = option(21, "largest number of rounds, each of which times everything once; if time is short, at least 6")
    repeat_seconds: float = option(0.05, "seconds for which a step is repeated in one timing")
    seconds: float | None = option(540.0, "time limit of the whole measurement, in seconds")
    time_limit: float = option(60.0, "time limit of one request to a worker process, in seconds")
    plot: str | None = option(None, "also draw the crossovers into this .svg or .png file")

    device_defaults: ClassVar = {
        "cpu": {"lengths": [2**power for power in range(8, 15)], "precision": "fp32"},
        "cuda": {"lengths": [2**power for power in range(8, 17)], "precision": "bf16"},
    }
    fewest_rounds: ClassVar[int] = FEWEST_ROUNDS

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.lengths or ()) < 2:
            raise ValueError(f"lengths must be a list of at least two different integers; got {self.lengths}")
        if self.plot is not None:
            check_plot(Path(self.plot))

    def groups(self) -> list[list[Cell]]:
        mechanisms = [cell for cell in attention_cells(self.attention) if cell.subject and cell.subject.attention != "softmax"]
        if not mechanisms:
            raise ValueError(
                "attention= must name a mechanism other than softmax, because every mechanism is compared with softmax. Add a "
                "mechanism"
            )
        layers = [*softmax_cells(self.device), *mechanisms]
        return [[replace(each, length=n, kind=kind) for each in layers for kind in KINDS] for n in sorted(self.lengths or ())]

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        columns = [(kind, quantity) for quantity in QUANTITIES for kind in KINDS]
        head = ["attention", "costs less than", *(f"{quantity}, {KINDS[kind]}" for kind, quantity in columns)]
        rows = []
        for label, (role, words) in product(compared(found.cells), BASELINES.items()):
            lengths = [crossover(found.cells, label, role, *column) for column in columns]
            rows.append([label, words, *("not measured" if each is None else each.describe() for each in lengths)])
        settings = found.settings
        size = f"width {settings['dim']}, {settings['heads']} heads, one sequence, {settings['precision']}"
        what, failed = f"One layer with its projections: {size}", failures(found.cells, KINDS)
        return joined(found, table(head, rows, format, left=(0, 1)), notes(found, what, "crossover", before=failed))

    def draw(self, found: Measurement) -> None:
        from attn_zoo.bench.experiments.crossover_plot import plot_crossover

        if self.plot is not None:
            plot_crossover(found, Path(self.plot))


@dataclass(frozen=True, slots=True)
class Crossover:
    """Crossover: the length (``at``) from which a mechanism costs less than a baseline. ``low`` and ``high`` bound its interval.

    A length of 0 means that the mechanism costs less at all lengths that were compared. Infinity means that it does not cost
    less at the longest length.
    """

    at: float
    low: float
    high: float
    shortest: int
    longest: int
    exact: bool
    """True if the cost has no noise, as for memory. The crossover then has no interval."""

    def describe(self) -> str:
        """Return the crossover as text for a table, with rounded lengths."""
        if self.low == math.inf:
            return f"never up to {self.longest:,}"
        if self.high == 0:
            return f"from {self.shortest:,} on"
        return self._name(self.at) + ("" if self.exact else f" ({self._name(self.low)} to {self._name(self.high)})")

    def _name(self, length: float) -> str:
        if length == 0:
            return f"≤ {self.shortest:,}"
        if length == math.inf:
            return f"> {self.longest:,}"
        return f"{min(max(self.shortest, round_length(length)), self.longest):,}"


def round_length(length: float) -> int:
    """Return the length, rounded to two significant digits, or to three if the first digit is 1."""
    digits = math.floor(math.log10(length))
    step = 10 ** max(0, digits - (2 if length < 2 * 10**digits else 1))
    return round(length / step) * step


def cost(cell: Cell, quantity: str) -> float | None:
    """Return the measured cost of a step of one layer at one length, or None if it was not measured. ``quantity`` is ``time``, the
    median over rounds, or ``memory``: the memory that is allocated before the step, plus the most that the step adds to it."""
    if quantity == "memory":
        parts = [cell.one(name) for name in ("held_bytes", "peak_bytes")]
        return None if None in parts else sum(map(float, filter(None, parts)))
    seconds = cell.all("seconds")
    return statistics.median(seconds) if seconds else None


def select(cells: Iterable[Cell], label: str, kind: str) -> list[Cell]:
    """Return the cells of one layer (``label``) and one kind of step (``forward`` or ``training``), sorted by length."""
    return sorted((cell for cell in cells if (cell.label, cell.kind) == (label, kind)), key=lambda cell: cell.length)


def compared(cells: Iterable[Cell]) -> list[str]:
    """Return the labels of the mechanisms that are compared with softmax. Softmax is never among them."""
    others = [c for c in cells if c.role == "mechanism" and (c.subject is None or c.subject.attention != "softmax")]
    return list(dict.fromkeys(cell.label for cell in others))


def baseline(cells: Iterable[Cell], role: str, kind: str, quantity: str) -> list[Cell]:
    """Return the cells of softmax as a baseline (``materialised`` or ``sdpa``), one for each length. If several implementations
    were measured at a length, the one with the lowest cost is used, or the first if all failed."""
    here = [cell for cell in cells if (cell.role, cell.kind) == (role, kind)]
    costs = {cell: math.inf if (found := cost(cell, quantity)) is None else found for cell in here}
    return [min((c for c in here if c.length == n), key=costs.__getitem__) for n in sorted({cell.length for cell in here})]


def exponent(cells: Sequence[Cell], quantity: str) -> float | None:
    """Return the exponent p in cost ~ length^p, where ``quantity`` is the cost. The fit uses at most ``FITTED_LENGTHS`` lengths,
    the longest. Return None if fewer than three lengths were measured."""
    known = [(cell.length, found) for cell in cells if (found := cost(cell, quantity)) is not None][-FITTED_LENGTHS:]
    return fit_exponent(*zip(*known, strict=True)) if len(known) >= 3 else None


def crossover(cells: Iterable[Cell], label: str, role: str, kind: str, quantity: str) -> Crossover | None:
    """Return the crossover of a mechanism (``label``) with a baseline (``role``): the length from which the mechanism costs less.
    Return None if fewer than two lengths can be compared."""
    against = {cell.length: cell for cell in baseline(cells, role, kind, quantity)}
    both = [(cell, against[cell.length]) for cell in select(cells, label, kind) if cell.length in against]
    logs = {ours.length: found for ours, theirs in both if (found := _log_quotient(ours, theirs, quantity)) is not None}
    if len(logs) < 2:
        return None
    lengths = list(logs)
    at, low, high = (last_fall(lengths, values) for values in zip(*logs.values(), strict=True))
    return Crossover(at, low, high, lengths[0], lengths[-1], exact=quantity == "memory")


def last_fall(lengths: Sequence[int], logs: Sequence[float]) -> float:
    """Return the length at which a curve falls below 0 for the last time. ``logs`` are the values of the curve at ``lengths``.
    Return 0 if all values are below 0, and infinity if the last value is not."""
    above = [at for at, log in enumerate(logs) if log >= 0]
    if not above:
        return 0.0
    at = above[-1]
    if at == len(logs) - 1:
        return math.inf
    if math.isinf(logs[at]) or math.isinf(logs[at + 1]):
        return float(lengths[at + 1])
    share = logs[at] / (logs[at] - logs[at + 1])
    return math.exp(math.log(lengths[at]) + share * math.log(lengths[at + 1] / lengths[at]))


def _log_quotient(ours: Cell, theirs: Cell, quantity: str) -> tuple[float, float, float] | None:
    """Return the logarithm of (cost of the mechanism / cost of the baseline) at one length, with the bounds of its interval. It is
    infinity if only the mechanism ran out of memory, and minus infinity if only the baseline did. Return None if the costs cannot
    be compared."""
    costs, lost = [cost(cell, quantity) for cell in (ours, theirs)], [_ran_out(cell, quantity) for cell in (ours, theirs)]
    if lost[0] and costs[1] is not None:
        return (math.inf,) * 3
    if lost[1] and costs[0] is not None:
        return (-math.inf,) * 3
    if costs[0] is None or costs[1] is None:
        return None
    if quantity == "memory":
        return (math.log(costs[0] / costs[1]),) * 3
    rounds = [cell.all("seconds") for cell in (theirs, ours)]
    if min(map(len, rounds)) < FEWEST_ROUNDS:
        return None
    found = compare(*rounds)
    return math.log(found.quotient), math.log(found.low), math.log(found.high)


def _ran_out(cell: Cell, quantity: str) -> bool:
    return cell.failures.get(QUANTITIES[quantity], cell.failures.get("seconds", "")).startswith("OOM")

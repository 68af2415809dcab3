"""Crossover: the length from which a mechanism costs less than softmax attention, computed from measurements, with an interval.

At each length, the cost of the mechanism is divided by that of softmax in every round. The median of these quotients has a
confidence interval (see ``attn_zoo.bench.compare``). Between the measured lengths, the median is interpolated linearly on
logarithmic axes. The crossover is the length at which the median falls below 1 for the last time. The bounds of the crossover are
found in the same way from the bounds of the interval. Memory is measured once, so its crossover has no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.bench.compare import FEWEST_ROUNDS, compare
from attn_zoo.bench.measurement import Figures
from attn_zoo.bench.timing import fit_exponent

QUANTITIES: Mapping[str, str] = {"time": "seconds", "memory": "peak_bytes"}
"""Costs that have a crossover, each with the name of its quantity in a measurement."""

BASELINES: Mapping[str, str] = {"materialised": "materialised softmax", "sdpa": "SDPA"}
"""Names of the baselines in reports, by their roles in a measurement."""

FITTED_LENGTHS = 4
"""The exponent of cost against length is fitted to this number of the longest lengths. At shorter lengths, linear terms hide the
growth."""


@dataclass(frozen=True, slots=True)
class Quotient:
    """Logarithm of (cost of the mechanism / cost of the baseline) at one length, with its interval. The logarithm is infinity if
    the mechanism ran out of memory, and minus infinity if the baseline did."""

    length: int
    middle: float
    low: float
    high: float


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


def value(point: Figures, quantity: str) -> float | None:
    """Return the measured cost of a step of one layer at one length (``point``), or None if it was not measured. ``quantity`` is
    ``time``, the median over rounds, or ``memory``: the memory that is allocated before the step, plus the most that the
    step adds to it."""
    if quantity == "memory":
        held = [point.one(name) for name in ("held_bytes", "peak_bytes")]
        return None if None in held else sum(map(float, filter(None, held)))
    found = point.all(QUANTITIES[quantity])
    return float(statistics.median(found)) if found else None


def select(points: Sequence[Figures], label: str, kind: str) -> list[Figures]:
    """Return the measured ``points`` of one layer (``label``) and one kind of step (``forward`` or ``training``), sorted by
    length."""
    return sorted((p for p in points if (p.cell.label, p.cell.kind) == (label, kind)), key=lambda p: p.cell.length)


def labels(points: Sequence[Figures], role: str) -> list[str]:
    """Return the labels of the layers with one role in the comparison. ``role`` is ``mechanism``, or a baseline:
    ``materialised`` or ``sdpa``."""
    return list(dict.fromkeys(p.cell.label for p in points if p.cell.role == role))


def compared(points: Sequence[Figures]) -> list[str]:
    """Return the labels of the mechanisms that are compared with softmax. Softmax is never among them."""
    others = [p for p in points if p.cell.subject is None or p.cell.subject.attention != "softmax"]
    return labels(others, "mechanism")


def baseline(points: Sequence[Figures], role: str, kind: str, quantity: str) -> list[Figures]:
    """Return the measured values of softmax as a baseline, one object for each length. If several implementations were measured
    at a length, the one with the lowest cost is used, or the first if all failed."""
    here = [p for p in points if (p.cell.role, p.cell.kind) == (role, kind)]

    def cost(point: Figures) -> float:
        found = value(point, quantity)
        return math.inf if found is None else found

    return [min((p for p in here if p.cell.length == n), key=cost) for n in sorted({p.cell.length for p in here})]


def exponent(points: Sequence[Figures], quantity: str) -> float | None:
    """Return the exponent p in cost ~ length^p, where ``quantity`` is the cost. The fit uses at most ``FITTED_LENGTHS`` lengths,
    the longest. Return None if fewer than three lengths were measured."""
    known = [(p.cell.length, found) for p in points if (found := value(p, quantity)) is not None][-FITTED_LENGTHS:]
    return fit_exponent(*zip(*known, strict=True)) if len(known) >= 3 else None


def crossover(points: Sequence[Figures], label: str, role: str, kind: str, quantity: str) -> Crossover | None:
    """Return the crossover of a mechanism (``label``) with a baseline (``role``): the length from which the mechanism costs less.
    Return None if fewer than two lengths can be compared."""
    against = {p.cell.length: p for p in baseline(points, role, kind, quantity)}
    pairs = [(p, against[p.cell.length]) for p in select(points, label, kind) if p.cell.length in against]
    found = [q for ours, theirs in pairs if (q := _quotient(ours, theirs, quantity)) is not None]
    if len(found) < 2:
        return None
    lengths = [q.length for q in found]
    at, low, high = (last_fall(lengths, [getattr(q, name) for q in found]) for name in ("middle", "low", "high"))
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


def _quotient(ours: Figures, theirs: Figures, quantity: str) -> Quotient | None:
    """Return the quotient at a length if both costs were measured, or if only one layer ran out of memory, else None."""
    length, name = ours.cell.length, QUANTITIES[quantity]
    lost = [_ran_out(point, quantity) for point in (ours, theirs)]
    known = [value(point, quantity) for point in (ours, theirs)]
    for at, sign in ((0, math.inf), (1, -math.inf)):
        if lost[at] and known[1 - at] is not None:
            return Quotient(length, sign, sign, sign)
    if known[0] is None or known[1] is None:
        return None
    if quantity == "memory":
        log = math.log(known[0] / known[1])
        return Quotient(length, log, log, log)
    if min(len(ours.all(name)), len(theirs.all(name))) < FEWEST_ROUNDS:
        return None
    found = compare(theirs.all(name), ours.all(name))
    return Quotient(length, math.log(found.quotient), math.log(found.low), math.log(found.high))


def _ran_out(point: Figures, quantity: str) -> bool:
    return point.failures.get(QUANTITIES[quantity], point.failures.get("seconds", "")).startswith("OOM")

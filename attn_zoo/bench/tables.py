"""Parts of reports, such as tables and measured values with their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attn_zoo.bench.compare import quartiles, unstable
from attn_zoo.bench.measurement import NO_TIME, Cell, Measurement

MEASUREMENTS_PAGE = "docs/reference/measurements.md"
"""Page that explains the tables of measurements and analyses."""

QUANTITIES: Mapping[str, str] = {
    "seconds": "time",
    "peak_bytes": "memory",
    "largest_batch": "largest batch",
}
"""Names of quantities in lists of failures."""

ALLOCATION_FAILED = ("std::bad_alloc", "DefaultCPUAllocator")
"""Parts of messages of allocators, which tell a reader no more than ``OOM``."""


def joined(found: Measurement, *parts: str) -> str:
    """Return the parts of a report as one text, without empty parts. If the measurement was interrupted, the text begins with a
    sentence that says so."""
    partial = "" if found.complete else "**Not complete: the measurement was cut short.**"
    return "\n\n".join(part for part in (partial, *parts) if part)


def spread(values: Sequence[float], decimals: int, *, before: str = "", after: str = " unstable") -> str:
    """Return the median of the values and half their interquartile range as text, such as ``1.20 ± 0.05``. If the values are
    unstable, put the text between ``before`` and ``after``."""
    low, middle, high = found = quartiles(values)
    before, after = (before, after) if unstable(found) else ("", "")
    return f"{before}{middle:,.{decimals}f} ± {(high - low) / 2:,.{decimals}f}{after}"


def figure(values: Sequence[float]) -> str:
    """Return the median of the values and half their interquartile range as text, with three or more significant digits. The text
    begins with ~ if the values are unstable."""
    return spread(values, decimals(quartiles(values)[1]), before="~", after="")


def seconds_or_reason(cell: Cell, factor: float = 1.0) -> str:
    """Return the measured seconds of a step, multiplied by ``factor``, as text: their median and half their interquartile range.
    If there are none, return the reason for the failure in a word, such as ``OOM``."""
    values = [factor * value for value in cell.all("seconds")]
    return figure(values) if values else reason(cell, "seconds")


def decimals(value: float) -> int:
    """Return the number of decimals that gives a value three significant digits. It is 0 for values from 100 on."""
    return max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0


def reason(cell: Cell, *quantities: str) -> str:
    """Return the reason why a measurement failed, in a word such as ``OOM``. If several of the ``quantities`` failed, return the
    reason of the first. If none failed, return ``-``."""
    reasons = [cell.failures[name] for name in quantities if name in cell.failures]
    return reasons[0].partition(":")[0] if reasons else "-"


def failures(cells: Iterable[Cell], kinds: Mapping[str, str]) -> str:
    """Return the failed measurements as text. Each line has a layer, a reason, and the quantities, kinds of step and lengths that
    failed for this reason."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in cells:
        for quantity, why in cell.failures.items():
            why = NO_TIME if why.startswith(NO_TIME) else "OOM" if any(words in why for words in ALLOCATION_FAILED) else why
            batch = f", batch {cell.batch}" if cell.batch > 1 else ""
            what = f"{QUANTITIES.get(quantity, quantity)}, {kinds.get(cell.kind, cell.kind)}{batch}"
            lines.setdefault((cell.label, why), {}).setdefault(what, []).append(f"{cell.length:,}")

    def said(whats: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{what} at {', '.join(lengths)}" for what, lengths in whats.items())

    return "\n".join(f"- {label}: {why} ({said(whats)})" for (label, why), whats in lines.items())


def machine(found: Measurement) -> str:
    """Return the machine of a measurement as text: the GPU, or the CPU with its number of threads, and the version of PyTorch."""
    there = found.environment
    where = there["gpu"] or f"{there['cpu']}, {there['threads']} thread{'s' * (there['threads'] != 1)}"
    return f"{where}, torch {there['torch']}"


def notes(found: Measurement, what: str, section: str, *, before: str = "", rounds: str = "") -> str:
    """Return the notes at the end of a report: ``before``, what was measured, and the machine, with the page that explains the
    columns.

    Args:
        what: description of what was measured, without a full stop.
        section: anchor of the report's section on ``MEASUREMENTS_PAGE``.
        before: notes that stand first, one on a line, such as failures.
        rounds: number of rounds as text; empty for the rounds that were timed.
    """
    where = f"{machine(found)}, {rounds or _rounds(found)}"
    return "\n".join(line for line in (before, f"- {what}.", f"- {where}. {explained(section)}") if line)


def _rounds(found: Measurement) -> str:
    """Return the number of rounds in which cases were timed as text. It is a range if a time limit, or the length of a step, left
    out rounds of some cases."""
    counts = sorted({len(taken) for cell in found.cells if (taken := cell.all("seconds"))})
    told = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
    return f"{told} round{'s' * (told != '1')}"


def explained(section: str) -> str:
    """Return a sentence that names the page and section on which the columns of a report and its method are explained."""
    return f"Columns and method: {MEASUREMENTS_PAGE}#{section}."


def decimal(count: float) -> str:
    """Return a number as text with three digits and a decimal prefix: k, M, G, T or P."""
    return _scaled(count, 1000, ("", " k", " M", " G", " T", " P"))


def binary(count: float) -> str:
    """Return a number of bytes as text with three digits and a unit, from B and KiB to PiB."""
    return _scaled(count, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    value, at = float(count), 0
    while value >= 999.5 and at < len(units) - 1:
        value, at = value / base, at + 1
    return f"{value:#.3g}".rstrip(".") + units[at] if at else f"{count}{units[0]}"

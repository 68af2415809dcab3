"""Cost columns of the heat map, and costs as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from attn_zoo.leaderboard.compare import comparable, cost_of
from attn_zoo.leaderboard.table import Table, shown_rows

LENGTH = 4096
"""Number of tokens at which costs are shown."""


@dataclass(frozen=True, slots=True)
class CostColumn:
    """Column of the heat map that shows one cost, such as FLOPs, per mechanism."""

    cost: str
    """``FLOPs``, ``time`` or ``memory``."""
    head: str
    """Heading of the column: the cost and, if it was counted at one length, the length in tokens."""
    said: str
    """Description of the quantity and of the sizes at which it was counted or measured."""
    values: Mapping[str, float]
    """Cost by mechanism, as far as it is known, as a multiple of softmax's cost."""

    def written(self, attention: str) -> str:
        """Return the cost of a mechanism as text. If it is not known, the text is empty."""
        ratio = self.values.get(attention)
        if not ratio:
            return "" if ratio is None else "0"
        return f"{ratio:.3f}×" if ratio < 0.01 else f"{ratio:.2g}×" if ratio < 10 else f"{ratio:,.0f}×"


def recorded_columns(tables: Sequence[Table]) -> list[CostColumn]:
    """Return a list with one column from the records: FLOPs of each mechanism alone at 4,096 tokens, as a multiple of softmax's.

    If a mechanism was run in both directions, the FLOPs are those of its bidirectional form. If they differ between tasks, the
    largest multiple is shown. If the FLOPs of softmax are unknown, the list is empty.
    """
    alone: dict[str, dict[bool, set[float]]] = defaultdict(lambda: defaultdict(set))
    for table in tables:
        rows = shown_rows(table)
        whole = rows["softmax"].mechanism_flops_4096 if "softmax" in rows else None
        for name, row in rows.items():
            count = row.mechanism_flops_4096
            if whole and (count or (count == 0 and row.control)):  # 0 means unknown, except for controls
                alone[name][bool(table.task.get("causal"))].add(count / whole)
    if not alone:
        return []
    heads = " or ".join(map(str, sorted({table.model["dim"] // table.model["heads"] for table in tables})))
    said = f"FLOPs: forward pass of the mechanism alone at {LENGTH:,} tokens, heads of width {heads}, relative to softmax"
    if any(len(of) > 1 and of[False] != of[True] for of in alone.values()):
        said += "; for mechanisms run in both directions, of the bidirectional form"
    shown = {name: of.get(False) or of[True] for name, of in alone.items()}
    said += "; if tasks differ, the largest" if any(len(shares) > 1 for shares in shown.values()) else ""
    return [CostColumn("FLOPs", f"FLOPs at {LENGTH:,}", said, {name: max(shares) for name, shares in shown.items()})]


def measured_columns(tables: Sequence[Table]) -> list[CostColumn]:
    """Return a column of training time and one of peak memory, as multiples of softmax's.

    Each number is a geometric mean, over tables, of the mechanism's cost divided by softmax's. A table counts only if the mechanism
    and softmax were measured with the same implementation on the same machine. For training time, tables with a time limit do not
    count. A cost for which no table counts has no column.
    """
    made = []
    for cost, words in (("time", "training time"), ("memory", "peak memory of a training step")):
        ratios: dict[str, list[float]] = defaultdict(list)
        for table in tables:
            rows = {} if cost == "time" and table.budget.get("seconds") else shown_rows(table)  # every row spends the time
            softmax = rows.get("softmax")
            for name, row in rows.items():
                mine, whole = cost_of(row, cost), cost_of(softmax, cost) if softmax else None
                if softmax and whole and mine and comparable(row, softmax, cost):
                    ratios[name].append(mine / whole)
        if ratios:
            counts = sorted({len(found) for found in ratios.values()})
            tasks = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            said = f"{cost.capitalize()}: {words} relative to softmax, geometric mean over {tasks} of the tasks here"
            made.append(CostColumn(cost, cost, said, {name: geometric_mean(found) for name, found in ratios.items()}))
    return made


def byte_count(count: int) -> str:
    """Return a number of bytes as text with three digits, such as ``64 KiB``."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"

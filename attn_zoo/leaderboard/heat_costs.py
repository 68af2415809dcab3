"""FLOPs of mechanisms beside the heat map, and numbers of bytes as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.leaderboard.table import Table, shown_rows

LENGTH = 4096
"""Number of tokens at which costs are shown."""


@dataclass(frozen=True, slots=True)
class FlopsColumn:
    """Column of the heat map with the FLOPs of each mechanism alone, as a multiple of softmax's."""

    said: str
    """Description of the quantity and of the sizes at which it was counted."""
    values: Mapping[str, float]
    """FLOPs by mechanism, as far as they are known, as a multiple of softmax's."""
    head: str = f"FLOPs at {LENGTH:,}"
    """Heading of the column."""

    def written(self, attention: str) -> str:
        """Return the FLOPs of a mechanism as text. If they are not known, the text is empty."""
        ratio = self.values.get(attention)
        if not ratio:
            return "" if ratio is None else "0"
        return f"{ratio:.3f}×" if ratio < 0.01 else f"{ratio:.2g}×" if ratio < 10 else f"{ratio:,.0f}×"


def flops_column(tables: Sequence[Table]) -> FlopsColumn | None:
    """Return the column of FLOPs at 4,096 tokens, or None if the FLOPs of softmax are unknown.

    If a mechanism was run in both directions, the FLOPs are those of its bidirectional form. If they differ between tasks, the
    largest multiple is shown.
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
        return None
    heads = " or ".join(map(str, sorted({table.model["dim"] // table.model["heads"] for table in tables})))
    said = f"FLOPs: forward pass of the mechanism alone at {LENGTH:,} tokens, heads of width {heads}, relative to softmax"
    if any(len(of) > 1 and of[False] != of[True] for of in alone.values()):
        said += "; for mechanisms run in both directions, of the bidirectional form"
    shown = {name: of.get(False) or of[True] for name, of in alone.items()}
    said += "; if tasks differ, the largest" if any(len(shares) > 1 for shares in shown.values()) else ""
    return FlopsColumn(said, {name: max(shares) for name, shares in shown.items()})


def byte_count(count: int) -> str:
    """Return a number of bytes as text with three digits, such as ``64 KiB``."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"

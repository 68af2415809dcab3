"""Matrix of verdicts of the page on choosing: one sign for each mechanism on each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.heatmap import NOT_APPLICABLE, NOT_RUN, Cell, HeatMap, gap, heat_map
from attn_zoo.leaderboard.table import Table, Verdict, numbered
from attn_zoo.leaderboard.text import Grid, tabulated
from attn_zoo.recommend.verdicts import Ability, abilities, judge

SIGNS: dict[Verdict, str] = {
    Verdict.BEST: "★",
    Verdict.TIED: "=",
    Verdict.WORSE: "−",
    Verdict.NO_BETTER: "✗",
    Verdict.NOT_TRAINED: "∅",
    Verdict.NOT_APPLICABLE: NOT_APPLICABLE,
    Verdict.NOT_RUN: NOT_RUN,
}
"""Sign of each verdict."""
NO_VERDICT = "?"
"""Sign of a row with a failed seed or too few seeds."""
UNCERTAIN = "~"
"""Sign of a row that is not distinguishable from the best, but whose difference from the best may be more than ``WIDE``."""
WIDE = 0.10
"""Largest difference from the best, within the 95 % interval, with which a row has the sign ``=``; 0.10 is ten points."""


def verdict_matrix(tables: Sequence[Table]) -> str:
    """Return the matrix of verdicts as Markdown: the meaning of its signs, then one table per direction (bidirectional, causal).

    Each table has one row per mechanism and one column per task. Softmax comes first. The others are sorted by the share of their
    tasks on which they match softmax, the largest share first.
    """
    found, known = heat_map(tables), {id(ability.table): ability for ability in abilities(tables)}
    directions = dict.fromkeys(column.direction for column in found.columns)
    grids = [_grid(found, known, direction) for direction in directions]
    words = {sign: str(verdict) for verdict, sign in SIGNS.items()}
    words[SIGNS[Verdict.NOT_TRAINED]] = "not trained, because the loss did not fall with any seed"
    words[UNCERTAIN] = f"{Verdict.TIED}, but the 95 % interval of the difference goes beyond {100 * WIDE:.0f} points"
    words[NO_VERDICT] = "no verdict, because a seed failed or is missing"
    shown = {sign for grid in grids for line in grid.body for sign in line}
    said = "; ".join(f"{sign} {meaning}" for sign, meaning in words.items() if sign in shown)
    return "\n\n".join([f"The signs mean: {said}.", *(tabulated(grid, "github") for grid in grids)])


def _grid(found: HeatMap, known: Mapping[int, Ability], direction: str) -> Grid:
    columns = [(at, column.table) for at, column in enumerate(found.columns) if column.direction == direction]
    heads = numbered([f"`{table.task['name']}`" for _, table in columns])
    lines = []
    for line in found.lines:
        cells = [line.cells[at] for at, _ in columns]
        if line.control or not any(cell.row for cell in cells):
            continue
        judged = [judge(known[id(table)], line.attention) for _, table in columns]
        matched, ran = sum(one.matches for one in judged), sum(one.verdict != "not run" for one in judged)
        first = line.attention == BASELINE
        text = [f"`{line.attention}`", "-" if first else f"{matched} of {ran}", *map(_sign, cells)]
        lines.append(((not first, -matched / ran, -matched), text))
    lines.sort(key=itemgetter(0))
    return Grid(f"{direction.capitalize()} tasks", ["mechanism", "matches softmax on", *heads], [text for _, text in lines])


def _sign(cell: Cell) -> str:
    if cell.row is None or cell.row.verdict is None:
        return (gap(cell) if gap(cell) in (NOT_RUN, NOT_APPLICABLE) else "") or NO_VERDICT
    best = cell.row.against_best
    if cell.row.verdict == Verdict.TIED and best is not None and best.ratio is None:
        low, high = best.difference.low, best.difference.high
        return UNCERTAIN if max(abs(low), abs(high)) > WIDE else SIGNS[Verdict.TIED]
    return SIGNS[cell.row.verdict]

"""Contents and words of the heat map of test scores, with one line per mechanism and one column per task.

The picture, the terminal and the HTML page show the same contents and words.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import Averages, averages
from attn_zoo.leaderboard.metrics import brief, estimated, is_share, is_significant, optional, unit, verdict_sentence
from attn_zoo.leaderboard.statistics import Estimate, seed_count
from attn_zoo.leaderboard.table import Row, Table, Verdict, shown_rows, titles
from attn_zoo.rows.name import RowName

# Colour-blind readers can tell these colours from white and black.
SHADES = ("#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")
"""Colours of shaded cells, from light to dark: ColorBrewer's Blues."""
DARK_FROM = 5
"""Index of the first of ``SHADES`` that needs light text, for a contrast of at least 4.5 : 1."""
LENGTH = 4096
"""Number of tokens at which FLOPs are shown."""
NOT_RUN, NOT_APPLICABLE = "·", "n/a"
"""Marks of cells whose verdict is ``Verdict.NOT_RUN`` or ``Verdict.NOT_APPLICABLE``."""
_WORDS = {"out_of_memory": "OOM", "timed_out": "time-out", "refused": NOT_APPLICABLE}
"""Texts of cells without a score, by the recorded status of the run."""
_DIRECTIONS = {False: "bidirectional", True: "causal"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of the heat map: the result of one mechanism on one task."""

    row: Row | None = None
    """Row that is shown; None if the mechanism was not run."""
    shade: float | None = None
    """Shade from 0 (no better than the best control) to 1 (the best); None if the column is not shaded or there is no score."""
    leads: bool = False
    """True for the best row or, if there are no verdicts, for the row with the best mean. Always False in a column in which no
    mechanism beats the best control."""
    marked: bool = False
    """True for the best control, at whose score the shades begin."""
    applicable: bool = True
    """False if the task is causal and the mechanism has no causal form."""
    text: str = ""
    """Mean score as short text, such as ``97.5`` (per cent) or ``0.0021``; empty without a score."""
    small: str = ""
    """Text beside the mean score; ``_beside`` has the rules."""

    @property
    def trained(self) -> bool:
        """False if training did not lower the loss of this mechanism. Its score then does not tell what the mechanism can do."""
        return self.row is None or self.row.verdict != Verdict.NOT_TRAINED

    @property
    def level(self) -> int:
        """Colour step: an integer from 0 (not shaded) to ``len(SHADES)`` (the darkest)."""
        if not self.shade or not self.trained:
            return 0
        return max(1, min(len(SHADES), math.ceil(round(self.shade * len(SHADES), 9))))


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the heat map: one task."""

    table: Table
    title: str
    """Unique title."""
    unshaded: str | None
    """Reason why the column is not shaded; None if it is."""

    @property
    def direction(self) -> str:
        """Direction of the task: ``causal`` or ``bidirectional``."""
        return _DIRECTIONS[bool(self.table.task.get("causal"))]

    @property
    def heading(self) -> str:
        """Title without the direction, for a heading below that of the direction."""
        return self.title.removesuffix(f" ({self.direction})")

    @property
    def metric(self) -> str:
        """Short label for the metric: ``%``, ``F1 %``, ``ppl ↓``."""
        name = str(self.table.task["metric"])
        if is_share(self.table):
            return {"accuracy": "%", "f1_micro": "micro F1 %", "f1_macro": "macro F1 %", "r2": "R² %"}.get(
                name, f"{name.upper()} %"
            )
        name = {"perplexity": "ppl"}.get(name, name)
        return name if self.table.higher_is_better else f"{name} ↓"

    @property
    def chance(self) -> str:
        """Chance level as short text, or ``-`` if it is unknown."""
        return optional(self.table.chance, lambda value: brief(value, self.table))


@dataclass(frozen=True, slots=True)
class Line:
    """Line of the heat map: one mechanism or control, with its cells and FLOPs."""

    attention: str
    control: bool
    group: str
    """Directions in which the mechanism was run, or ``controls``. Lines of one group stand together."""
    cells: tuple[Cell, ...]
    flops: str
    """FLOPs relative to softmax as text; empty if unknown."""
    average: Estimate | None
    """Average over tasks. None if ``averages`` has no value, or if the cells show different settings of the mechanism."""


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


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Heat map of test scores. Its lines are mechanisms, followed by controls; its columns are tasks."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    flops: FlopsColumn | None
    means: Averages
    several: tuple[str, ...]
    """Mechanisms that were run with several settings on a task. The setting with the best validation score is shown."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Numbers of seeds that the shown rows have, without repetition, in ascending order."""
        rows = [cell.row for line in self.lines for cell in line.cells]
        return tuple(sorted({len(row.seeds) for row in rows if row and row.test}))

    @property
    def title(self) -> str:
        """Title of the heat map, with the numbers of mechanisms and of tasks."""
        mechanisms = sum(not line.control for line in self.lines)
        return f"{mechanisms} attention mechanisms on {len(self.columns)} task{'' if len(self.columns) == 1 else 's'}"


def heat_map(tables: Sequence[Table], not_causal: Collection[str] = ()) -> HeatMap:
    """Return the heat map of leaderboard tables, with one line per mechanism and one column per table.

    The shade of a cell goes from 0 (no better than the best control) to 1 (the best score of the column). If a table has several
    rows of a mechanism, the row with the best validation score is shown, because the choice must not use test scores.

    Lines of mechanisms that ran in the same directions (bidirectional, causal) stand together, the darkest mean shade first.
    Bidirectional columns come first, and tasks with similar shades stand side by side.

    Args:
        not_causal: mechanisms without a causal form. Causal tasks are not applicable to them, and to hybrids with one of them.
    """
    columns = [
        Column(table, title, unshaded(table, list(shown_rows(table).values())))
        for table, title in zip(tables, titles(tables), strict=True)
    ]
    known = [_cells(column) for column in columns]
    order = _alike(columns, known)
    columns, known = [columns[at] for at in order], [known[at] for at in order]
    controls = {row.attention: row.control for table in tables for row in table.rows}
    means, flops = averages(tables), flops_column(tables)
    lines = []
    for name, control in controls.items():
        has_causal_form = set(RowName(name).mechanisms).isdisjoint(not_causal)
        missing = [Cell(applicable=has_causal_form or column.direction != "causal") for column in columns]
        cells = tuple(of_task.get(name, none) for of_task, none in zip(known, missing, strict=True))
        ran = {column.direction for column, cell in zip(columns, cells, strict=True) if cell.row}
        group = "controls" if control else " and ".join(sorted(ran))
        lines.append(Line(name, control, group, cells, flops.written(name) if flops else "", _average(cells, means)))
    lines.sort(key=lambda line: (line.control, -line.group.count(" "), line.group, *_place(line, columns), line.attention))
    names = grouped((row.attention, table) for table in tables for row in table.rows)
    several = tuple(line.attention for line in lines if len(names[line.attention]) > len(set(map(id, names[line.attention]))))
    return HeatMap(tuple(columns), tuple(lines), flops, means, several)


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


def _cells(column: Column) -> dict[str, Cell]:
    """Return the cells of a column by mechanism.

    Shades grow linearly from 0 at the score of the best control to 1 at the best score of a mechanism. A mechanism whose verdict is
    that it is no better than the best control has shade 0. Shades do not begin at chance, because a score up to that of the best
    control needs no attention.
    """
    table, rows = column.table, shown_rows(column.table)
    means = [row.merit for row in rows.values() if row.test and not row.control]
    start, shaded = table.sign * (table.best_control or 0.0), column.unshaded is None

    def cell(row: Row) -> Cell:
        if row.test is None:
            return Cell(row)
        best = row.verdict == Verdict.BEST if table.judgement.best else row.merit == max(means, default=math.nan)
        gained = 0.0 if row.verdict == Verdict.NO_BETTER else row.merit - start
        shade = max(0.0, min(1.0, gained / (max(means) - start))) if shaded else None
        leads = best and not row.control and (shaded or table.best_control is None)
        return Cell(row, shade, leads, row.label == table.control, text=brief(row.test.mean, table), small=_beside(row, table))

    return {name: cell(row) for name, row in rows.items()}


def unshaded(table: Table, rows: Sequence[Row]) -> str | None:
    """Return why the cells of a task's column are not shaded by their scores, or None if they are shaded.

    A column is shaded only if a mechanism is better than the best control by at least one point (1 % if the metric is not a
    percentage). If the table has verdicts, the difference must also be significant.
    """
    best = max((row for row in rows if row.test and not row.control), key=lambda row: row.merit, default=None)
    if best is None or best.test is None:
        return "no mechanism has a score"
    if table.best_control is None:
        return "no control was run"
    if table.sign * (best.test.mean - table.best_control) <= 0:
        return f"no mechanism is better than the control {table.control}"
    verdicts = {row.verdict for row in table.rows} - {None}
    if verdicts and verdicts <= {Verdict.NO_BETTER, Verdict.NOT_TRAINED}:
        return f"every mechanism is {Verdict.NO_BETTER}, {table.control}"
    if best.resolution.ties(best.test.mean - table.best_control, abs(table.best_control)):
        return f"no mechanism is better than the control {table.control} by {'a point' if is_share(table) else '1 %'}"
    return None


def _alike(columns: Sequence[Column], known: Sequence[Mapping[str, Cell]]) -> list[int]:
    """Return the order of columns: bidirectional before causal. In each group, the most similar remaining column follows."""

    def difference(one: int, other: int) -> float:
        both = [(known[one][name].shade or 0.0, known[other][name].shade or 0.0) for name in known[one] if name in known[other]]
        return fmean(abs(a - b) for a, b in both) if both else 1.0

    order: list[int] = []
    for causal in (False, True):
        left = [at for at, column in enumerate(columns) if bool(column.table.task.get("causal")) == causal]
        while left:
            following = bool(order) and columns[order[-1]].direction == columns[left[0]].direction
            order.append(min(left, key=lambda at: difference(order[-1], at)) if following else left[0])
            left.remove(order[-1])
    return order


def _average(cells: Sequence[Cell], means: Averages) -> Estimate | None:
    """Return the average of the row to which all cells belong. Return None if the cells belong to several rows, or if the row has
    no average."""
    labels = {cell.row.label for cell in cells if cell.row}
    return means.rows.get(labels.pop()) if len(labels) == 1 else None


def _place(line: Line, columns: Sequence[Column]) -> tuple[float, float]:
    """Return the key by which lines of a group are sorted: the mean shade, then the mean place in the tables, over the tasks on
    which the mechanism was run."""
    ran = [(cell, column) for cell, column in zip(line.cells, columns, strict=True) if cell.row]
    shaded = [cell.shade or 0.0 for cell, column in ran if column.unshaded is None]
    places = [column.table.rows.index(cell.row) / len(column.table.rows) for cell, column in ran if cell.row]
    return -round(fmean(shaded or [0.0]), 9), fmean(places)


def _beside(row: Row, table: Table) -> str:
    """Return the small text that stands beside the mean score of a row.

    - If a seed failed, the text is the number of seeds with a score, such as ``2/3``.
    - For other runs that end at a criterion, the text is the median number of steps to 90 % of the highest possible score. If only
      some seeds met the criterion, the text is their number, such as ``1/3``; if none did, the text is empty.
    - For all other runs, the text is ``±`` and half of the interval of the mean score.
    """
    assert row.test is not None, "only rows with a score have such a text"
    if row.failures:
        return f"{len(row.seeds)}/{row.attempts}"
    if row.steps_to_90 and row.learned:
        steps = row.steps_to_90.median
        if steps is None or row.learned.count < row.learned.of:
            return f"{row.learned.count}/{row.learned.of}" if row.learned.count else ""
        return f"{steps:.0f}" if steps < 1000 else f"{steps / 1000:.1f}k"
    if row.test.half_width is None:
        return ""
    if is_significant(table.task["metric"]):
        return f"±{row.test.half_width:.1g}"
    shown = 100 * row.test.half_width if is_share(table) else row.test.half_width
    return f"±{shown:.1f}" if shown < 9.95 else f"±{shown:.0f}"


def gap(cell: Cell) -> str:
    """Return why a cell has no score: ``n/a``, ``OOM``, ``diverged``, or a dot if the mechanism was not run. With a score, the text
    is empty."""
    if cell.row is None:
        return NOT_RUN if cell.applicable else NOT_APPLICABLE
    if cell.row.test is not None:
        return ""
    failures = cell.row.failures
    return _WORDS.get(failures[0].status, failures[0].word) if failures else "-"


def about(row: Row, table: Table, where: str = "") -> str:
    """Return a sentence about a row: its score, the gain over the best control, the verdict and the number of seeds. For runs that
    end when the task is learned, the sentence also says how many seeds learned the task, and in how many steps. For a row without a
    score, it lists the failures.

    Args:
        where: text that follows the row's label, such as `` on TASK``.
    """
    if row.test is None:
        return f"{row.label}{where}: {'; '.join(map(str, row.failures))}"
    parts = [f"{row.label}{where}: {table.task['metric']} {estimated(row.test, table)}{unit(table, ' %')}"]
    if row.margin:
        parts.append(f"{estimated(row.margin, table, '+')} against the control {table.control}")
    parts += [verdict_sentence(row, table)] if row.verdict else []
    parts += [f"learned {row.learned}"] if row.learned else []
    parts += [f"steps to 90 %: {row.steps_to_90}"] if row.steps_to_90 else []
    return "; ".join([*parts, seed_count([len(row.seeds)]), *map(str, row.failures)])


def footnotes(found: HeatMap, leads: str = "Bold", small: bool = True) -> list[str]:
    """Return the sentences below the heat map, which explain how to read it.

    Args:
        leads: word or sign that marks the best mechanism on a task.
        small: False if the heat map is shown without the small figures, which then are not explained.
    """
    cells = [cell for line in found.lines for cell in line.cells]
    rows = [cell.row for cell in cells if cell.row]
    notes = [f"Test scores of {seed_count(found.seeds)}{', which shows no spread' if found.seeds == (1,) else ''}."]
    if any(row.verdict for row in rows):
        notes.append(f"{leads}: the best on a task. The task's own table shows which others are {Verdict.TIED}.")
    else:
        notes.append(f"{leads}: the best mean on a task; no significance test was possible.")
    if small and any(row.steps_to_90 for row in rows):
        notes.append(
            "Small figures: the median number of steps to 90 % of the ceiling. If only some seeds learned the task: how many did."
        )
    if small and any(row.test and row.test.half_width is not None and not row.steps_to_90 for row in rows):
        notes.append("±: half of the 95 % interval of the mean.")
    if any(cell.shade for cell in cells):
        notes.append("Mechanisms run in the same directions (bidirectional, causal) stand together, the darkest mean shade first.")
    reasons = grouped((column.unshaded, column.title) for column in found.columns if column.unshaded)
    notes += [f"Not shaded: {', '.join(names)} ({reason})." for reason, names in reasons.items()]
    if any(not column.table.higher_is_better for column in found.columns):
        notes.append("↓: lower is better.")
    if small and any(row.test and row.failures for row in rows):
        notes.append("2/3: two of three seeds have a score.")
    if tuned := sorted({key for row in rows if row.tuning for key in row.tuning.space}):
        notes.append(f"Each row has its own {', '.join(tuned)}, chosen by validation score.")
    if found.several:
        notes.append(f"Run with several options, of which the best by validation score are shown: {', '.join(found.several)}.")
    return [*notes, *([f"{found.flops.said}."] if found.flops else []), _protocols(found)]


def _protocols(found: HeatMap) -> str:
    """Return a sentence that says by which protocol each task was run."""
    (usual, _), *others = Counter(column.table.protocol for column in found.columns).most_common()
    named = grouped((c.table.protocol, f"{c.heading} ({c.direction})") for c in found.columns)
    told = [f"{', '.join(named[protocol])}: protocol {protocol}" for protocol, _ in others]
    return f"The runs follow protocol {usual}." if not told else f"{'; '.join(told)}; all other tasks: protocol {usual}."

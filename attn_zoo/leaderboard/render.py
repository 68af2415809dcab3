"""Tables as text: for the terminal, for GitHub, for LaTeX, and raw as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.statistics import Estimate

FORMATS = ("terminal", "github", "csv", "json", "latex")
SHARES = ("accuracy", "f1")
"""Metrics that lie between 0 and 1 and are shown in per cent."""
_STYLES = {"terminal": "simple", "github": "github", "latex": "latex_booktabs"}


def render(tables: Sequence[Table], format: str, *, overview: bool = False) -> str:
    """The tables in one of ``FORMATS``: an overview where there are several tasks, then each task with its costs.

    With ``overview``, nothing but that and what goes with it; CSV and JSON are always whole.

    Raises:
        ValueError: no such format.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    if format == "csv":
        return _csv(tables)
    if format == "json":
        return json.dumps([asdict(table) for table in tables], indent=1, sort_keys=True)
    parts = [] if overview else [_detail(table, format) for table in tables]
    if overview or len(tables) > 1:
        parts.insert(0, _overview(tables, format))
    parts.append(_footnotes(tables, format, overview))
    return "\n\n".join(parts)


def _overview(tables: Sequence[Table], format: str) -> str:
    """Rows are attentions, columns are tasks. There is no average: tasks differ in what a point is worth."""
    names = [table.task["title"] for table in tables]
    heads = [name if names.count(name) == 1 else f"{name} #{at + 1}" for at, name in enumerate(names)]
    heads = [head + _unit(table, " ") for head, table in zip(heads, tables, strict=True)]
    cells = {(row.label, at): _score(row, table) for at, table in enumerate(tables) for row in table.rows}
    first = {row.label: row for table in tables for row in table.rows}
    places: dict[str, list[float]] = {label: [] for label in first}
    for table in tables:
        for place, row in enumerate(table.rows):
            places[row.label].append(place / len(table.rows))
    order = sorted(first, key=lambda label: (first[label].control, sum(places[label]) / len(places[label]), label))
    body = [[_name(first[label]), *(cells.get((label, at), "-") for at in range(len(tables)))] for label in order]
    body.append(["chance", *("-" if t.chance is None else _figure(t.chance, t) for t in tables)])
    body.append(["data", *(t.data_title for t in tables)])
    return _titled("Test scores", _tabulate(body, ["attention", *heads], format), format)


def _detail(table: Table, format: str) -> str:
    body = [_line(row, table) for row in table.rows]
    head = ["attention", table.task["metric"] + _unit(table, " "), "over control", "train - test", "seeds"]
    head += ["parameters", "FLOPs/example", "examples/s", "peak memory"]
    problems = [(row.label, failure) for row in table.rows for failure in row.failures]
    changed = ", ".join(f"{key}={value}" for key, value in table.task_options.items())
    chance = "unknown" if table.chance is None else _figure(table.chance, table) + _unit(table, " ", "%")
    title = f"{table.task['title']}: {table.task['length']} positions, chance {chance}"
    text = _titled(title, _tabulate(body, head, format), format)
    notes = [f"{label}: {failure}" for label, failure in problems]
    notes += [
        f"{row.label} costs more FLOPs than softmax here"
        for row in table.rows
        if table.softmax_flops and (row.flops_per_example or 0) > table.softmax_flops
    ]
    if len({row.seeds for row in table.rows if row.score}) > 1:
        notes.append("rows differ in their seeds; compare them with care")
    budget, model, test = table.budget, table.model, table.data.get("test", {})
    notes.append(f"data: {table.data_title}")
    notes.append(
        f"task options {changed}; network dim={model['dim']} depth={model['depth']} heads={model['heads']}; "
        f"{budget['steps']} steps of {budget['batch_size']} examples; {table.precision} on {table.device}; "
        f"test split of {test.get('examples', '?')}, digest {str(test.get('digest', '?'))[:8]}"
    )
    return text + _by_part(table, format) + "\n" + _lines(notes, format)


def _by_part(table: Table, format: str) -> str:
    """Scores of the parts of the test that the task names; empty where it names none."""
    names = list(dict.fromkeys(name for row in table.rows for name in row.parts))
    if not names:
        return ""
    body = [[_name(row), *(_estimate(row.parts[n], table) if n in row.parts else "-" for n in names)] for row in table.rows]
    return "\n\n" + _titled(f"{table.task['title']}, by part of the test", _tabulate(body, ["attention", *names], format), format)


def _line(row: Row, table: Table) -> list[str]:
    best = table.best_control
    margin = "-" if best is None or row.score is None or row.control else _figure(row.score.mean - best, table, "+")
    gap = "-" if row.train_gap is None else _figure(row.train_gap.mean, table, "+")
    total = len(row.seeds) + len(row.failures)
    seeds = str(total) if not row.failures else f"{len(row.seeds)} of {total}"
    costs = [
        _optional(row.parameters, _short),
        _optional(row.flops_per_example, _short),
        _optional(row.examples_per_second, lambda v: f"{v:,.0f}"),
        _optional(row.peak_bytes, lambda v: f"{v / 2**20:.1f} MiB"),
    ]
    return [_name(row), _score(row, table), margin, gap, seeds, *costs]


def _footnotes(tables: Sequence[Table], format: str, overview: bool) -> str:
    machines = sorted({machine for table in tables for row in table.rows for machine in row.machines})
    notes = [
        "± is half of the 95 % t interval of the mean over seeds; one seed has none. (c) marks a control. Chance is the same "
        "answer to every question, the shares of the training labels.",
        "'over control' is the distance to the best control. FLOPs are of one forward pass and count matrix products; "
        f"examples/s and peak memory are of a training step and belong to: {'; '.join(machines)}.",
        f"Protocol {', '.join(sorted({table.protocol for table in tables}))}.",
    ]
    if overview:
        return _lines(notes[:1] + notes[2:], format)
    if len(machines) > 1:
        notes.insert(0, "Several machines took part: do not compare examples/s and peak memory between rows.")
    return _lines(notes, format)


def _csv(tables: Sequence[Table]) -> str:
    out = io.StringIO()
    names = ["task", "task_version", "task_options", "attention", "options", "implementation", "control", "metric"]
    names += ["higher_is_better", "data", "score_mean"]
    names += ["score_half_width_95", "seeds_done", "failures", "chance", "parameters", "flops_per_example", "examples_per_second"]
    names += ["peak_bytes", "protocol", "precision", "device", "machines"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            score = row.score or Estimate(float("nan"), None, 0)
            known: dict[str, Any] = {name: getattr(row, name) for name in names if hasattr(row, name)}
            known |= {"task": table.task["name"], "task_version": table.task["version"], "metric": table.task["metric"]}
            known |= {"data": table.data_title, "higher_is_better": table.higher_is_better}
            known |= {"task_options": json.dumps(dict(table.task_options)), "options": json.dumps(dict(row.options))}
            known |= {"score_mean": score.mean if row.score else None, "score_half_width_95": score.half_width}
            known |= {"seeds_done": len(row.seeds), "failures": " | ".join(row.failures), "chance": table.chance}
            known |= {"protocol": table.protocol, "precision": table.precision, "device": table.device}
            known |= {"machines": " | ".join(row.machines)}
            writer.writerow(known)
    return out.getvalue()


def _tabulate(body: Sequence[Sequence[str]], head: Sequence[str], format: str) -> str:
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(body, head, tablefmt=_STYLES[format], disable_numparse=True, colalign=align)


def _titled(title: str, text: str, format: str) -> str:
    if format == "latex":
        return f"% {title}\n{text}"
    return f"**{title}**\n\n{text}" if format == "github" else f"{title}\n\n{text}"


def _lines(notes: Sequence[str], format: str) -> str:
    if format == "latex":
        return "\n".join(f"% {note}" for note in notes)
    return "\n" + "\n".join(f"- {note}" for note in notes)


def _name(row: Row) -> str:
    return f"{row.label} (c)" if row.control else row.label


def _score(row: Row, table: Table) -> str:
    if row.score is None:
        return row.failures[0].split(" with seed")[0].replace("_", " ") if row.failures else "-"
    return _estimate(row.score, table)


def _estimate(score: Estimate, table: Table) -> str:
    spread = "" if score.half_width is None else f" ± {_figure(score.half_width, table)}"
    return _figure(score.mean, table) + spread


def _figure(value: float, table: Table, sign: str = "") -> str:
    """A score or a difference of scores: of shares in per cent, of others as it is."""
    return f"{100 * value:{sign}.1f}" if _is_share(table) else f"{value:{sign}.2f}"


def _unit(table: Table, before: str, unit: str = "(%)") -> str:
    return before + unit if _is_share(table) else ""


def _is_share(table: Table) -> bool:
    return table.task["metric"] in SHARES


def _short(count: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g}"


def _optional(value: Any, form: Any) -> str:
    return "-" if value is None else form(value)

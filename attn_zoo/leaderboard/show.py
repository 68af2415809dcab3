"""All about one row: what it was run with, what it found and cost, who published what, and the command that does it again."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from attn_zoo.leaderboard.assemble import tables
from attn_zoo.leaderboard.literature import literature
from attn_zoo.leaderboard.literature_text import difference_lines, verdict_line
from attn_zoo.leaderboard.render.notes import tuned_notes
from attn_zoo.leaderboard.render.text import estimated, figure, lines, mebibytes, seconds, unit
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.rows import CurvePoint, Row, Table
from attn_zoo.plotting.theme import short
from attn_zoo.records import RunRecord
from attn_zoo.rows import read_rows

_SPLITS = ("test", "valid", "train")
_POINTS = 12
"""Points of a learning curve that are listed; of longer ones an even choice."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A row with its table and records."""

    table: Table
    row: Row
    members: tuple[RunRecord, ...]


def find(wanted: str, records: Sequence[RunRecord]) -> tuple[Shown, ...]:
    """The rows that ``wanted`` means: a run id (or six or more of its digits), or a row or label, ``@TASK`` after it or not.

    Raises:
        ValueError: nothing recorded is called so; the message lists what is.
    """
    ids = [record for record in records if len(wanted) >= 6 and record.run_id.startswith(wanted)]
    if ids and all(record.is_trial for record in ids):
        studies = ", ".join(sorted({record.tuning.study for record in ids if record.tuning}))
        raise ValueError(f"{wanted!r} is a trial of study {studies}, which is no row; see the run with the settings chosen from it")
    if ids:
        return rows_of(ids)
    name, _, task = wanted.partition("@")
    every = rows_of(records)
    found = tuple(s for s in every if _is_called(s.row, name) and task in ("", s.table.task["name"]))
    if not found:
        there = sorted({f"{s.row.label}@{s.table.task['name']}" for s in every})
        raise ValueError(
            f"no row is called {wanted!r}; ROW is NAME or NAME[OPTION=VALUE,...], perhaps @TASK, a run id or a file; "
            f"recorded: {', '.join(there) or 'nothing'}"
        )
    return found


def _is_called(row: Row, name: str) -> bool:
    """Whether a row has this label, or is among those that a row of the command line says."""
    try:
        said = read_rows(name)
    except ValueError:
        said = []
    return row.label == name or any(one.names(row.attention, row.options, row.provenance.implementation) for one in said)


def rows_of(records: Sequence[RunRecord]) -> tuple[Shown, ...]:
    """Every row that the records make."""
    by_file = {record.source: record for record in records}
    return tuple(
        Shown(table, row, tuple(by_file[f] for f in row.provenance.files)) for table in tables(records) for row in table.rows
    )


def describe(shown: Shown, checks: str) -> str:
    """All about a row as text.

    Args:
        checks: what the conformance kit said of the attention, or that it was not asked.
    """
    parts = [
        ("", _facts(shown)),
        ("Data", _data(shown.table)),
        ("Scores", _scores(shown)),
        ("Learning curve", _curve(shown)),
        ("Cost", _cost(shown)),
        ("Warnings", lines(shown.row.warnings, "terminal") or "none recorded"),
        ("Checks", checks),
        ("Published", _published(shown)),
        ("Environment", _environment(shown.members)),
        ("Done again by", _commands(shown)),
    ]
    title = f"{shown.row.label} on {shown.table.task['title']}"
    return "\n\n".join([title, *(f"{head}\n\n{text}" if head else text for head, text in parts)])


def _facts(shown: Shown) -> str:
    table, row = shown.table, shown.row
    card, task, model = row.provenance.card, table.task, table.model
    origin = [str(card[name]) for name in ("title", "paper", "equation", "origin") if card.get(name)]
    claims = [f"{name} {card[name]}" for name in ("time", "memory") if card.get(name)]
    facts = [["attention", "; ".join(origin) + (" (a control)" if row.control else "")]]
    facts += [["claims", ", ".join(claims)]] if claims else []
    facts += [
        ["options", _pairs(row.options) or "none"],
        *([["defaults by length", _pairs(rules)]] if (rules := card.get("length_rules")) else []),
        *([["tuned", tuned_notes(table, [row])[0]]] if row.provenance.tuning else []),
        ["implementation", row.provenance.implementation],
        ["task", f"{task['name']}, version {task['version']}, {task['length']} positions, {task['metric']}"],
        ["task options", _pairs(table.task_options) or "none"],
        ["network", _pairs({name: value for name, value in model.items() if value != ""})],
        ["budget", _pairs(table.budget)],
        ["precision", f"{table.precision} on {table.device}"],
        ["protocol", f"{table.protocol} of training and timing"],
    ]
    return tabulate(facts, tablefmt="plain", maxcolwidths=[None, 110], disable_numparse=True)


def _data(table: Table) -> str:
    licence = table.task.get("licence")
    facts = [
        [split, f"{part.get('examples', '?'):,} examples", f"SHA-256 {part.get('digest', '?')}"]
        for split, part in table.data.items()
    ]
    told = f"{table.data_title}; {table.task.get('source', 'source unknown')}" + (f"; licence: {licence}" if licence else "")
    return told + ("\n\n" + tabulate(facts, tablefmt="plain") if facts else "; never read, as no run came so far")


def _scores(shown: Shown) -> str:
    table, row, scores, standing = shown.table, shown.row, shown.row.scores, shown.row.standing
    percent = unit(table, " %")
    done = [record for record in shown.members if record.spec.seed in scores.seeds]
    body = [[str(r.spec.seed), *(_score(r.scores.get(n), table) for n in _SPLITS), r.run_id, r.source or "-"] for r in done]
    head = ["seed", *(f"{split}{unit(table)}" for split in _SPLITS), "run id", "record"]
    count = f"{len(scores.seeds)} seed{'s' if len(scores.seeds) > 1 else ''}"
    tied = f", tied with all that share a letter of {standing.letters}" if standing.ties else ""
    why = standing.unranked or (None if row.control else table.ranking.reason)
    notes = [f"{table.task['metric']} {estimated(scores.test, table)}{percent} over {count}"] if scores.test else []
    notes += [f"{name}: {estimated(part, table)}{percent}" for name, part in scores.parts.items()]
    notes += [] if table.chance is None else [f"chance {figure(table.chance, table)}{percent}"]
    notes += [f"{estimated(scores.margin, table, '+')} over the best control, {table.control}"] if scores.margin else []
    notes += [f"train - test {estimated(scores.train_gap, table, '+')}"] if scores.train_gap else []
    notes += [f"rank {standing.rank}{tied}"] if standing.rank else []
    notes += [why] if why else []
    notes += [f"dominated by {', '.join(standing.dominated_by)}"] if standing.dominated_by else []
    notes += map(str, scores.failures)
    text = tabulate(body, head, disable_numparse=True, colalign=("right",) * 4 + ("left",) * 2) + "\n\n" if body else ""
    return text + lines(notes, "terminal")


def _score(value: float | None, table: Table) -> str:
    return figure(value, table) if isinstance(value, float) else "-"


def _curve(shown: Shown) -> str:
    table, points = shown.table, shown.row.scores.curve
    if not points:
        return "none recorded"
    best = (max if table.higher_is_better else min)(points, key=lambda point: point.valid.mean)
    body = [
        [f"{p.step:,}", seconds(p.seconds), "-" if p.flops is None else short(p.flops), estimated(p.valid, table)]
        for p in _chosen(points, best)
    ]
    head = ["step", "s", "training FLOPs", f"valid{unit(table)}"]
    said = f"best on validation at step {best.step:,} of {points[-1].step:,} by the mean over seeds; each is tested at its own best"
    return f"{tabulate(body, head, disable_numparse=True, stralign='right')}\n\n{said}"


def _chosen(points: Sequence[CurvePoint], best: CurvePoint) -> list[CurvePoint]:
    every = -(-len(points) // _POINTS)
    return [point for at, point in enumerate(points) if at % every == 0 or point is best or at == len(points) - 1]


def _cost(shown: Shown) -> str:
    row = shown.row
    counted: Mapping[str, Any] = next((r.counted for r in shown.members if r.counted), {})
    body = [[name.replace("_", " "), _written(name, value), "counted"] for name, value in counted.items()]
    for name in dict.fromkeys(name for r in shown.members for name in r.measured):
        values = [r.measured[name] for r in shown.members if r.spec.seed in row.scores.seeds and r.measured.get(name) is not None]
        body.append([name.replace("_", " "), _median(name, values), "measured"])
    protocol = [
        "counted: of one example where it says so, matrix products alone, the same on every machine",
        f"measured: while training with batch {shown.table.budget['batch_size']}, by protocol {shown.table.protocol}; the median "
        "over seeds, with the least and the most; a step's median and interquartile range are over the steps of a run",
        f"measured on: {'; '.join(row.costs.block.machines)}",
    ]
    absent = [name for name in ("step_seconds_median", "peak_bytes") if not any(name in r.measured for r in shown.members)]
    protocol += [f"not measured: {', '.join(name.replace('_', ' ') for name in absent)}"] if absent else []
    table = tabulate(body, ["", "figure", ""], disable_numparse=True, colalign=("left", "right", "left")) + "\n\n" if body else ""
    return table + lines(protocol, "terminal")


def _median(name: str, values: Sequence[Any]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values) or not numbers:
        return "; ".join(dict.fromkeys(map(str, values))) or "-"
    middle = _written(name, statistics.median(numbers))
    return middle if len(numbers) == 1 else f"{middle} ({_written(name, min(numbers))} to {_written(name, max(numbers))})"


def _written(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if "seconds" in name:
        return f"{value:.3g} s" if value < 10 else f"{value:,.0f} s"
    if "bytes" in name:
        return mebibytes(value)
    return short(value) if value >= 1000 else f"{value:.3g}"


def _published(shown: Shown) -> str:
    compared = literature(shown.table)
    row = next((r for r in compared.rows if r.label == shown.row.label), None) if compared else None
    if compared is None or row is None:
        return "no score of this attention on this task is known"
    told = difference_lines(compared, row)
    told += [f"{title}, known flaws: {'; '.join(compared.flaws[title])}" for title in row.figures if compared.flaws[title]]
    told += [] if row.spread is None else [f"the sources differ by {row.spread:.1f} points among themselves"]
    metric = shown.table.task["metric"]
    told += [verdict_line(v, metric) for v in compared.verdicts if shown.row.label in (v.attention, v.yardstick)]
    return lines(told, "terminal")


def _environment(members: Sequence[RunRecord]) -> str:
    """What all runs share, then what each has of its own."""
    names = dict.fromkeys(name for r in members for name in r.environment)
    body = []
    for name in names:
        values = dict.fromkeys(str(r.environment.get(name)) for r in members if r.environment.get(name) is not None)
        if values:
            body.append([name.replace("_", " "), "; ".join(values)])
    return tabulate(body, tablefmt="plain", maxcolwidths=[None, 110], disable_numparse=True)


def _commands(shown: Shown) -> str:
    """One command for all seeds."""
    told = [command(shown.members[0].spec, [record.spec.seed for record in shown.members])]
    if shown.table.data_title != "generated":
        told.append("with data.root=FOLDER where the data lie in another folder than $ATTN_ZOO_DATA or data")
    return "\n".join(told)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())

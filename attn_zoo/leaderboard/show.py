"""Text that ``attn-zoo show`` prints about one row, for a reviewer: status, score, seeds, data, code, machine, the command that
repeats the runs and, on request, more details."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.literature import literature
from attn_zoo.leaderboard.literature_text import anchor_beside, anchor_line, difference_lines
from attn_zoo.leaderboard.metrics import estimated, figure, mebibytes, seconds, unit, verdict_sentence
from attn_zoo.leaderboard.notes import tuned_notes
from attn_zoo.leaderboard.rank import tables
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.table import CurvePoint, Row, Table
from attn_zoo.leaderboard.text import lines
from attn_zoo.records import RunRecord
from attn_zoo.records.spec import writable
from attn_zoo.rows import read_rows
from attn_zoo.terminal import fit, shell, short, wrap

_SPLITS = ("test", "valid", "train")
_POINTS = 12
"""Greatest number of evenly spaced points of a learning curve that are listed, in addition to the best and the last point."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Row of a leaderboard table, together with the table and the records of the runs in the row."""

    table: Table
    row: Row
    members: tuple[RunRecord, ...]


def find(wanted: str, records: Sequence[RunRecord]) -> tuple[Shown, ...]:
    """Return the rows that ``wanted`` names.

    Args:
        wanted: run id or at least its first six characters; a row as on the command line, such as
            ``linformer[projected_length=64]``; or the label of a row in tables. A row or label may be followed by ``@TASK``.
        records: records among whose rows to search.

    Raises:
        ValueError: ``wanted`` is a trial of a search, or it matches no recorded row; the message then lists all rows.
    """
    ids = [record for record in records if len(wanted) >= 6 and record.run_id.startswith(wanted)]
    if ids and all(record.is_trial for record in ids):
        studies = ", ".join(sorted({record.tuning.study for record in ids if record.tuning}))
        raise ValueError(
            f"{wanted!r} is a trial of the study {studies}, but tables have no rows of trials. Name a run with the settings that "
            "this study chose"
        )
    if ids:
        return rows_of(ids)
    name, _, task = wanted.partition("@")
    every = rows_of(records)
    found = tuple(s for s in every if _is_called(s.row, name) and task in ("", s.table.task["name"]))
    if not found:
        there = sorted({f"{s.row.label}@{s.table.task['name']}" for s in every})
        raise ValueError(
            f"there is no record of {wanted!r}. Name a run id, a file of records, or a row in the form NAME, "
            f"NAME[OPTION=VALUE,...] or NAME@TASK. Recorded: {', '.join(there) or 'nothing'}. To see a task, use attn-zoo list TASK"
        )
    return found


def _is_called(row: Row, name: str) -> bool:
    """Return True if a row has this label, or matches a row as written on the command line."""
    try:
        said = read_rows(name)
    except ValueError:
        said = []
    return row.label == name or any(one.names(row.attention, row.options, row.implementation) for one in said)


def rows_of(records: Sequence[RunRecord]) -> tuple[Shown, ...]:
    """Return all rows of the leaderboard tables made from these records."""
    by_file = {writable(record.source): record for record in records}
    return tuple(Shown(table, row, tuple(by_file[f] for f in row.files)) for table in tables(records) for row in table.rows)


def describe(shown: Shown, checks: str, *, whole: bool = False) -> str:
    """Return a description of a row as text: the facts that a reviewer checks, and the command that repeats its runs.

    Args:
        checks: result of the conformance tests of the mechanism, or a note that they were not run.
        whole: add all other details.
    """
    title = terminal(f"{shown.row.label} on {shown.table.task['title']}")
    parts = [title, fit([list(fact) for fact in _reviewed(shown)]), f"Run again with\n\n{_commands(shown)}"]
    rest = [f"{head}\n\n{text}" for head, text in _details(shown, checks)] if whole else ["--all shows the rest."]
    return "\n\n".join([*parts, *rest])


def _reviewed(shown: Shown) -> Iterator[tuple[str, str]]:
    """Yield names and facts in the order in which a reviewer asks for them."""
    table, row = shown.table, shown.row
    percent = unit(table, " %")
    yield "status", "; ".join([f"{len(row.seeds)} of {row.attempts} seeds done", *map(str, row.failures)])
    if row.test:
        margin = f"; {estimated(row.margin, table, '+')} over the best control, {table.control}" if row.margin else ""
        count = f"{len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''}"
        yield "score", f"{table.task['metric']} {estimated(row.test, table)}{percent} over {count}{margin}"
    if table.chance is not None:
        yield "chance", f"{figure(table.chance, table)}{percent}"
    if told := verdict_sentence(row, table):
        yield "verdict", told
    for record in shown.members:
        score = figure(test, table) + percent if isinstance(test := record.scores.get("test"), float) else record.status
        yield f"seed {record.spec.seed}", f"{score}, run {record.run_id}"
    if row.warnings:
        yield "warnings", "; ".join(row.warnings)
    yield "data", _data(table)
    yield "code", "; ".join(dict.fromkeys(map(_code, shown.members)))
    yield "ran as", f"{row.implementation}, {table.precision} on {table.device}, protocol {table.protocol}"
    yield "machine", "; ".join(row.block.machines)


def _data(table: Table) -> str:
    part = table.data.get("test")
    if part is None:
        return f"{table.data_title}; never read, because no run got that far"
    return f"{table.data_title}; test of {part.get('examples', '?'):,} examples, SHA-256 {part.get('digest', '?')}"


def _code(record: RunRecord) -> str:
    """Return the version and commit of the code that ran, and whether it had uncommitted changes."""
    there = record.environment
    version, commit = (there.get(name) or "unknown" for name in ("attn_zoo", "commit"))
    known: dict[Any, str] = {False: "clean", True: "dirty: with uncommitted changes"}
    state = known.get(there.get("dirty"), "unknown whether changed")
    return f"attn-zoo {version}, commit {commit}, {state}"


def _commands(shown: Shown) -> str:
    """Return the command that repeats all seeds, with a note on the data folder."""
    told = [shell(command(shown.members[0].spec, [record.spec.seed for record in shown.members]))]
    if shown.table.data_title != "generated":
        told.append(wrap("with data.root=FOLDER if the data are in another folder than $ATTN_ZOO_DATA or data"))
    return "\n".join(told)


def _details(shown: Shown, checks: str) -> Iterator[tuple[str, str]]:
    """Yield the heading and the text of each section of details about a row. No line is wider than the terminal.

    Args:
        checks: result of the conformance tests of the mechanism, or a note that they were not run.
    """
    yield "Setting", _facts(shown)
    yield "Data", _splits(shown.table)
    yield "Seeds", _scores(shown)
    yield "Learning curve", _curve(shown)
    yield "Cost", _cost(shown)
    yield "Checks", wrap(checks)
    yield "Published", _published(shown)
    yield "Environment", _environment(shown.members)


def _facts(shown: Shown) -> str:
    table, row = shown.table, shown.row
    card, task, model = row.card, table.task, {**table.model, "heads": row.heads or table.model["heads"]}
    origin = [str(card[name]) for name in ("title", "paper", "equation", "origin") if card.get(name)]
    origin += [f"version {card['version']}"] * (card["version"] > 1)
    claims = [f"{name} {card[name]}" for name in ("time", "memory") if card.get(name)]
    facts = [["attention", "; ".join(origin) + (" (a control)" if row.control else "")]]
    facts += [["claims", ", ".join(claims)]] if claims else []
    facts += [
        ["options", _pairs(row.options) or "none"],
        *([["defaults by length", _pairs(rules)]] if (rules := card.get("length_rules")) else []),
        *([["tuned", tuned_notes(table, [row])[0]]] if row.tuning else []),
        ["implementation", row.implementation],
        ["task", f"{task['name']}, version {task['version']}, {task['length']} positions, {task['metric']}"],
        ["task options", _pairs(table.task_options) or "none"],
        ["network", _pairs({name: value for name, value in model.items() if value != ""})],
        ["budget", _pairs(table.budget)],
        ["precision", f"{table.precision} on {table.device}"],
        ["protocol", f"{table.protocol} of training and timing"],
    ]
    return fit(facts)


def _splits(table: Table) -> str:
    licence = table.task.get("licence")
    facts = [
        [split, f"{part.get('examples', '?'):,} examples", f"SHA-256 {part.get('digest', '?')}"]
        for split, part in table.data.items()
    ]
    told = f"{table.data_title}; {table.task.get('source', 'source unknown')}" + (f"; licence: {licence}" if licence else "")
    return wrap(terminal(told)) + ("\n\n" + fit(facts) if facts else "; never read, because no run got that far")


def _scores(shown: Shown) -> str:
    table, row = shown.table, shown.row
    done = [record for record in shown.members if record.spec.seed in row.seeds]
    body = [[str(r.spec.seed), *(_score(r.scores.get(n), table) for n in _SPLITS), r.source or "-"] for r in done]
    head = ["seed", *(f"{split}{unit(table)}" for split in _SPLITS), "record"]
    notes = [f"{name}: {estimated(part, table)}{unit(table, ' %')}" for name, part in row.parts.items()]
    notes += [f"train - test {estimated(row.train_gap, table, '+')}"] if row.train_gap else []
    notes += [f"dominated by {', '.join(shown.row.dominated_by)}"] if shown.row.dominated_by else []
    text = fit(body, head, right=head[:-1]) + "\n\n" if body else ""
    return text + wrap(lines(notes, "terminal"))


def _score(value: float | None, table: Table) -> str:
    return figure(value, table) if isinstance(value, float) else "-"


def _curve(shown: Shown) -> str:
    table, points = shown.table, shown.row.curve
    if not points:
        return "none recorded"
    best = (max if table.higher_is_better else min)(points, key=lambda point: point.valid.mean)
    body = [
        [f"{p.step:,}", seconds(p.seconds), "-" if p.flops is None else short(p.flops), estimated(p.valid, table)]
        for p in _chosen(points, best)
    ]
    head = ["step", "s", "training FLOPs", f"valid{unit(table)}"]
    said = (
        f"the mean over seeds is best on validation at step {best.step:,} of {points[-1].step:,}; each seed is tested at its own "
        "best step"
    )
    return f"{fit(body, head, right=head)}\n\n{wrap(said)}"


def _chosen(points: Sequence[CurvePoint], best: CurvePoint) -> list[CurvePoint]:
    every = math.ceil(len(points) / _POINTS)
    return [point for at, point in enumerate(points) if at % every == 0 or point is best or at == len(points) - 1]


def _cost(shown: Shown) -> str:
    row = shown.row
    counted: Mapping[str, Any] = next((r.counted for r in shown.members if r.counted), {})
    body = [[name.replace("_", " "), _written(name, value), "counted"] for name, value in counted.items()]
    for name in dict.fromkeys(name for r in shown.members for name in r.measured):
        values = [r.measured[name] for r in shown.members if r.spec.seed in row.seeds and r.measured.get(name) is not None]
        body.append([name.replace("_", " "), _median(name, values), "measured"])
    protocol = [
        "counted: matrix products only, per example where the name says so, the same on every machine",
        f"measured: during training with batch size {shown.table.budget['batch_size']} under protocol {shown.table.protocol}; the "
        "median over seeds, with the smallest and the largest value; a step's median and interquartile range are over the steps of "
        "a run",
        f"measured on: {'; '.join(row.block.machines)}",
    ]
    absent = [name for name in ("step_seconds_median", "peak_bytes") if not any(name in r.measured for r in shown.members)]
    protocol += [f"not measured: {', '.join(name.replace('_', ' ') for name in absent)}"] if absent else []
    table = fit(body, ["quantity", "figure", "how"], right=["figure"]) + "\n\n" if body else ""
    return table + wrap(lines(protocol, "terminal"))


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
    beside = anchor_beside(shown.row.attention, shown.table.task)
    anchored = [anchor_line(beside)] if beside else []
    if compared is None or row is None:
        return wrap(lines(["no published score of this attention on this task is known", *anchored], "terminal"))
    told = difference_lines(compared, row)
    told += [f"{title}, known flaws: {'; '.join(compared.flaws[title])}" for title in row.figures if compared.flaws[title]]
    told += [] if row.spread is None else [f"the sources differ by {row.spread:.1f} points among themselves"]
    told += anchored
    return wrap(lines(told, "terminal"))


def _environment(members: Sequence[RunRecord]) -> str:
    """Return a table of the environments of all runs. The different values of each entry are on one line."""
    names = dict.fromkeys(name for r in members for name in r.environment)
    body = []
    for name in names:
        values = dict.fromkeys(str(r.environment.get(name)) for r in members if r.environment.get(name) is not None)
        if values:
            body.append([name.replace("_", " "), "; ".join(values)])
    return fit(body)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())

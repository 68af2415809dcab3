"""Text that ``attn-zoo show`` prints about one row, for a reviewer: status, score, seeds, data, code, machine, and the command that
repeats the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.metrics import digest_of, estimated, figure, unit, verdict_sentence
from attn_zoo.leaderboard.rank import tables
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.records import RunRecord
from attn_zoo.rows import read_rows
from attn_zoo.terminal import fit, shell, wrap

Shown = tuple[Table, Row]
"""Row of a leaderboard table, and the table."""


def find(wanted: str, records: Sequence[RunRecord]) -> list[Shown]:
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
    found = [(table, row) for table, row in every if _is_called(row, name) and task in ("", table.task["name"])]
    if not found:
        there = sorted({f"{row.label}@{table.task['name']}" for table, row in every})
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


def rows_of(records: Sequence[RunRecord]) -> list[Shown]:
    """Return all rows of the leaderboard tables made from these records."""
    return [(table, row) for table in tables(records) for row in table.rows]


def describe(table: Table, row: Row) -> str:
    """Return a description of a row as text: the facts that a reviewer checks, and the command that repeats its runs."""
    title = terminal(f"{row.label} on {table.task['title']}")
    return "\n\n".join([title, fit([list(fact) for fact in _reviewed(table, row)]), f"Run again with\n\n{_commands(table, row)}"])


def _reviewed(table: Table, row: Row) -> Iterator[tuple[str, str]]:
    """Yield names and facts in the order in which a reviewer asks for them."""
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
    for record in row.runs:
        score = figure(test, table) + percent if isinstance(test := record.scores.get("test"), float) else record.status
        yield f"seed {record.spec.seed}", f"{score}, run {record.run_id}"
    if row.warnings:
        yield "warnings", "; ".join(row.warnings)
    yield "data", _data(table)
    yield "code", "; ".join(dict.fromkeys(map(_code, row.runs)))
    yield "ran as", f"{row.implementation}, {table.precision} on {table.device}, protocol {table.protocol}"
    yield "machine", "; ".join(row.block.machines)


def _data(table: Table) -> str:
    part = table.data.get("test")
    if part is None:
        return f"{table.data_title}; never read, because no run got that far"
    return f"{table.data_title}; test of {part.get('examples', '?'):,} examples, {digest_of(part, 'SHA-256')}"


def _code(record: RunRecord) -> str:
    """Return the version and commit of the code that ran, whether it had uncommitted changes, and the digests of plugins."""
    there = record.environment
    version, commit = (there.get(name) or "unknown" for name in ("attn_zoo", "commit"))
    known: dict[Any, str] = {False: "clean", True: "dirty: with uncommitted changes"}
    state = known.get(there.get("dirty"), "unknown whether changed")
    plugins = [f"{name}, SHA-256 {digest}" for name, digest in (there.get("plugins") or {}).items()]
    return "; ".join([f"attn-zoo {version}, commit {commit}, {state}", *plugins])


def _commands(table: Table, row: Row) -> str:
    """Return the command that repeats all seeds, with notes on the plugins and on the data folder."""
    told = [shell(command(row.runs[0].spec, [record.spec.seed for record in row.runs]))]
    if plugins := dict.fromkeys(name for record in row.runs for name in record.environment.get("plugins") or {}):
        told.append(wrap(terminal(f"with these plugins, installed or given as plugin=PATH: {', '.join(plugins)}")))
    if table.data_title != "generated":
        told.append(wrap("with data.root=FOLDER if the data are in another folder than $ATTN_ZOO_DATA or data"))
    return "\n".join(told)

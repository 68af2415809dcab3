"""Notes below leaderboard tables: failures, warnings, settings, and explanations of columns and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.columns import columns
from attn_zoo.leaderboard.compare import METHOD
from attn_zoo.leaderboard.metrics import beyond_sizes, figure, optional, spent, training_length, unit
from attn_zoo.leaderboard.table import Row, Table, Verdict

COLUMNS_PAGE = "docs/reference/columns.md"
"""Page that explains every column and every statistic."""
_NAMED = 10
"""Greatest number of rows that a note on a page names."""


def table_notes(table: Table) -> list[str]:
    """Return the notes below the table of one task: failures, warnings, missing verdicts, budgets, data and settings."""
    notes = [f"{row.label}: {failure}" for row in table.rows for failure in row.failures]
    notes += [*warning_notes(table), *budget_notes(table), *tuned_notes(table, table.rows)]
    changed = ", ".join(f"{key}={value}" for key, value in table.task_options.items())
    budget, model, test = table.budget, table.model, table.data.get("test", {})
    notes.append(f"data: {table.data_title}")
    notes.append(
        f"task options {changed}; network dim={model['dim']} depth={model['depth']} heads={model['heads']}{beyond_sizes(model)}; "
        f"{training_length(budget)}; {table.precision} on {table.device}; "
        f"test split of {test.get('examples', '?')} examples, digest {str(test.get('digest', '?'))[:8]}"
    )
    return notes


def warning_notes(table: Table) -> list[str]:
    """Return the recorded warnings about rows, and the reasons why rows have no verdict."""
    notes = row_lines((row.label, warning) for row in table.rows for warning in row.warnings)
    notes += [table.judgement.reason] if table.judgement.reason else []
    notes += row_lines((row.label, row.unjudged) for row in table.rows if row.unjudged)
    notes += sorted({row.unsteady for row in table.rows if row.unsteady})
    if len({row.seeds for row in table.rows if row.test}) > 1:
        notes.append("rows were run with different seeds, so compare them with care")
    return notes


def tuned_notes(table: Table, rows: Sequence[Row]) -> list[str]:
    """Return a note for each row whose settings a search found, and a warning if rows had different numbers of trials."""
    notes = []
    for row in rows:
        tuning, tuned = row.tuning, row.tuned
        if tuning is not None:
            values = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in tuned.items()}
            found = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in values.items())
            failed = f" ({tuning.failed} of them without a score)" if tuning.failed else ""
            score = optional(tuning.best_valid, lambda value: figure(value, table) + unit(table, " %"))
            notes.append(
                f"{row.label}: {found}, best of {row.trials} trials{failed} by validation score ({score}, "
                f"seed {tuning.seed}); study {tuning.study}"
            )
    counts = grouped((row.trials, row.label) for row in rows)
    if notes and len(counts) > 1:
        told = "; ".join(f"{count}: {', '.join(labels)}" for count, labels in sorted(counts.items()))
        notes.append(
            f"rows were tuned with different numbers of trials ({told}), and more trials find better settings: compare with care"
        )
    return notes


def page_notes(table: Table) -> list[str]:
    """Return at most two notes below the table of one task in Markdown: cautions about rows, if any, and one note on data,
    network, training and test examples.

    ``table_notes`` returns all details.
    """
    rows = [row.label for row in table.rows if row.failures or row.warnings or row.unjudged]
    named = ", ".join(rows) if len(rows) <= _NAMED else f"{len(rows)} of {len(table.rows)} rows"
    cautions = [table.judgement.reason] if table.judgement.reason else []
    cautions += ["rows were run with different seeds"] if len({row.seeds for row in table.rows if row.test}) > 1 else []
    cautions += sorted({row.unsteady for row in table.rows if row.unsteady})
    cautions += [f"failed seeds, warnings or no verdict (run `attn-zoo show ROW` to see which): {named}"] if rows else []
    budget, model = table.budget, table.model
    network = f"network dim={model['dim']} depth={model['depth']} heads={model['heads']}{beyond_sizes(model)}"
    tested = f"{table.data.get('test', {}).get('examples', '?')} test examples"
    settings = f"data: {table.data_title}; {network}; {training_length(budget)}; {tested}"
    return [*(["; ".join(cautions)] if cautions else []), settings]


def page_legend(tables: Sequence[Table], overview: bool) -> list[str]:
    """Return the notes that stand once below all tables in Markdown. They name the page that explains every column.

    Args:
        overview: True if only the overview is shown.
    """
    learned = " 2/3 means that two of three seeds learned the task." if any(r.learned for t in tables for r in t.rows) else ""
    averaged = overview and len(tables) > 1 and not averages(tables).reason
    mean = " The average is the interquartile mean over tasks and seeds." if averaged else ""
    marks = (
        f"± is half of the 95 % interval over seeds.{learned}{mean} (c) marks a control. Columns and statistics: {COLUMNS_PAGE}."
    )
    said = [_protocols(tables), *_without_average(tables), *(_beaten_by_none(tables) if overview else [])]
    return [marks, " ".join(said), *(() if overview else _machines(tables))]


def _beaten_by_none(tables: Sequence[Table]) -> list[str]:
    """Return a sentence that names the tasks on which no mechanism is better than the best control. If there are none, the list is
    empty."""
    failing = {Verdict.NO_BETTER, Verdict.NOT_TRAINED}
    titles = [
        table.task["title"] for table in tables if (found := {row.verdict for row in table.rows} - {None}) and found <= failing
    ]
    return [f"No mechanism is better than the best control on {' and '.join(titles)}."] if titles else []


def footnotes(tables: Sequence[Table], overview: bool) -> list[str]:
    """Return the full explanation of the tables: how to read the numbers, and on which machines they were measured.

    Args:
        overview: True if only the overview is shown.
    """
    notes = [
        "± is half of the 95 % t interval of the mean over seeds; a single seed has no interval. (c) marks a control, which is a "
        "network that cannot select tokens by content. Chance is the test score of always giving the same answer: the most "
        "frequent class of the training labels or, in regression, their mean."
    ]
    if overview or len(tables) > 1:
        notes += _average_notes(tables)
        if any(row.learned for table in tables for row in table.rows):
            notes.append("2/3 beside a score means that two of three seeds learned the task.")
    if not overview:
        notes += _column_notes(tables)
    return [*notes, _protocols(tables)]


def _machines(tables: Sequence[Table]) -> list[str]:
    """Return the machines behind their short names. If there is only one machine, the result is empty."""
    machines = tables[0].machines if tables else {}
    if len(machines) < 2:
        return []
    said = "The runs are from several machines. Measured costs are compared only between rows of one machine and implementation."
    return [said, *(f"{short}: {machine}." for machine, short in machines.items())]


def short_legend(tables: Sequence[Table]) -> list[str]:
    """Return the notes that the terminal shows without ``--legend``: what the marks mean, the machines, and the protocol."""
    said = "± is half of the 95 % interval over seeds. (c) marks a control. Add --legend to explain every column."
    return [said, *_machines(tables), _protocols(tables)]


def _protocols(tables: Sequence[Table]) -> str:
    """Return the protocol and, for runs until the criterion, when a run ended."""
    caps = sorted({int(table.budget["steps"]) for table in tables if table.budget.get("ceiling")})
    ended = f" A run ends when it has learned the task, or after {' or '.join(f'{cap:,}' for cap in caps)} steps." if caps else ""
    versions = sorted({table.protocol for table in tables})
    return f"The runs follow protocol{'s' * (len(versions) > 1)} {' and '.join(versions)}.{ended}"


def _average_notes(tables: Sequence[Table]) -> list[str]:
    if len(tables) < 2 or averages(tables).reason:
        return _without_average(tables)
    said = (
        "The average is the interquartile mean over all tasks and seeds, with a bootstrap interval over seeds. Only rows that ran "
        "on every task without a failed seed have one."
    )
    return [" ".join([said, *_without_average(tables)])]


def _without_average(tables: Sequence[Table]) -> list[str]:
    """Return why there is no average over tasks, or which tasks the average leaves out."""
    found = averages(tables)
    if len(tables) < 2:
        return []
    if found.reason:
        return [f"No average over tasks: {found.reason}."]
    left = [str(table.task["title"]) for table in tables if table.task["title"] not in found.tasks]
    return [f"The average leaves out {', '.join(left)}."] if left else []


def _column_notes(tables: Sequence[Table]) -> list[str]:
    found = {column.head(table): column for table in tables for column in columns(table) if column.note and column.shown(table)}
    notes = [f"{head}: {column.note}." for head, column in found.items() if column.views]
    notes += [f"Verdicts: {METHOD}."] if any(table.judgement.reason is None for table in tables) else []
    return [*_machines(tables), *notes, *([_budget_note(tables)] if any(table.boards for table in tables) else [])]


def _budget_note(tables: Sequence[Table]) -> str:
    rows = [row for table in tables for row in table.rows]
    cosine = any(table.budget.get("schedule", "cosine") == "cosine" for table in tables)
    derived = any(not row.training_flops_counted and row.training_flops_per_example for row in rows)
    return (
        "Equal time and FLOPs: the best validation score that a row reached within the budget"
        f"{', although its learning-rate schedule was planned for all steps' if cosine else ''}. Equal memory: of each mechanism's "
        "rows whose training step fits the budget, the one with the best validation score, with its test score."
        f"{' If the FLOPs of training were not counted, they are estimated as three forward passes.' if derived else ''}"
    )


def budget_notes(table: Table) -> list[str]:
    """Return notes on how the budgets of a table were chosen, and the remarks on scores within a budget."""
    shown = {row.label for row in table.rows}
    rules = grouped((board.rule, board.cost) for board in table.boards.values())
    named = [(f"at equal {board.cost}", board) for board in table.boards.values()]
    named += [(f"after {spent('time', board.budget)}", board) for board in table.at]
    notes: list[str] = []
    for where, board in named:
        told = ((label, within.note) for label, within in board.rows.items() if within.score and within.note and label in shown)
        notes += [f"{where}, {line}" for line in row_lines(told)]
    chosen = "; ".join(f"for {' and '.join(costs)}, {rule}" for rule, costs in rules.items())
    return [f"equal budgets: {chosen}", *notes] if chosen else []


def seed_count(counts: Iterable[int]) -> str:
    """Return the numbers of seeds of several rows as text, such as ``3 seeds`` or ``1 to 3 seeds``."""
    known = sorted(set(counts))
    if not known:
        return "no seed"
    if len(known) > 1:
        return f"{known[0]} to {known[-1]} seeds"
    return "one seed" if known == [1] else f"{known[0]} seeds"


def row_lines(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line ``ROW, ROW: TEXT`` per text, with the labels of all rows that have this text.

    Args:
        said: pairs of a row's label and a text about the row.
    """
    return [f"{', '.join(labels)}: {text}" for text, labels in grouped((text, label) for label, text in said).items()]

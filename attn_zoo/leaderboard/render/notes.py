"""Notes beneath tables: failures, warnings, settings and the legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.display import LEGEND
from attn_zoo.leaderboard.render.costs import budget_notes
from attn_zoo.leaderboard.render.text import beyond_sizes, figure, grouped, training_length, unit
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.tuned import tuning_notes


def table_notes(table: Table) -> list[str]:
    """Notes of one task: failures, warnings, reasons for no rank, budgets, data and settings."""
    notes = [f"{row.label}: {failure}" for row in table.rows for failure in row.scores.failures]
    notes += [*warning_notes(table), *budget_notes(table), *tuned_notes(table, table.rows)]
    changed = ", ".join(f"{key}={value}" for key, value in table.task_options.items())
    budget, model, test = table.budget, table.model, table.data.get("test", {})
    notes.append(f"data: {table.data_title}")
    notes.append(
        f"task options {changed}; network dim={model['dim']} depth={model['depth']} heads={model['heads']}{beyond_sizes(model)}; "
        f"{training_length(budget)}; {table.precision} on {table.device}; "
        f"test split of {test.get('examples', '?')}, digest {str(test.get('digest', '?'))[:8]}"
    )
    return notes


def warning_notes(table: Table) -> list[str]:
    """Warnings about rows, and reasons for having no rank."""
    notes = grouped((row.label, warning) for row in table.rows for warning in row.warnings)
    notes += [table.ranking.reason] if table.ranking.reason else []
    notes += grouped((row.label, row.standing.unranked) for row in table.rows if row.standing.unranked)
    if len({row.scores.seeds for row in table.rows if row.scores.test}) > 1:
        notes.append("rows differ in their seeds; compare them with care")
    return notes


def tuned_notes(table: Table, rows: Sequence[Row]) -> list[str]:
    """Notes on the tuned settings of some rows of a table."""
    return tuning_notes(rows, lambda value: f"{figure(value, table)}{unit(table, ' %')}")


def footnotes(tables: Sequence[Table], machines: Mapping[str, str], overview: bool) -> list[str]:
    """Legend of all tables: how to read the figures, and the machines of measured ones."""
    notes = [
        "± is half of the 95 % t interval of the mean over seeds; one seed has none. (c) marks a control. Chance is the same "
        "answer to every question, the shares of the training labels."
    ]
    if overview or len(tables) > 1:
        notes += _of_averages(tables)
    if not overview:
        notes += _of_details(tables, machines)
    return [*notes, _protocols(tables)]


def machine_notes(machines: Mapping[str, str]) -> list[str]:
    """The machines behind the names of blocks; empty where there is one."""
    if len(machines) < 2:
        return []
    said = "Several machines took part: measured costs are compared within a block alone."
    return [said, *(f"{short}: {machine}." for machine, short in machines.items())]


def short_legend(tables: Sequence[Table], machines: Mapping[str, str]) -> list[str]:
    """Legend of the terminal where none is asked for: marks, machines and the protocol."""
    said = "± is half of the 95 % interval over seeds; (c) marks a control; --legend tells how to read every column."
    return [said, *machine_notes(machines), _protocols(tables)]


def _protocols(tables: Sequence[Table]) -> str:
    return f"Protocol {', '.join(sorted({table.protocol for table in tables}))}."


def _of_averages(tables: Sequence[Table]) -> list[str]:
    found = averages(tables)
    if len(tables) < 2:
        return []
    if found.reason:
        return [f"No average over tasks: {found.reason}."]
    left = [str(table.task["title"]) for table in tables if table.task["title"] not in found.tasks]
    return [
        "The average counts every task the same and stands where a row has every task with the same seeds, none failed; its "
        f"interval is over seeds.{' It leaves out ' + ', '.join(left) + '.' if left else ''}"
    ]


def _of_details(tables: Sequence[Table], machines: Mapping[str, str]) -> list[str]:
    notes = machine_notes(machines)
    for method in dict.fromkeys(table.ranking.method for table in tables if table.ranking.reason is None):
        notes.append(f"{method[0].upper()}{method[1:]}. Ranks are about this network, budget and test split.")
    notes.append("'over control' is the distance to the best control, paired by seed where there are several.")
    where = f" and are of {next(iter(machines))}" if len(machines) == 1 else ""
    notes.append(
        "FLOPs are of one forward pass and count matrix products; training time (median ± half the range over seeds), examples/s "
        f"and peak memory are measured in training{where}."
    )
    notes.append(
        f"'front': costs ({LEGEND}) for which no row scores better for as little. 'dominated by': rows that are no worse "
        "in mean score and in every cost, and cheaper or better beyond noise. Between blocks of implementations and machines only "
        "parameters and FLOPs are compared."
    )
    if any(table.boards for table in tables):
        notes.append(_of_boards(tables))
    return notes


def _of_boards(tables: Sequence[Table]) -> str:
    rows = [row for table in tables for row in table.rows]
    cosine = any(table.budget.get("schedule", "cosine") == "cosine" for table in tables)
    derived = any(not row.costs.training_flops_counted and row.costs.training_flops_per_example for row in rows)
    return (
        "Equal time and FLOPs: the best validation score seen while training had spent no more"
        f"{', under a learning rate planned for all steps' if cosine else ''}. Equal memory: of each attention the row that is "
        "best on validation among those whose training step fits, by its test score."
        f"{' FLOPs of training are taken as three forward passes where they were not counted.' if derived else ''}"
    )

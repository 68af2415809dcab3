"""What the rows of a task cost, and what they reach at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attn_zoo.leaderboard.render.text import estimated, figure, mebibytes, name, optional, seconds, short, tabulated, unit
from attn_zoo.leaderboard.rows import COSTS, Board, Entry, Row, Table

_FRONTS = {cost: cost[0].upper() for cost in COSTS}
_BUDGETS: Mapping[str, Callable[[float], str]] = {
    "time": lambda budget: f"{seconds(budget)} s",
    "FLOPs": lambda budget: f"{short(budget)}FLOPs",
    "memory": mebibytes,
}


def machine_names(tables: Sequence[Table]) -> dict[str, str]:
    """A short name for each machine that took part."""
    machines = sorted({machine for table in tables for row in table.rows for machine in row.machines})
    return {machine: f"machine {at + 1}" for at, machine in enumerate(machines)}


def costs_table(table: Table, machines: Mapping[str, str], format: str) -> str:
    """Scores against costs; rows whose measured costs must not be compared stand in blocks of their own."""
    metric = table.task["metric"] + unit(table)
    head = ["attention", metric, "parameters", "FLOPs/example", "training (s)", "examples/s", "peak memory"]
    head += ["front", "dominated by"]
    body = _in_blocks([(row, _costs(row, table)) for row in table.rows], machines)
    return tabulated(f"{table.task['title']}, costs", head, body, format)


def budgets_table(table: Table, machines: Mapping[str, str], format: str) -> str:
    """Scores at equal budgets, which stand above the rows they are of; empty where the records know of none."""
    boards = list(table.boards.values())
    if not boards:
        return ""
    head = ["attention", *(f"{board.score} at equal {board.cost}{unit(table)}" for board in boards)]

    def budgets(block: str) -> list[str]:
        return [optional(board.budgets.get(block), _BUDGETS[board.cost]) for board in boards]

    body = _in_blocks(_entries(table, boards), machines, budgets, "budget")
    return tabulated(f"{table.task['title']}, at equal budgets", head, body, format)


def times_table(table: Table, machines: Mapping[str, str], format: str) -> str:
    """Validation scores after each time of training that was asked for; empty where none was, or no record has a curve."""
    if not table.at:
        return ""
    head = ["attention", *(f"after {optional(board.budget, _BUDGETS['time'])}{unit(table)}" for board in table.at)]
    title = f"{table.task['title']}, best validation score by time of training"
    return tabulated(title, head, _in_blocks(_entries(table, table.at), machines), format)


def budget_notes(table: Table) -> list[str]:
    """How the budgets were chosen, and what to know of some entries."""
    rules: dict[str, list[str]] = {}
    notes: list[str] = []
    shown = {row.label for row in table.rows}
    for board in table.boards.values():
        rules.setdefault(board.rule, []).append(board.cost)
    named = [(f"at equal {board.cost}", board) for board in table.boards.values()]
    named += [(f"after {optional(board.budget, _BUDGETS['time'])}", board) for board in table.at]
    for where, board in named:
        told: dict[str, list[str]] = {}
        for entry in board.entries:
            if entry.score and entry.note and entry.label in shown:
                told.setdefault(entry.note if board.cost == "memory" else "spent less than the budget", []).append(entry.label)
        notes += [f"{where}, {', '.join(labels)}: {note}" for note, labels in told.items()]
    chosen = "; ".join(f"of {' and '.join(costs)} {rule}" for rule, costs in rules.items())
    return [f"equal budgets: {chosen}", *notes] if chosen else []


def fronts_legend() -> str:
    """What the letters in the column of fronts stand for."""
    return ", ".join(f"{letter} {cost}" for cost, letter in _FRONTS.items())


def _costs(row: Row, table: Table) -> list[str]:
    first, *others = row.dominated_by or ("-",)
    span = row.train_seconds_range
    half = None if span is None or len(row.seeds) < 2 else (span[1] - span[0]) / 2
    return [
        name(row),
        "-" if row.score is None else figure(row.score.mean, table),
        optional(row.parameters, short),
        optional(row.flops_per_example, short),
        optional(row.train_seconds, lambda value: seconds(value, half)),
        optional(row.examples_per_second, lambda value: f"{value:,.0f}"),
        optional(row.peak_bytes, mebibytes),
        " ".join(_FRONTS[cost] for cost in row.fronts) or "-",
        first + (f" +{len(others)}" if others else ""),
    ]


def _entries(table: Table, boards: Sequence[Board]) -> list[tuple[Row, list[str]]]:
    """Cells of each row: its name, and the score that it has on each board."""
    entries = [{entry.label: entry for entry in board.entries} for board in boards]
    return [(row, [name(row), *(_reached(known.get(row.label), table) for known in entries)]) for row in table.rows]


def _reached(entry: Entry | None, table: Table) -> str:
    if entry is None or entry.score is None:
        return "over" if entry and entry.over else "-"
    return estimated(entry.score, table)


def _in_blocks(
    lines: Sequence[tuple[Row, list[str]]],
    machines: Mapping[str, str],
    above: Callable[[str], list[str]] | None = None,
    alone: str | None = None,
) -> list[list[str]]:
    """Cells of rows, each block under its name where there are several.

    Args:
        above: cells that stand above a block, by its name, without the first one.
        alone: what the first of those cells says where there is one block.
    """
    blocks = sorted({row.block for row, _ in lines})
    body = []
    for block in blocks:
        members = [(row, cells) for row, cells in lines if row.block == block]
        first, width = members[0][0], len(members[0][1])
        where = " + ".join(machines[machine] for machine in first.machines) if len(machines) > 1 else ""
        title = f"[{first.measured_as}{', ' + where if where else ''}]" if len(blocks) > 1 else alone
        if title:
            body.append([title, *(above(block) if above else [""] * (width - 1))])
        body += [cells for _, cells in members]
    return body

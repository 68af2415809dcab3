"""Grids of the costs of rows, and of their scores at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.display import Column
from attn_zoo.leaderboard.render.text import Grid, estimated, name, row_lines, spent, unit
from attn_zoo.leaderboard.rows import Block, Board, Entry, Row, Table


def machine_names(tables: Sequence[Table]) -> dict[str, str]:
    """Short name of each machine on which rows were measured."""
    machines = sorted({machine for table in tables for row in table.rows for machine in row.costs.block.machines})
    return {machine: f"machine {at + 1}" for at, machine in enumerate(machines)}


def costs_grid(table: Table, found: Mapping[str, Column], machines: Mapping[str, str]) -> Grid:
    """Grid of scores and costs; rows whose measured costs must not be compared are in separate blocks."""
    names = ("attention", "mean", "parameters", "flops", "time", "speed", "memory", "front", "dominated")
    lines = [(row, [found[name].cell(row).text for name in names]) for row in table.rows]
    optional = [found[name].head for name in ("dominated", "speed", "parameters", "front")]
    return Grid(f"{table.task['title']}, costs", [found[name].head for name in names], _in_blocks(lines, machines), optional)


def budgets_grid(table: Table, machines: Mapping[str, str]) -> Grid:
    """Grid of scores at equal budgets, with the budgets above their rows; without rows where the table has no boards."""
    boards = list(table.boards.values())
    head = ["attention", *(f"{board.score} at equal {board.cost}{unit(table)}" for board in boards)]

    def budgets(block: Block) -> list[str]:
        return [spent(board.cost, board.budgets.get(block)) for board in boards]

    body = _in_blocks(_entries(table, boards), machines, budgets, "budget") if boards else []
    return Grid(f"{table.task['title']}, at equal budgets", head, body)


def times_grid(table: Table, machines: Mapping[str, str]) -> Grid:
    """Grid of validation scores after each requested training time; without rows if none is requested or no record has a curve."""
    head = ["attention", *(f"after {spent('time', board.budget)}{unit(table)}" for board in table.at)]
    body = _in_blocks(_entries(table, table.at), machines) if table.at else []
    return Grid(f"{table.task['title']}, best validation score by time of training", head, body)


def budget_notes(table: Table) -> list[str]:
    """Notes on how the budgets were chosen, and on entries that need an explanation."""
    notes: list[str] = []
    shown = {row.label for row in table.rows}
    rules = grouped((board.rule, board.cost) for board in table.boards.values())
    named = [(f"at equal {board.cost}", board) for board in table.boards.values()]
    named += [(f"after {spent('time', board.budget)}", board) for board in table.at]
    for where, board in named:
        told = ((entry.label, entry.note) for entry in board.entries if entry.score and entry.note and entry.label in shown)
        notes += [f"{where}, {line}" for line in row_lines(told)]
    chosen = "; ".join(f"for {' and '.join(costs)}, {rule}" for rule, costs in rules.items())
    return [f"equal budgets: {chosen}", *notes] if chosen else []


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
    above: Callable[[Block], list[str]] | None = None,
    alone: str | None = None,
) -> list[list[str]]:
    """Cells of rows, each block under its name where there are several.

    Args:
        above: function of a block that returns the cells above it, without the first one.
        alone: text of the first of those cells where there is only one block.
    """
    blocks = sorted({row.costs.block for row, _ in lines}, key=str)
    body = []
    for block in blocks:
        members = [cells for row, cells in lines if row.costs.block == block]
        title = f"[{block.named(machines)}]" if len(blocks) > 1 else alone
        if title:
            body.append([title, *(above(block) if above else [""] * (len(members[0]) - 1))])
        body += members
    return body

"""What the rows of a task score, and over what."""

from __future__ import annotations

from attn_zoo.leaderboard.render.text import estimated, figure, name, score, tabulated, unit
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.tuned import trial_count


def scores_table(table: Table, format: str) -> str:
    """Ranks, scores, margins over chance and the best control, and the distance from training to test."""
    chance = "unknown" if table.chance is None else figure(table.chance, table) + unit(table, " %")
    title = f"{table.task['title']}: {table.task['length']} positions, chance {chance}"
    if table.best_control is not None:
        title += f", best control {table.control} {figure(table.best_control, table)}{unit(table, ' %')}"
    head = ["attention", table.task["metric"] + unit(table), "over chance", "over control", "train - test", "seeds"]
    body = [_line(row, table) for row in table.rows]
    if any(row.tuning for row in table.rows):
        head.append("trials")
        body = [[*line, str(trial_count(row) or "-")] for row, line in zip(table.rows, body, strict=True)]
    if table.ranking.reason is None:
        head = ["rank", *head]
        body = [[row.place, *line] for row, line in zip(table.rows, body, strict=True)]
    return tabulated(title, head, body, format)


def _line(row: Row, table: Table) -> list[str]:
    total = len(row.seeds) + len(row.failures)
    seeds = str(total) if not row.failures else f"{len(row.seeds)} of {total}"
    over_chance = "-" if row.over_chance is None else figure(row.over_chance.mean, table, "+")
    return [
        name(row),
        score(row, table),
        over_chance,
        estimated(row.margin, table, "+"),
        estimated(row.train_gap, table, "+"),
        seeds,
    ]


def parts_table(table: Table, format: str) -> str:
    """Scores of the parts of the test that the task names; empty where it names none."""
    names = list(dict.fromkeys(part for row in table.rows for part in row.parts))
    if not names:
        return ""
    body = [[name(row), *(estimated(row.parts.get(part), table) for part in names)] for row in table.rows]
    return tabulated(f"{table.task['title']}, by part of the test", ["attention", *names], body, format)


def seeds_table(table: Table, format: str) -> str:
    """The test score of every seed."""
    seeds = sorted({seed for row in table.rows for seed in row.seeds})
    body = [
        [name(row), *(figure(row.by_seed[seed], table) if seed in row.by_seed else "-" for seed in seeds)] for row in table.rows
    ]
    head = ["attention", *(f"seed {seed}" for seed in seeds)]
    return tabulated(f"{table.task['title']}, by seed", head, body, format)

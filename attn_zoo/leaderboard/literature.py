"""Recorded scores beside published scores of the same mechanisms on the same task, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from attn_zoo.checks import check_text
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.metrics import style
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import Grid, tabulated
from attn_zoo.published import SCORE, Anchor, Figure, Source, anchors, figures, published_for
from attn_zoo.terminal import FORMATS

_COMPARED = {
    "direction": "direction",
    "data": "data",
    "length": "length",
    "depth": "depth",
    "dim": "width",
    "heads": "heads",
    "ffn": "feed-forward width",
    "steps": "steps",
    "batch_size": "batch",
    "optimiser": "optimiser",
    "learning_rate": "learning rate",
    "schedule": "schedule",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "dropout": "dropout",
    "chosen_on": "weights chosen on",
}
"""Printed names of the compared fields of ``Protocol``, in the order in which differences are listed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Setting in which a published experiment differs from ours."""

    setting: str
    there: str | None
    """Published value; None if the source does not state it."""
    here: str


@dataclass(frozen=True, slots=True)
class Published:
    """Published scores of one source for one row of a recorded table."""

    row: Row
    source: Source
    figures: Sequence[Figure]
    """Published scores. A source that varies an option has several."""
    differences: tuple[Difference, ...]
    """Settings in which the source differs from the row."""

    def __str__(self) -> str:
        said = "; ".join(phrases(self.differences))
        return f"{self.source.title}: {printed(self.figures)} ({self.source.cite}); {said}"


def literature(table: Table, attention: str | None = None) -> list[Published]:
    """Return the published scores for the task of a table, by row and source.

    Args:
        attention: mechanism whose rows are compared; None for all rows.
    """
    made = []
    for row in (row for row in table.rows if attention in (None, row.attention)):
        known = published_for(table.task["name"], row.attention)
        for source, members in grouped((figure.source, figure) for figure in known).items():
            ours = facts(table, row)
            differences = dict.fromkeys(each for figure in members for each in protocol_difference(figure, ours))
            made.append(Published(row, source, members, tuple(differences)))
    return made


def facts(table: Table, row: Row) -> dict[str, Any]:
    """Return the settings of a recorded row by the names of the fields of ``Protocol``, with ``metric``, ``seeds`` and ``options``
    of the mechanism."""
    model, budget = table.model, {**table.budget, **{key.removeprefix("budget."): value for key, value in row.tuned.items()}}
    ends = [run.curve[-1]["step"] for run in row.runs if run.spec.seed in row.by_seed and run.curve]
    open_ended = budget.get("seconds") or budget.get("until") == "criterion"  # then the budget has the largest number of steps
    return {
        "metric": table.task["metric"],
        "seeds": len(row.seeds),
        "data": table.data_title,
        "direction": "causal" if table.task.get("causal") else "bidirectional",
        "length": table.task["length"],
        "depth": model["depth"],
        "dim": model["dim"],
        "heads": row.heads or model["heads"],
        "ffn": round(model["dim"] * model["mlp_ratio"]),
        "steps": round(median(ends)) if open_ended and ends else budget["steps"],
        **{name: budget[name] for name in ("batch_size", "learning_rate", "warmup_steps", "weight_decay")},
        "dropout": model["dropout"],
        "options": row.options,
        "optimiser": "AdamW",  # as every protocol so far
        "schedule": budget.get("schedule", "cosine"),
        "chosen_on": "a validation split",
    }


def protocol_difference(figure: Figure, ours: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings in which a published score differs from ours, and after them those that the source does not state.

    Args:
        ours: settings of a recorded row, as ``facts`` returns them. Missing settings are not compared.
    """
    options = ours.get("options", {})
    known: list[tuple[str, Any, Any]] = [("metric", figure.metric, ours["metric"])]
    known += [(title, getattr(figure.protocol, name), ours.get(name)) for name, title in _COMPARED.items()]
    known += [(option, there, options.get(option)) for option, there in figure.options.items()]
    known.append(("seeds", figure.source.seeds, ours["seeds"]))
    if set(options) - {"dropout"} and not figure.options:
        known.append(("options of the attention", None, "known"))
    found = [
        Difference(setting, None if there is None else _formatted(there), _formatted(here))
        for setting, there, here in known
        if here is not None and there != here
    ]
    return tuple(sorted(found, key=lambda difference: difference.there is None))


def phrases(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return differences as phrases, such as ``length 2,000 there, 256 here``. The last phrase lists the settings that the source
    does not state."""
    differences = list(differences)
    told = [f"{each.setting} {each.there} there, {each.here} here" for each in differences if each.there is not None]
    unknown = [each.setting for each in differences if each.there is None]
    return (*told, *([f"not given there: {', '.join(unknown)}"] if unknown else []))


def _formatted(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def printed(found: Sequence[Figure]) -> str:
    """Return a published score as its source prints it. If there are several scores, return their range."""
    low, high = min(found, key=lambda f: f.value), max(found, key=lambda f: f.value)
    return low.printed if low.value == high.value else f"{low.printed} to {high.printed}"


def render_published(tables: Sequence[Table], format: str = "terminal", *, attention: str | None = None) -> str:
    """Return recorded scores beside the published scores of each source, as text.

    For each task, a second table shows the settings in which the sources differ from ours. A last table has the sources with their
    known flaws.

    Args:
        format: one of ``terminal.FORMATS``.
        attention: mechanism whose rows are shown; None for all.

    Raises:
        ValueError: there is no such format.
    """
    check_text("format with --published", format, FORMATS)
    found = [(table, known) for table in tables if (known := literature(table, attention))]
    if not found:
        there = sorted({figure.task for figure in figures(metric=SCORE) if figure.task})
        return f"No published scores are known for these tables; there are published scores for {', '.join(there)}."
    grids = [*(grid for table, known in found for grid in _of_task(table, known)), _sources(found)]
    return "\n\n".join(tabulated(grid, format) for grid in grids)


def _of_task(table: Table, known: Sequence[Published]) -> Iterator[Grid]:
    """Yield the scores of one task, and the settings that differ."""
    task, sources, body = table.task, dict.fromkeys(each.source for each in known), []
    for row in table.rows:
        if not (own := {each.source: each.figures for each in known if each.row is row}):
            continue
        values, ours = [figure.value for members in own.values() for figure in members], "-"
        if row.test is not None:
            ours = f"{row.test.written(*style(task['metric']))} ({row.test.count} seed{'s' * (row.test.count > 1)})"
        theirs = [printed(own[source]) if source in own else "-" for source in sources]
        body.append([row.label, ours, *theirs, f"{max(values) - min(values):.1f}" if len(own) > 1 else "-"])
    head = ["attention", f"ours, {task['metric']} (%)", *(f"{s.title} {s.year}" for s in sources), "spread of sources"]
    yield Grid(f"{task['title']}: ours beside the literature (accuracy in %, as printed)", head, body)
    if settings := _settings(known, list(sources)):
        yield Grid(f"{task['title']}: settings", ["setting", "ours", *(source.title for source in sources)], settings)


def _settings(known: Sequence[Published], sources: Sequence[Source]) -> list[list[str]]:
    """Return a line for each setting in which a source differs: first the differences from all rows, then those from one row."""
    of_all = {source: set.intersection(*(set(each.differences) for each in known if each.source == source)) for source in sources}
    several = len({each.row.label for each in known}) > 1
    cells: dict[tuple[str, str], dict[Source, list[str]]] = {}
    for shared in (True, False):
        for row, source, each in ((one.row, one.source, each) for one in known for each in one.differences):
            if (each in of_all[source]) == shared:
                name = f"{each.setting} of {row.label}" if several and not shared else each.setting
                told = cells.setdefault((name, each.here), {}).setdefault(source, [])
                told += [there] if (there := each.there or "not given") not in told else []
    return [[*setting, *(" and ".join(found.get(source, ["same"])) for source in sources)] for setting, found in cells.items()]


def _sources(found: Sequence[tuple[Table, Sequence[Published]]]) -> Grid:
    """Return a table of the sources of all tasks, with their known flaws and notes."""
    body = []
    for source in dict.fromkeys(each.source for _, known in found for each in known):
        titles, flaws = [], dict[str, list[str]]()
        for table, known in found:
            if members := [figure for each in known if each.source == source for figure in each.figures]:
                titles.append(table.task["title"])
                for flaw in dict.fromkeys(
                    [*(f for m in members for f in m.protocol.flaws), *(n for m in members for n in m.notes)]
                ):
                    flaws.setdefault(flaw, []).append(table.task["title"])
        named = [flaw if len(tasks) == len(titles) else f"{', '.join(tasks)}: {flaw}" for flaw, tasks in flaws.items()]
        seeds = "not stated" if source.seeds is None else str(source.seeds)
        body.append([source.title, source.cite, source.hardware, seeds, "; ".join([*source.flaws, *named])])
    return Grid("Sources", ["source", "publication", "hardware", "seeds", "known flaws and notes"], body)


def anchor_beside(attention: str, task: Mapping[str, Any]) -> Anchor | None:
    """Return the anchor of a mechanism: a published score on another task, shown beside the mechanism's score on ``task``. Return
    None if it has no anchor, or if the published score is on ``task`` itself.

    Args:
        task: recorded card of the task.
    """
    found = anchors().get((attention, bool(task.get("causal"))))
    return None if found and found.figure and found.figure.task == task["name"] else found


def anchor_line(found: Anchor) -> str:
    """Return a line about an anchor: the published score, its task and source, and how the published experiment differs from
    ours."""
    score, task, source = _anchored(found)
    return f"anchor: {score} on {task} ({source}); {found.differs}" if found.figure else f"anchor: {score}; {found.differs}"


def anchor_table(format: str) -> str:
    """Return a table of all anchors (published scores that ours are compared with) as text. It has one row per mechanism and
    direction (causal or bidirectional)."""
    head = ["attention", "direction", "published score", "task", "source", "how it differs"]
    body = [
        [name, "causal" if causal else "bidirectional", *_anchored(found), found.differs]
        for (name, causal), found in anchors().items()
    ]
    return tabulated(Grid("Published scores beside the main rows", head, body), format)


def _anchored(found: Anchor) -> tuple[str, str, str]:
    """Return the published score of an anchor with its unit, its task, and its source, as text."""
    figure = found.figure
    if figure is None:
        return "none found", "-", "-"
    cite = figure.source.cite
    return f"{figure.printed} {figure.unit}", found.task, cite if cite.endswith(figure.where) else f"{cite}, {figure.where}"

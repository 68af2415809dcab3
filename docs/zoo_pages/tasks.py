"""The page of a task, from its card, its docstring, an example and the boards that were measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from attn_zoo.cli.listing import inputs_in_words
from attn_zoo.contract import DataSet, Frames, Patches, Task, TaskCard, Tokens, scored
from attn_zoo.leaderboard import render as render_tables
from attn_zoo.leaderboard.metrics import written
from attn_zoo.registry import task_card, task_names
from zoo_pages.results import BOARDS, Results, shown_sets
from zoo_pages.templating import render
from zoo_pages.texts import aligned, docstring, options, prose, table, values

_SHOWN = 64
"""Tokens of an example that are shown."""
_FRAMES = 8
"""Frames of an example that are shown at either end."""
_GREYS = " .:+*#@"


def task_page(name: str, results: Results, folder: Path) -> str:
    """Markdown of one task's page.

    Args:
        folder: where the page will lie, to reach the source file from.
    """
    card = task_card(name)
    module = sys.modules[card.build.__module__]
    built = card.build(card.options())
    boards = results.boards_of(name)
    return render(
        "task.md.j2",
        card=card,
        commands=commands(card),
        summary=prose(card.summary),
        source_of_data=prose(card.source),
        licence=prose(card.licence),
        data=built.data_title,
        inputs=inputs_in_words(card),
        causal=built.spec.causal,
        doc=docstring(card.build),
        options=options(card.options),
        levels=_levels(card),
        datasets=[(dataset, _places(dataset)) for dataset in card.datasets],
        example=_example(card),
        chances=list(dict.fromkeys(written(board.chance, card.metric) for _, board in boards if board.chance is not None)),
        boards=[(folder_, BOARDS[folder_], aligned(render_tables([board], "github"))) for folder_, board in boards],
        sets=shown_sets(),
        module=card.build.__module__,
        qualname=card.build.__qualname__,
        source=os.path.relpath(str(module.__file__), folder),
        source_name=card.build.__module__.replace("attn_zoo.tasks", "tasks").replace(".", "/") + ".py",
    )


def task_index(table_of_all: str) -> str:
    """Markdown of the page that lists the tasks."""
    names = task_names()
    for each in names:
        table_of_all = table_of_all.replace(f"| `{each}` ", f"| [`{each}`]({each}.md) ", 1)
    return render("tasks.md.j2", names=names, table=table_of_all)


def board(results: Results) -> str:
    """Recall (MQAR) of the quickstart, to be read column by column."""
    made = [table for folder, table in results.boards_of("mqar") if folder == "quickstart"]
    return aligned(render_tables(made, "github")) + "\n" if made else "The committed records hold no run of it.\n"


def commands(card: TaskCard) -> tuple[str, ...]:
    """Every command on a task's page."""
    return (f"attn-zoo run task={card.name} attention=linformer level=smoke", f"attn-zoo list {card.name}")


def _levels(card: TaskCard) -> str:
    rows = [
        [f"`{name}`", values(level.options), values(level.model), values(level.budget), prose(level.differs) or "-"]
        for name, level in card.levels.items()
    ]
    return table(["level", "options", "network", "budget", "differs from the published set-up"], rows)


def _places(dataset: DataSet[object]) -> str:
    """Where its files are looked for below the data folder, a bullet a layout."""
    return "\n".join(
        f"- {layout.title}: " + ", ".join(" or ".join(f"`{name}`" for name in names) for names in layout.files)
        for layout in dataset.layouts
    )


def _example(card: TaskCard) -> str:
    """The first training example of the smallest level as text; empty where that would need data that a user must provide."""
    options_ = card.options(**card.levels["smoke"].options) if "smoke" in card.levels else card.options()
    task = card.build(options_)
    if task.data_title != "generated" and card.locations:
        return ""
    return _read(task)


def _read(task: Task) -> str:
    batch = task.examples("train").batch([0])
    spec = task.spec
    own = getattr(sys.modules[type(task).__module__], "render", None)
    if isinstance(spec.inputs, Patches):
        return f"{_greys(batch.inputs[0].mean(0))}\n\nlabel {int(batch.labels)}"
    ids = batch.inputs[0]
    if spec.labels == "position":
        asked = scored(batch.labels)[0].nonzero()[:, 0].tolist()
        said = ", ".join(f"{_label(batch.labels[0][at])} at {at}" for at in asked[:8])
        labels = f"asked at {len(asked)} of {len(ids)} positions (counted from 0): {said}{', ...' if len(asked) > 8 else ''}"
    else:
        labels = f"label {_label(batch.labels[0])}"
    if isinstance(spec.inputs, Frames):
        return f"{_frames(ids if batch.valid is None else ids[batch.valid[0]])}\n\n{labels}"
    assert isinstance(spec.inputs, Tokens), "pairs are read from published data"
    shown = own(ids) if own else " ".join(map(str, ids[:_SHOWN].tolist())) + (" ..." if len(ids) > _SHOWN else "")
    return f"{shown}\n\n{labels}"


def _label(label: torch.Tensor) -> str:
    """A class, or the numbers of a label."""
    return " ".join(f"{number:g}" for number in label.reshape(-1).tolist())


def _frames(frames: torch.Tensor) -> str:
    """A line a frame, the first and the last ones."""
    lines = [" ".join(f"{number:5.2f}" for number in frame) for frame in frames.tolist()]
    return "\n".join(lines if len(lines) <= 2 * _FRAMES else [*lines[:_FRAMES], "...", *lines[-_FRAMES:]])


def _greys(image: torch.Tensor) -> str:
    """Levels of grey as characters, two a pixel."""
    scaled = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-9) * (len(_GREYS) - 1)
    return "\n".join("".join(2 * _GREYS[level] for level in row) for row in scaled.round().int().tolist())

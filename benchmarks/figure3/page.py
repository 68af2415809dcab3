"""Report on Figure 3 of the Linformer paper: verdicts on its claims, and perplexities of all cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.terminal import table
from figure3.cells import REPEATED, SHARINGS, TEST, Arm, Cell, Figure
from figure3.claims import CLAIMS, Claim, Verdict

DEFAULT_START = "default initialisation"
"""Name of an initialisation of E and F with the default options."""


def figure3_page(figure: Figure, format: str = "terminal") -> str:
    """Return the report on Figure 3 as text: verdicts on the paper's claims, and the perplexities of all cells.

    Args:
        format: ``terminal`` or ``github``.
    """
    found = verdicts(figure)
    sections = grouped((arm.layer, arm) for arm in found).items()
    parts = [part for layer, arms in sections for part in _section(figure, layer, {arm: found[arm] for arm in arms}, format)]
    if figure.cells:
        parts.append("- Brackets have the number of seeds. Method: docs/reports/linformer.md#how-the-verdicts-are-reached.")
    return "\n\n".join(parts)


def figure3_data(figure: Figure) -> dict[str, Any]:
    """Return the verdicts, and the perplexity and record ids of each cell, as plain data."""
    return {
        "claims": [
            {"panels": claim.panels, "claim": claim.text, "arm": arm.name, "verdict": verdict.word, "why": verdict.why}
            for arm, found in verdicts(figure).items()
            for claim, verdict in found.items()
        ],
        "cells": [
            {
                "arm": cell.arm.name,
                "length": cell.length,
                "attention": cell.attention,
                "k": cell.k,
                "sharing": cell.sharing,
                "perplexity": runs.scores(),
                "perplexity_repeated": runs.scores(REPEATED),
                "run_ids": {seed: record.run_id for seed, record in runs.by_seed.items()},
            }
            for cell, runs in figure.cells.items()
        ],
    }


def verdicts(figure: Figure) -> dict[Arm, dict[Claim, Verdict]]:
    """Return the verdict on each claim of the paper in each arm (setting of convolution and initialisation). Without records for a
    claim, it is ``not run``."""
    return {arm: {claim: claim.judge(figure, arm) for claim in CLAIMS} for arm in figure.arms or [Arm()]}


def _section(figure: Figure, layer: str, found: Mapping[Arm, Mapping[Claim, Verdict]], format: str) -> Iterable[str]:
    """Verdicts and perplexities of the arms with one setting of the layer, in columns by the initialisation of E and F."""
    starts = {arm.start or DEFAULT_START: of_arm for arm, of_arm in found.items()}
    yield f"{layer.capitalize()}:"
    rows = [
        [claim.panels, claim.text, start, of_arm[claim].word, of_arm[claim].why]
        for claim in CLAIMS
        for start, of_arm in starts.items()
    ]
    head = ["panel", "the paper says", "initialisation", "verdict", "evidence"]
    yield table(head, rows, format, left=range(len(head)))
    if cells := _cell_rows(figure, list(found)):
        head = ["n", "row", *(f"{start}{part}" for start in starts for part in ("", " (repeated)", " (rate)"))]
        yield table(head, cells, format, left=range(len(head)))


def _cell_rows(figure: Figure, arms: Sequence[Arm]) -> list[list[str]]:
    """Perplexities and learning rates of every cell of the arms, for each arm."""
    layers = {arm.convolution for arm in arms}
    rows = sorted({replace(cell, arm=Arm()) for cell in figure.cells if cell.arm.convolution in layers}, key=_place)
    return [[f"{cell.length:,}", cell.label, *(text for arm in arms for text in _figures(figure, cell, arm))] for cell in rows]


def _place(cell: Cell) -> tuple[Any, ...]:
    """Order of rows: by length; softmax, the controls, then Linformer by projected length and sharing."""
    return cell.length, cell.k, SHARINGS.index(cell.sharing) if cell.k else 0, cell.attention != "softmax", cell.attention


def _figures(figure: Figure, cell: Cell, arm: Arm) -> list[str]:
    """Perplexities of a cell on all test tokens and on repeated ones, and its learning rate."""
    runs = figure.find(arm, cell.length, cell.attention, cell.k, cell.sharing)
    if runs is None:
        return ["-"] * 3
    scores = [runs.perplexity(part) for part in (TEST, REPEATED)]
    rates = sorted({record.spec.budget.learning_rate for record in runs.by_seed.values()})
    return [f"{score.written('.1f')} ({score.count})" if score else "-" for score in scores] + [
        "/".join(f"{rate:g}" for rate in rates)
    ]

"""Report on Figure 3 of the Linformer paper: verdicts on its claims, and perplexities of all cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import SEEDS_NEEDED
from attn_zoo.leaderboard.statistics import CONFIDENCE
from attn_zoo.terminal import table
from figure3.cells import REPEATED, SHARINGS, TEST, Arm, Cell, Figure
from figure3.claims import CLAIMS, NEAR, NOT_RUN, Claim, Verdict

DEFAULT_START = "default initialisation"
"""Name of an initialisation of E and F with the default options."""


def figure3_page(figure: Figure, format: str = "terminal") -> str:
    """Return the report on Figure 3 as text: verdicts on the paper's claims, and the perplexities of all cells.

    Args:
        format: ``terminal`` or ``github``.
    """
    found = verdicts(figure)
    parts: list[str] = []
    for layer, arms in grouped((arm.layer, arm) for arm in found).items():
        parts += _section(figure, layer, {arm: found[arm] for arm in arms}, format)
    if figure.cells:
        parts.append(_list(_notes(figure)))
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
    rows = [[claim.panels, claim.text, *(of_arm[claim].word for of_arm in starts.values())] for claim in CLAIMS]
    head = ["panel", "the paper says", *starts]
    yield table(head, rows, format, left=range(len(head)))
    if evidence := list(_evidence(starts)):
        yield _list(evidence)
    if cells := _cell_rows(figure, list(found)):
        head = ["n", "row", *(f"{start}{part}" for start in starts for part in ("", " (repeated)"))]
        yield table(head, cells, format, left=range(len(head)))


def _evidence(starts: Mapping[str, Mapping[Claim, Verdict]]) -> Iterable[str]:
    for claim in CLAIMS:
        for start, of_arm in starts.items():
            verdict = of_arm[claim]
            if verdict.word != NOT_RUN:
                panels = f"Panel{'s' if ',' in claim.panels else ''} {claim.panels.replace(', ', ' and ')}"
                yield f"{panels} ({start}): {claim.text} Verdict: {verdict.word}. {verdict.why}."


def _cell_rows(figure: Figure, arms: Sequence[Arm]) -> list[list[str]]:
    """Perplexities of every cell of the arms, for each arm and part of the test."""
    layers = {arm.convolution for arm in arms}
    rows = sorted({replace(cell, arm=Arm()) for cell in figure.cells if cell.arm.convolution in layers}, key=_place)
    columns = [(arm, part) for arm in arms for part in (TEST, REPEATED)]
    return [[f"{cell.length:,}", cell.label, *(_perplexity(figure, cell, *column) for column in columns)] for cell in rows]


def _place(cell: Cell) -> tuple[Any, ...]:
    """Order of rows: by length; softmax, the controls, then Linformer by projected length and sharing."""
    return cell.length, cell.k, SHARINGS.index(cell.sharing) if cell.k else 0, cell.attention != "softmax", cell.attention


def _perplexity(figure: Figure, cell: Cell, arm: Arm, part: str) -> str:
    runs = figure.find(arm, cell.length, cell.attention, cell.k, cell.sharing)
    found = runs.perplexity(part) if runs else None
    return f"{found.written('.1f')} ({found.count})" if found else "-"


def _notes(figure: Figure) -> Iterable[str]:
    yield (
        "The tables have perplexities on test texts, which were used neither for training nor for choosing the learning rate: the "
        f"mean over seeds ± half of the {100 * CONFIDENCE:.0f} % interval, with the number of seeds in brackets. Curves show "
        "validation perplexity. Columns marked 'repeated' are for rare tokens that also occur elsewhere in the input, but only "
        "far away."
    )
    yield (
        "Differences are ratios of perplexities, paired by seed. Each interval is for one pair, and not corrected for others. "
        f"A comparison needs {SEEDS_NEEDED} common seeds; with fewer, the verdict is 'cannot tell'."
    )
    yield (
        "If the paper says that perplexities are nearly equal, the claim holds if the whole interval lies within "
        f"{100 * NEAR:.0f} %. It does not hold if the whole interval lies outside {100 * NEAR:.0f} %. Otherwise, the verdict is "
        "'cannot tell'."
    )
    yield (
        "Such a claim needs a network that uses attention. On repeated tokens, softmax must be better than both controls (panels a "
        "and b), or Linformer must be better than the control none (panels c and d). If not, the verdict is 'cannot tell'."
    )
    yield f"Learning rates: {', '.join(_rates(figure))}."


def _rates(figure: Figure) -> list[str]:
    """Return the learning rates by mechanism and arm, as recorded."""
    runs = [(cell, record) for cell, found in figure.cells.items() for record in found.by_seed.values()]
    found = grouped(((cell.attention, cell.arm), record.spec.budget.learning_rate) for cell, record in runs)
    return [f"{name} ({arm.name}) {'/'.join(f'{rate:g}' for rate in sorted(set(of)))}" for (name, arm), of in sorted(found.items())]


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)

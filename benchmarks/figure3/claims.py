"""Claims of Section 5.1 of the Linformer paper about its Figure 3, and verdicts on them from our records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attn_zoo.leaderboard.compare import SEEDS_NEEDED
from attn_zoo.leaderboard.statistics import SMALLEST, Estimate
from figure3.cells import REPEATED, TEST, Arm, Cell, Figure, Runs

NEAR = 0.05
"""Relative difference of perplexity within which the paper's "nearly on par" and "approximately the same" are taken to hold."""
CONTROLS = ("none", "convolution")
NOT_RUN, HOLDS, FAILS, UNSURE = "not run", "holds", "does not hold", "cannot tell"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a claim of the paper, with the differences that support it."""

    word: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of the paper about panels of the figure, and the function that returns the verdict on it in one arm (setting of
    convolution and initialisation)."""

    panels: str
    text: str
    judge: Callable[[Figure, Arm], Verdict]


def per_cent(log_ratio: float) -> float:
    """Return by how many per cent one perplexity is above another, from the logarithm of their ratio."""
    return 100 * math.expm1(log_ratio)


def _falls_with_k(figure: Figure, arm: Arm) -> Verdict:
    return _together(_falling(figure, cells) for cells in figure.by_length(arm).values())


def _falling(figure: Figure, cells: Sequence[Cell]) -> Verdict:
    """Judge one length: holds if the largest k is significantly better than the smallest, and no k is worse than the next."""
    whole, why = _difference(figure.cells[cells[-1]], figure.cells[cells[0]])
    why = f"n = {cells[0].length}: k = {cells[-1].k} against k = {cells[0].k}: {why}"
    if whole is None:
        return Verdict(UNSURE, why)
    steps = [(large, _difference(figure.cells[large], figure.cells[small])[0]) for small, large in pairwise(cells)]
    if worse := [cell.k for cell, step in steps if step and _worse(step)]:
        return Verdict(FAILS, f"{why}; k = {worse[0]} is worse than the next smaller k")
    return Verdict(HOLDS if _better(whole) else FAILS if _worse(whole) else UNSURE, why)


def _quarter_is_on_par(figure: Figure, arm: Arm) -> Verdict:
    """Judge k = n / 4 against softmax at the two largest lengths with several k, the paper's panels a and b."""
    found = []
    for length, cells in list(figure.by_length(arm).items())[-2:]:
        softmax, quarter = figure.find(arm, length, "softmax"), [cell for cell in cells if 4 * cell.k == length]
        if softmax and quarter:
            near = _near(figure.cells[quarter[0]], softmax, f"n = {length}, k = {quarter[0].k} against softmax")
            found.append(_doubt(figure, Cell(Arm(arm.convolution), length, "softmax"), CONTROLS) or near)
    return _together(found)


def _layerwise_is_near(figure: Figure, arm: Arm) -> Verdict:
    cells = {cell.sharing: cell for cell in figure.by_sharing(arm)}
    if not {"none", "layerwise"} <= cells.keys():
        return Verdict(NOT_RUN)
    one, each = cells["layerwise"], cells["none"]
    near = _near(figure.cells[one], figure.cells[each], f"n = {one.length}, k = {one.k}, layerwise sharing against no sharing")
    return _doubt(figure, each, CONTROLS[:1]) or near


def _layerwise_is_small(figure: Figure, arm: Arm) -> Verdict:
    """Judge the number of attention parameters, and the loss of perplexity from having fewer."""
    near = _layerwise_is_near(figure, arm)
    if near.word == NOT_RUN:
        return near
    cells = {cell.sharing: figure.cells[cell].counted("attention_parameters") for cell in figure.by_sharing(arm)}
    why = (
        f"{cells['layerwise']:,} attention parameters with layerwise sharing against {cells['none']:,} without sharing; {near.why}"
    )
    return Verdict(near.word if cells["layerwise"] < cells["none"] else FAILS, why)


def _length_does_not_matter(figure: Figure, arm: Arm) -> Verdict:
    cells = figure.by_fixed_k(arm)
    return _together(
        _doubt(figure, cell, CONTROLS[:1])
        or _near(figure.cells[cell], figure.cells[cells[0]], f"k = {cell.k}, n = {cell.length:,} against {cells[0].length:,}")
        for cell in cells[1:]
    )


def _cost_is_linear(figure: Figure, arm: Arm) -> Verdict:
    """Judge FLOPs of the mechanism for each token, which are counted and have no noise."""
    cells = figure.by_fixed_k(arm)
    if not cells:
        return Verdict(NOT_RUN)
    each = [figure.cells[cell].counted("mechanism_flops") / cell.length for cell in cells]
    between = " to ".join(dict.fromkeys(f"{count:,.0f}" for count in (min(each), max(each))))
    why = f"{between} FLOPs of the mechanism per token for n from {cells[0].length:,} to {cells[-1].length:,}"
    return Verdict(HOLDS if max(each) <= 1.01 * min(each) else FAILS, why)


CLAIMS = (
    Claim("a, b", "A larger projected length k gives a lower perplexity.", _falls_with_k),
    Claim("a, b", "With k = n / 4 Linformer is already nearly on par with the Transformer.", _quarter_is_on_par),
    Claim("c", "One projection shared by all layers almost matches projections without sharing.", _layerwise_is_near),
    Claim("c", "Sharing saves parameters, and with them memory, at little loss.", _layerwise_is_small),
    Claim("d", "With k fixed, the final perplexity stays approximately the same as n grows.", _length_does_not_matter),
    Claim("d", "This supports the claim that Linformer takes linear time.", _cost_is_linear),
)
"""Claims in the order of the paper, reworded."""


def _together(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine verdicts at several lengths into one: the claim holds if all hold, and fails if one fails."""
    found = list(verdicts)
    words = {verdict.word for verdict in found}
    word = next((word for word in (FAILS, UNSURE, HOLDS) if word in words), NOT_RUN)
    return Verdict(word, "; ".join(verdict.why for verdict in found))


def _near(ours: Runs, theirs: Runs, what: str) -> Verdict:
    """Judge whether perplexities are near: holds if the interval of their difference lies within ``NEAR``, fails outside."""
    difference, why = _difference(ours, theirs)
    if difference is None:
        return Verdict(UNSURE, f"{what}: {why}")
    margin = math.log1p(NEAR)
    if -margin <= difference.low and difference.high <= margin:
        return Verdict(HOLDS, f"{what}: {why}")
    return Verdict(FAILS if difference.low > margin or difference.high < -margin else UNSURE, f"{what}: {why}")


def _doubt(figure: Figure, cell: Cell, controls: Sequence[str]) -> Verdict | None:
    """Doubt about a comparison with a cell: no better than a control at its length, or no control was run; None for no doubt.

    Repeated rare tokens are compared, because a convolution or token frequencies alone predict other tokens well at such a budget.
    """
    for name in controls:
        control = figure.find(cell.arm, cell.length, name)
        if control is None:
            return Verdict(UNSURE, f"n = {cell.length}: the control {name} was not run")
        difference, why = _difference(figure.cells[cell], control, REPEATED)
        where = f"n = {cell.length}, on repeated tokens"
        if difference is None:
            return Verdict(UNSURE, f"{where}: {cell.label} cannot be compared with the control {name}, with {why}")
        if not _better(difference):
            return Verdict(UNSURE, f"{where}: {cell.label} is not better than the control {name}, with a difference of {why}")
    return None


def _difference(ours: Runs, theirs: Runs, part: str = TEST) -> tuple[Estimate | None, str]:
    """Logarithm of the ratio of perplexities, None with too few common seeds, and the difference in words."""
    found = ours.against(theirs, part)
    count = found.count if found else 0
    if found is None or count < SEEDS_NEEDED or found.half_width is None:
        return None, f"only {count} of {SEEDS_NEEDED} common seeds"
    return found, f"{per_cent(found.mean):+.1f} % ({per_cent(found.low):+.1f} to {per_cent(found.high):+.1f})"


def _better(difference: Estimate) -> bool:
    """Return True if a perplexity is significantly lower, and by at least the smallest difference that counts."""
    return difference.high < 0 and difference.mean <= math.log1p(-SMALLEST)


def _worse(difference: Estimate) -> bool:
    return difference.low > 0 and difference.mean >= math.log1p(SMALLEST)

"""Scores and costs as text: percentage metrics in per cent, other scores unchanged, costs with their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attn_zoo.leaderboard.statistics import SHARES, Estimate
from attn_zoo.leaderboard.table import Comparison, Row, Table, Verdict
from attn_zoo.terminal import short

T = TypeVar("T")
_SIGNIFICANT = ("mse",)
"""Metrics in a unit of the task, which are written with significant digits."""


def style(metric: str) -> tuple[str, float]:
    """Return the number format for scores of a metric, and the factor by which a score is multiplied before it is formatted."""
    if metric in SHARES:
        return ".1f", 100.0
    return (".3g" if is_significant(metric) else ".2f"), 1.0


def written(value: float, metric: str) -> str:
    """Return a score as text with its unit: ``97.5 %``, ``8.12``, ``0.00213``."""
    form, scale = style(metric)
    return f"{scale * value:{form}}{' %' if metric in SHARES else ''}"


def is_significant(metric: str) -> bool:
    """Return True if scores of this metric are written with a fixed number of significant digits instead of decimals."""
    return metric in _SIGNIFICANT


def spent(cost: str, amount: float | None) -> str:
    """Return an amount of a cost (time, FLOPs or memory) as text with its unit, or ``-`` if the amount is None."""
    if amount is None:
        return "-"
    return f"{seconds(amount)} s" if cost == "time" else f"{short(amount)}FLOPs" if cost == "FLOPs" else mebibytes(amount)


def score(row: Row, table: Table) -> str:
    """Return the test score of a row as text, or the word for its failure if it has no score."""
    if row.test is None:
        return row.failures[0].word if row.failures else "-"
    return estimated(row.test, table)


def estimated(found: Estimate | None, table: Table, sign: str = "") -> str:
    """Return a mean score, or a mean difference of scores, as text with its interval. Without a mean, return ``-``."""
    return "-" if found is None else found.written(*style(table.task["metric"]), sign)


def figure(value: float, table: Table, sign: str = "") -> str:
    """Return a score, or a difference of two scores, as text: in per cent for percentage metrics, unchanged for others."""
    form, scale = style(table.task["metric"])
    return Estimate(value, None, 1).written(form, scale, sign)


def brief(value: float, table: Table) -> str:
    """Return a score as short text without its unit, such as ``97.5`` (per cent) or ``0.0021``."""
    if is_share(table):
        return f"{100 * value:.1f}"
    if is_significant(table.task["metric"]):
        return f"{value:.2g}"
    return f"{value:.{max(0, min(1, 3 - len(f'{abs(value):.0f}')))}f}"


def unit(table: Table, written: str = " (%)") -> str:
    """Return the unit of a table's scores: the text ``written`` if the scores are shown in per cent, else empty text."""
    return written if is_share(table) else ""


def is_share(table: Table) -> bool:
    """Return True if the metric is a percentage metric, whose scores from 0 to 1 are shown in per cent."""
    return table.task["metric"] in SHARES


def mebibytes(count: float) -> str:
    """Return a number of bytes as text in MiB, such as ``22.1 MiB``."""
    return f"{count / 2**20:.1f} MiB"


def seconds(value: float, spread: float | None = None) -> str:
    """Return a time in seconds as text with about three digits. If given, ``spread`` follows after ±, with the same number of
    decimals."""
    places = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{places}f}" + ("" if spread is None else f" ± {spread:,.{places}f}")


def optional(value: T | None, form: Callable[[T], str]) -> str:
    """Return a value as text formatted with ``form``, or ``-`` if it is None."""
    return "-" if value is None else form(value)


def training_length(budget: Mapping[str, Any]) -> str:
    """Return the length of training as text, such as ``400 steps of 64 examples``, with a remark if the learning rate is
    constant. Runs until a criterion may end earlier.
    """
    steps, examples = budget["steps"], f"of {budget['batch_size']} examples"
    length = f"at most {steps:,} steps {examples}" if budget.get("until") == "criterion" else f"{steps} steps {examples}"
    if budget.get("seconds"):
        length = f"{seconds(budget['seconds'])} s of training, at most {steps:,} steps {examples}"
    length += " at a constant learning rate" if budget.get("schedule") == "constant" else ""
    return length + (
        f", after {budget['pretrain_steps']} steps of pretraining on masked tokens" if budget.get("pretrain_steps") else ""
    )


def digest_of(split: Mapping[str, Any], name: str, letters: int | None = None) -> str:
    """Return the digest of a split of a table's data as text after ``name``. If each seed draws its own examples, say so instead.

    Args:
        letters: number of letters of the digest that are shown; None for all.
    """
    digest = split.get("digest", "?")
    return "drawn anew by each seed" if digest is None else f"{name} {str(digest)[:letters]}"


def beyond_sizes(model: Mapping[str, Any]) -> str:
    """Return text on special features of a network, such as a short convolution or a gate, with a comma before each. The text is
    empty if there are none, or if an older record does not state them."""
    shared = ", one block for all layers" if model.get("shared_weights") else ""
    shared += ", with keys and values computed once" if model.get("reuse_keys") else ""
    width = model.get("short_convolution")
    shared += f", a short convolution ({width}) before every attention" if width else ""
    gate = model.get("output_gate", "none")
    shared += f", an output gate ({gate}) after every attention" if gate != "none" else ""
    kept = model.get("key_value_heads")
    shared += f", {kept} heads of keys and values" if kept else ""
    latent = model.get("latent_dim")
    return shared + (f", keys and values from latents of width {latent}" if latent else "")


def compared(found: Comparison | None, table: Table) -> str:
    """Return the outcome of a comparison as text, such as ``worse, -40.1 ± 3.0``, or empty text without a comparison."""
    return "" if found is None else f"{found.outcome}, {_distance(found, table)}"


def _distance(found: Comparison, table: Table) -> str:
    """Return the difference of scores with its interval. If the rows are compared by steps, return the quotient of their steps."""
    if found.ratio is None:
        return estimated(found.difference, table, "+")
    return f"{_times(found.ratio)} times the steps"


def _times(ratio: Estimate) -> str:
    """Return the quotient of steps with its interval, from its logarithm: ``1.5 (0.54 to 4.17)``."""
    times, low, high = (f"{math.exp(value):.3g}" for value in (ratio.mean, ratio.low, ratio.high))
    return f"{times} ({low} to {high})"


def verdict_cell(row: Row, table: Table) -> str:
    """Return the verdict on a row as text for a table, with its difference from the best row, or empty text without a verdict."""
    beside = row.against_best if row.verdict in (Verdict.TIED, Verdict.WORSE) else None
    return ", ".join([*([row.verdict] if row.verdict else []), *([_distance(beside, table)] if beside else [])])


def verdict_sentence(row: Row, table: Table) -> str:
    """Return the verdict on a row, the row with which it was compared, and the difference, or why there is no verdict. For a
    control, the text is empty."""
    best, control = row.against_best, row.against_control
    points = unit(table, " points")
    if row.verdict == Verdict.TIED and best:
        return f"{row.verdict} ({best.against}) with {len(row.seeds)} seeds: {_with_unit(best, table, points)}"
    if row.verdict == Verdict.WORSE and best:
        return f"{row.verdict} than the best ({best.against}): {_with_unit(best, table, points)}"
    if row.verdict == Verdict.NO_BETTER and control:
        return f"{row.verdict} ({control.against}): {_with_unit(control, table, points)}"
    return row.verdict or row.unjudged or ("" if row.control else table.judgement.reason or "")


def _with_unit(found: Comparison, table: Table, points: str) -> str:
    if found.ratio is None:
        return _distance(found, table) + points
    return f"it needs {_times(found.ratio)} times {found.against}'s steps to 90 % of the ceiling"

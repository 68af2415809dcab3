"""Training until a criterion (protocol 3): when a run ends, and how soon it reached 50, 90 and 99 % of the ceiling.

The ceiling is the highest validation score that a task allows at its sizes (``Budget.ceiling``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHARES = (0.5, 0.9, 0.99)
"""Shares of the ceiling (the highest possible score). A record states how soon the run reached each share."""
SHARE, IN_A_ROW = 0.99, 3
"""A run ends when ``IN_A_ROW`` successive validation scores are at least ``SHARE`` of the highest possible score."""
VALIDATIONS = 48
"""Number of validations in a run that does not meet the criterion."""
MORE_STEPS, LEAST_STEPS = 4, 2400
"""The maximum number of steps is ``MORE_STEPS`` times the steps of the preset's fixed budget, and at least ``LEAST_STEPS``."""
ALIKE = "validation"
"""Name of validation examples (``Task.criterion``) if test examples are of the same kind."""
FLAT = 0.02
"""A training loss is called flat if it falls by less than this share."""

Curve = Sequence[Mapping[str, Any]]


def criterion_budget(level: Mapping[str, Any], given: Mapping[str, Any], ceiling: float) -> dict[str, Any]:
    """Return a budget for training until the criterion, made from the fixed budget of a preset. Fields in ``given`` take
    precedence.

    Args:
        level: fields of the preset's budget, including ``steps``.
        ceiling: highest validation score that the preset allows; 0 if it is unknown.
    """
    steps = given.get("steps", max(LEAST_STEPS, MORE_STEPS * level["steps"]))
    ours = {"steps": steps, "evaluate_every": max(1, steps // VALIDATIONS), "schedule": "constant", "ceiling": ceiling}
    return {**level, **ours, **given}


def _is_reached(score: float, share: float, ceiling: float) -> bool:
    """Return True if a score is at least a share of the ceiling. Recorded scores are rounded to float32: 0.9 is stored as
    0.8999999762."""
    return score >= share * ceiling - 1e-6


def is_met(curve: Curve, ceiling: float) -> bool:
    """Return True if the last ``IN_A_ROW`` validation scores are at least ``SHARE`` of the ceiling, which is the highest possible
    score. If ``ceiling`` is 0 (unknown), return False."""
    last = curve[-IN_A_ROW:]
    return bool(ceiling) and len(last) == IN_A_ROW and all(_is_reached(point["valid"], SHARE, ceiling) for point in last)


def reached(curve: Curve, ceiling: float, flops_per_step: float | None) -> dict[str, dict[str, float] | None]:
    """Return the steps, seconds and FLOPs of training until the validation score first reached 50, 90 and 99 % of the ceiling.

    The ceiling is the highest possible validation score. If it is 0 (unknown), the result is empty.

    Returns:
        For each of the keys ``"50"``, ``"90"`` and ``"99"``, the ``steps``, ``seconds`` and ``flops``, or None if the score never
        reached this percentage. FLOPs are those of forward and backward passes over all examples seen. If ``flops_per_step`` is
        None, they are left out.
    """
    found: dict[str, dict[str, float] | None] = {}
    for share in SHARES if ceiling else ():
        scored = (point for point in curve if point["valid"] is not None)
        point = next((point for point in scored if _is_reached(point["valid"], share, ceiling)), None)
        found[f"{100 * share:.0f}"] = None if point is None else _until(point, flops_per_step)
    return found


def _until(point: Mapping[str, Any], flops_per_step: float | None) -> dict[str, float]:
    """Return the steps, seconds and FLOPs of training until a point of the curve."""
    flops = {} if flops_per_step is None else {"flops": point["step"] * flops_per_step}
    return {"steps": point["step"], "seconds": point["train_seconds"], **flops}


def is_flat(curve: Curve, warmup_steps: int) -> bool | None:
    """Return True if the training loss fell by less than 2 % (``FLAT``) from the first to the last interval after the warm-up.

    Each point of the curve has the mean loss of one interval: the steps since the previous point. If fewer than two intervals
    follow the warm-up, or if the first or last loss is None, return None.
    """
    starts = [0, *(point["step"] for point in curve)]
    losses = [point["train_loss"] for start, point in zip(starts, curve, strict=False) if start >= warmup_steps]
    if len(losses) < 2 or losses[0] is None or losses[-1] is None:
        return None
    return bool(losses[-1] > (1 - FLAT) * losses[0])

"""A run that is part of a study: what it records, and what it tells the search."""

from __future__ import annotations

import math
from dataclasses import replace

from attn_zoo.records import RunRecord, RunSpec, Tuning
from attn_zoo.records.tuning import setting


def with_tuning(record: RunRecord, tuning: Tuning | None) -> RunRecord:
    """The record with its part in the study; of a trial without test scores, so that nobody can choose by them."""
    if tuning is None:
        return record
    kept = {name: score for name, score in record.scores.items() if name in ("valid", "train")}
    return replace(record, tuning=tuning, scores=record.scores if tuning.trial is None else kept)


def objective(record: RunRecord | None) -> float:
    """The validation score of a trial; of one that has none, the worst there is.

    Raises:
        BlockingIOError: another process is at the trial.
    """
    if record is None:
        raise BlockingIOError(
            "another process is at a trial of this study, and the search needs its score to go on; give the command again when "
            "that one is done"
        )
    if record.status == "done":
        return float(record.scores["valid"])
    return -math.inf if record.task_card.get("higher_is_better", True) else math.inf


def trial_label(spec: RunSpec, tuning: Tuning | None) -> str:
    """``, trial 3 with learning_rate=0.002 …``; empty where the run is no trial."""
    if tuning is None or tuning.trial is None:
        return ""
    return f", trial {tuning.trial} with {settings(spec, tuning)}"


def settings(spec: RunSpec, tuning: Tuning) -> str:
    """The values that a spec has for what its study searched over."""
    found = ((key.partition(".")[2], setting(spec, key)) for key in tuning.space)
    return ", ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in found)

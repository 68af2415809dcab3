"""The tuning ledger: which search of settings a run belongs to, and how many trials stand behind a row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_zoo.records.spec import PROTOCOL, RunSpec

if TYPE_CHECKING:
    from attn_zoo.records.record import RunRecord

TUNABLE = ("learning_rate", "weight_decay", "warmup_steps", "clip_norm")
"""Fields of the budget that a search may vary by row. The rest of it, and the network, are the same for all rows of a table."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a run belongs to a study: as one of its trials, or as a run with the best settings that the study found."""

    study: str
    """Digest of what was fixed and what was searched over; see ``study_id``."""
    space: Mapping[str, str]
    """By key, such as ``budget.learning_rate``, the values searched over, as Hydra writes them."""
    trial: int | None = None
    """Number of the trial; None in a run with the best settings, which has the fields below instead."""
    trials: int | None = None
    """Trials that the settings were chosen from, failed ones included."""
    failed: int | None = None
    """Those of them that ended without a score."""
    best_trial: int | None = None
    best_valid: float | None = None
    """Validation score of that trial, by which the settings were chosen."""
    seed: int | None = None
    """Seed of all trials, which no run with the best settings has."""

    def __post_init__(self) -> None:
        if not self.study or not isinstance(self.space, Mapping):
            raise ValueError(f"tuning names its study and the space of it; got study {self.study!r}, space {self.space!r}")
        if (self.trial is None) == (self.trials is None):
            raise ValueError(f"tuning is of one trial or of what was chosen from trials; got {self.trial} and {self.trials}")


def study_id(spec: RunSpec, space: Mapping[str, str], task_version: str, protocol: str = PROTOCOL) -> str:
    """Digest of all that the trials of a study share: spec without what is searched over, the space, protocol, task's version.

    The number of trials has no part in it, so that a study can be gone on with.

    Args:
        space: by key, ``attention.OPTION`` or ``budget.FIELD``, the values searched over.

    Raises:
        KeyError: a key is none of the spec's.
    """
    data = spec.to_dict()
    for key in space:
        group, name = _place(key)
        del data[group][name]
    canonical = json.dumps([protocol, task_version, data, dict(space)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def setting(spec: RunSpec, key: str) -> Any:
    """The value that a spec has for a key of a space."""
    group, name = _place(key)
    return spec.to_dict()[group][name]


def trials_of(records: Iterable[RunRecord], study: str) -> list[RunRecord]:
    """The trials of a study in their order, each once."""
    found: dict[str, RunRecord] = {}
    for record in records:
        if record.tuning is not None and record.tuning.study == study and record.tuning.trial is not None:
            found.setdefault(record.run_id, record)
    return sorted(found.values(), key=lambda record: (_tuning(record).trial or 0, record.run_id))


def best_of(trials: Iterable[RunRecord]) -> RunRecord | None:
    """The trial with the best validation score, of equals the first; None where none is done."""
    done = [record for record in trials if record.status == "done" and record.scores.get("valid") is not None]
    if not done:
        return None
    higher = bool(done[0].task_card.get("higher_is_better", True))
    return (max if higher else min)(done, key=lambda record: record.scores["valid"])


def ledger(records: Iterable[RunRecord], study: str) -> Tuning:
    """What a run with the best settings of a study records of it.

    Raises:
        ValueError: no trial of the study is done.
    """
    trials = trials_of(records, study)
    best = best_of(trials)
    if best is None:
        raise ValueError(f"study {study} has {len(trials)} recorded trials, none of them with a score; widen or move its space")
    return Tuning(
        study=study,
        space=_tuning(best).space,
        trials=len(trials),
        failed=sum(record.status != "done" for record in trials),
        best_trial=_tuning(best).trial,
        best_valid=best.scores["valid"],
        seed=best.spec.seed,
    )


def _place(key: str) -> tuple[str, str]:
    group, _, name = key.partition(".")
    return {"attention": "options"}.get(group, group), name


def _tuning(record: RunRecord) -> Tuning:
    assert record.tuning is not None, "asked of trials only"
    return record.tuning

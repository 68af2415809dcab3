"""Hyperparameter searches in records: the search to which a run belongs, and the number of trials that led to its settings.

A study is one search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_zoo.records.spec import RunSpec, digest_of

if TYPE_CHECKING:
    from attn_zoo.records.record import RunRecord

TUNABLE = ("learning_rate", "weight_decay", "warmup_steps", "clip_norm")
"""Fields of the budget that a search may set for each row of a table. All other fields, and the network, are the same for all
rows."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Hyperparameter search to which a run belongs, and the run's role in it: one of its trials, or a run with the best
    settings.
    """

    study: str
    """Id of the search: a digest of its fixed settings and its space; see ``study_id``."""
    space: Mapping[str, str]
    """Search space: for each key, such as ``budget.learning_rate``, its values in Hydra's syntax."""
    trial: int | None = None
    """Index of the trial; None for a run with the best settings. Only such a run has the fields from ``trials`` to ``seed``."""
    trials: int | None = None
    """Number of trials from which the best settings were chosen, including failed ones."""
    failed: int | None = None
    """Number of trials that ended without a score."""
    best_trial: int | None = None
    best_valid: float | None = None
    """Validation score of the best trial, by which the settings were chosen."""
    seed: int | None = None
    """Seed of the best trial; runs with the best settings use other seeds."""

    def __post_init__(self) -> None:
        if not self.study or not isinstance(self.space, Mapping):
            raise ValueError(
                f"tuning must have the name of a study and its search space; got study {self.study!r} and space {self.space!r}"
            )
        if (self.trial is None) == (self.trials is None):
            raise ValueError(
                f"tuning must have either trial (an index) or trials (a number), not both; got trial={self.trial} and "
                f"trials={self.trials}"
            )


def study_id(spec: RunSpec, space: Mapping[str, str], task_version: str) -> str:
    """Return the id of a hyperparameter search: a digest of all that its trials share.

    These are the spec without the searched fields, the search space, the protocol and the task's version. The number of trials is
    not part of the digest, so a search can be continued.

    Args:
        space: values to try for each key. The keys have the form ``attention.OPTION`` or ``budget.FIELD``.

    Raises:
        KeyError: the spec lacks a key.
    """
    data = spec.to_dict()
    for key in space:
        group, name = _field(key)
        del data[group][name]
    return digest_of([spec.protocol, task_version, data, dict(space)])[:12]


def setting(spec: RunSpec, key: str) -> Any:
    """Return the value that a spec has for a searched key, such as ``budget.learning_rate``. For an option that specs leave out at
    its default (``contract.options.added_later``), the value is the text ``default``."""
    group, name = _field(key)
    return spec.to_dict()[group].get(name, "default")


def trials_of(records: Iterable[RunRecord], study: str) -> list[RunRecord]:
    """Return the trials of a hyperparameter search among the records, sorted by index. If a trial has several records, return
    the first."""
    trials: dict[str, tuple[int, str, RunRecord]] = {}
    for record in records:
        if (tuning := record.tuning) is not None and tuning.study == study and tuning.trial is not None:
            trials.setdefault(record.run_id, (tuning.trial, record.run_id, record))
    return [record for _, _, record in sorted(trials.values(), key=lambda trial: trial[:2])]


def best_of(trials: Iterable[RunRecord]) -> RunRecord | None:
    """Return the trial with the best validation score, or None if no trial has a score. Of equal trials, return the first."""
    done = [record for record in trials if record.status == "done" and record.scores.get("valid") is not None]
    if not done:
        return None
    higher = bool(done[0].task_card.get("higher_is_better", True))
    return (max if higher else min)(done, key=lambda record: record.scores["valid"])


def ledger(records: Iterable[RunRecord], study: str, chosen: RunRecord | None = None) -> Tuning:
    """Return a summary of the trials of a hyperparameter search. Records of runs with the best settings store this summary.

    Args:
        chosen: trial with the best settings. By default it is the trial with the best validation score.

    Raises:
        ValueError: no trial of the search has a score.
    """
    trials = trials_of(records, study)
    best = best_of(trials) and (chosen or best_of(trials))
    if best is None or best.tuning is None:
        raise ValueError(
            f"study {study} must have a trial with a score, but none of its {len(trials)} recorded trials has one. Change the "
            "search space"
        )
    return Tuning(
        study=study,
        space=best.tuning.space,
        trials=len(trials),
        failed=sum(record.status != "done" for record in trials),
        best_trial=best.tuning.trial,
        best_valid=best.scores["valid"],
        seed=best.spec.seed,
    )


def _field(key: str) -> tuple[str, str]:
    group, _, name = key.partition(".")
    return {"attention": "options"}.get(group, group), name

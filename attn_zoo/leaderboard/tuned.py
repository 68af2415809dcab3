"""Tuned settings in tables: trials make no rows, and a tuned row states from how many trials its settings were chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.records import RunRecord, Tuning
from attn_zoo.records.tuning import setting


def records_of_rows(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Select the records that make rows: no trials, and of each study only the runs with the settings that were chosen last.

    The number of trials of a run includes trials that were recorded after it.
    """
    records = list(records)
    kept = [record for record in records if record.tuning is None]
    trials = grouped((record.tuning.study, record.run_id) for record in records if record.tuning and record.is_trial)
    chosen = grouped((record.tuning.study, record) for record in records if record.tuning and not record.is_trial)
    for study, members in chosen.items():
        newest = max(members, key=lambda record: str(record.environment.get("started")))
        count = len(set(trials.get(study, ())))
        kept += [_with_trials(record, count) for record in members if without_seed(record) == without_seed(newest)]
    return kept


def without_seed(record: RunRecord) -> dict[str, Any]:
    """Spec of a run without its seed, equal for all runs of a row."""
    return {**record.spec.to_dict(), "seed": None}


def shared_budget(record: RunRecord) -> dict[str, Any]:
    """Budget with searched settings replaced by their ranges, because rows that were tuned over the same range share a table."""
    return record.spec.budget.to_dict() | {name: f"tuned: {text}" for name, text in searched(record.tuning, "budget").items()}


def own_options(record: RunRecord) -> dict[str, Any]:
    """Options that distinguish a row from others of its attention: those that were not searched."""
    found = searched(record.tuning, "attention")
    return {name: value for name, value in record.spec.options.items() if name not in found}


def searched(tuning: Tuning | None, group: str) -> dict[str, str]:
    """Settings of ``attention`` or ``budget`` that a study searched, by name, and their ranges as text."""
    keys = {} if tuning is None else tuning.space
    return {key.removeprefix(f"{group}."): text for key, text in keys.items() if key.startswith(f"{group}.")}


def found_settings(record: RunRecord) -> dict[str, Any]:
    """Best settings that the study of a run found, by key."""
    return {key: setting(record.spec, key) for key in (record.tuning.space if record.tuning else ())}


def _with_trials(record: RunRecord, trials: int) -> RunRecord:
    assert record.tuning is not None, "only tuned runs have a number of trials"
    return replace(record, tuning=replace(record.tuning, trials=max(record.tuning.trials or 0, trials)))

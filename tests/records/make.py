"""Synthetic records for tests of storage and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attn_zoo.records import SCHEMA, Budget, RunRecord, RunSpec, Store

PERPLEXITY: Mapping[str, Any] = {"metric": "perplexity", "higher_is_better": False}
"""Facts of the card of a task on which less is better."""


def make_record(
    attention: str = "softmax",
    task: str = "digits",
    seed: int = 1,
    *,
    test: float = 0.9,
    status: str = "done",
    card: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """Return a record as the runner would write it; ``changes`` override fields, those of its spec with the prefix ``spec_``, and
    ``card`` overrides facts of the card of its task."""
    spec = RunSpec(attention=attention, task=task, options={"dial": 1}, task_options={"size": 8}, seed=seed)
    spec = replace(spec, **{name.removeprefix("spec_"): changes.pop(name) for name in list(changes) if name.startswith("spec_")})
    done = status == "done"
    task_card = {"name": task, "title": task.title(), "version": "1", "metric": "accuracy", "length": 16, "classes": 10}
    record = RunRecord(
        schema=SCHEMA,
        protocol=spec.protocol,
        run_id=spec.run_id("1"),
        spec=spec,
        attention_card={"name": attention, "title": attention.title(), "control": attention in ("none", "uniform")},
        task_card={**task_card, **(card or {})},
        data={s: {"examples": 10_000 if s == "test" else 100, "digest": f"{task}{s}" * 4} for s in ("train", "valid", "test")},
        status=status,  # type: ignore[arg-type]  # tests also try statuses that do not exist
        reason=None if done else f"because of {status}",
        scores={"test": test, "valid": test, "train": min(1.0, test + 0.05)} if done else {},
        chance=0.1,
        curve=({"step": 10, "train_seconds": 1.5, "train_loss": 0.5, "valid": test},),
        counted={"parameters": 70_000, "attention_parameters": 30_000, "flops_per_example": 2_400_000},
        measured={"examples_per_second": 5000.0, "peak_bytes": 8 * 2**20, "train_seconds": 6.0} if done else {},
        environment={"cpu": "Some CPU", "threads": 2, "torch": "2.15.0", "started": "2026-01-01T00:00:00+00:00"},
        implementation="eager" if spec.implementation == "auto" else spec.implementation,
    )
    return replace(record, **changes)


def records_of(scores: Mapping[str, Sequence[float]], task: str = "digits", **changes: Any) -> list[RunRecord]:
    """Return a record for each test score of each attention, with seeds from 1 on."""
    return [
        make_record(name, task, seed, test=test, **changes) for name, tests in scores.items() for seed, test in enumerate(tests, 1)
    ]


def stored(folder: Path, records: Iterable[RunRecord]) -> list[RunRecord]:
    """Write records into a folder, and return what is read from it."""
    store = Store(folder)
    for record in records:
        store.add(record)
    return store.load()[0]


def until_criterion(attention: str, soon: Sequence[int | None], *, at_cap: float = 0.6, **changes: Any) -> list[RunRecord]:
    """Return runs until a criterion with these steps to 90 %, with seeds from 1 on.

    ``None`` is a run that ended at the cap, with the score ``at_cap``.
    """
    budget = Budget(schedule="constant", until="criterion", ceiling=1.0, evaluate_every=50)
    records = []
    for seed, step in enumerate(soon, 1):
        test = at_cap if step is None else 0.99 + 0.002 * seed
        reached = {"90": None if step is None else {"steps": step, "seconds": 1.0}}
        curve = ({"step": 2400 if step is None else step + 100, "train_seconds": 9.0, "train_loss": 0.1, "valid": test},)
        stopped = "cap" if step is None else "criterion"
        facts = {"stopped": stopped, "reached": reached, "curve": curve, **changes}
        records.append(make_record(attention, seed=seed, test=test, spec_budget=budget, **facts))
    return records

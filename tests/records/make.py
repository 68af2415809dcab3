"""Synthetic records for tests of storage and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_zoo.records import SCHEMA, RunRecord, RunSpec


def make_record(
    attention: str = "softmax", task: str = "digits", seed: int = 1, *, test: float = 0.9, status: str = "done", **changes: Any
) -> RunRecord:
    """Return a record as the runner would write it; ``changes`` override fields, those of its spec with the prefix ``spec_``."""
    spec = RunSpec(attention=attention, task=task, options={"dial": 1}, task_options={"size": 8}, seed=seed)
    spec = replace(spec, **{name.removeprefix("spec_"): changes.pop(name) for name in list(changes) if name.startswith("spec_")})
    done = status == "done"
    record = RunRecord(
        schema=SCHEMA,
        protocol=spec.protocol,
        run_id=spec.run_id("1"),
        spec=spec,
        attention_card={"name": attention, "title": attention.title(), "control": attention in ("none", "uniform")},
        task_card={"name": task, "title": task.title(), "version": "1", "metric": "accuracy", "length": 16, "classes": 10},
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

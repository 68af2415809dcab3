"""Runs as a polars dataframe with one row per run, so that users can make their own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from attn_zoo.records.record import RunRecord
from attn_zoo.records.spec import writable
from attn_zoo.records.store import Store

Take = Callable[[RunRecord], Any]

_POINT = {"step": pl.Int64, "train_seconds": pl.Float64, "train_loss": pl.Float64, "valid": pl.Float64}
_PART = {"part": pl.String, "score": pl.Float64}
_PARTS = "test: "
"""Prefix of the names of scores on parts of the test split."""
COUNTED = (
    *("parameters", "attention_parameters", "flops_per_example", "training_flops_per_example", "pretraining_flops_per_example"),
    *("activation_bytes_per_example", "mechanism_flops", "mechanism_flops_4096", "state_bytes", "state_bytes_4096"),
)
"""Columns of counts, which are equal on every machine."""
_MEASURED = ("pretrain_seconds", "train_seconds", "step_seconds_median", "step_seconds_iqr", "examples_per_second", "peak_bytes")
_LARGEST = 2**63 - 1


def _plain(value: Any) -> Any:
    """Return mappings and dataclasses as plain data. A value that JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return dict(value)
    return {part.name: getattr(value, part.name) for part in fields(value)} if is_dataclass(value) else repr(value)


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _text(take: Take) -> tuple[Any, Take]:
    return pl.String, lambda record: None if (value := take(record)) is None else str(writable(str(value)))


def _json(take: Take) -> tuple[Any, Take]:
    return pl.String, lambda record: _encoded(take(record))


def _number(take: Take) -> tuple[Any, Take]:
    return pl.Float64, lambda record: _finite(take(record))


def _count(take: Take) -> tuple[Any, Take]:
    return pl.Int64, lambda record: None if (value := take(record)) is None else max(-_LARGEST, min(_LARGEST, int(value)))


def _score(name: str) -> tuple[Any, Take]:
    return _number(lambda record: record.scores.get(name))


def _until(share: str, unit: str) -> tuple[Any, Take]:
    return _number(lambda record: (record.reached.get(share) or {}).get(unit))


def _counted(name: str) -> tuple[Any, Take]:
    return _count(lambda record: record.counted.get(name))


def _measured(name: str) -> tuple[Any, Take]:
    return _number(lambda record: record.measured.get(name))


def _noted(name: str) -> tuple[Any, Take]:
    return _text(lambda record: record.environment.get(name))


_COLUMNS: dict[str, tuple[Any, Take]] = {
    "run_id": _text(lambda record: record.run_id),
    "source": _text(lambda record: record.source),
    "protocol": _text(lambda record: record.protocol),
    "task": _text(lambda record: record.spec.task),
    "task_version": _text(lambda record: record.task_card["version"]),
    "task_options": _json(lambda record: record.spec.task_options),
    "task_card": _json(lambda record: record.task_card),
    "attention": _text(lambda record: record.spec.attention),
    "attention_version": _count(lambda record: record.spec.attention_version),
    "attention_card": _json(lambda record: record.attention_card),
    "control": (pl.Boolean, lambda record: bool(record.attention_card.get("control"))),
    "options": _json(lambda record: record.spec.options),
    "requested": _text(lambda record: record.spec.implementation),
    "implementation": _text(lambda record: record.implementation),
    "seed": _count(lambda record: record.spec.seed),
    "model": _json(lambda record: record.spec.model.to_dict()),
    "heads": _count(lambda record: record.spec.model.heads),
    "budget": _json(lambda record: record.spec.budget.to_dict()),
    "precision": _text(lambda record: record.spec.precision),
    "device": _text(lambda record: record.spec.device),
    "data": _json(lambda record: record.data),
    "status": _text(lambda record: record.status),
    "reason": _text(lambda record: record.reason),
    "warnings": (pl.List(pl.String), lambda record: [str(writable(said)) for said in record.warnings]),
    "chance": _number(lambda record: record.chance),
    **{name: _score(name) for name in ("test", "valid", "train")},
    "parts": (pl.List(pl.Struct(_PART)), lambda record: _parts(record.scores)),
    "curve": (pl.List(pl.Struct(_POINT)), lambda record: [_point(point) for point in record.curve]),
    "stopped": _text(lambda record: record.stopped),
    "flat": (pl.Boolean, lambda record: record.flat),
    **{f"{unit}_to_{share}": _until(share, unit) for share in ("50", "90", "99") for unit in ("steps", "seconds", "flops")},
    **{name: _counted(name) for name in COUNTED},
    **{name: _measured(name) for name in _MEASURED},
    "processor": _text(lambda record: _processor(record.environment)),
    "machine": _text(lambda record: f"{_processor(record.environment)}, torch {record.environment.get('torch')}"),
    **{name: _noted(name) for name in ("started", "command", "commit")},
    "study": _text(lambda record: record.tuning and record.tuning.study),
    "trial": _count(lambda record: record.tuning and record.tuning.trial),
    "trials": _count(lambda record: record.tuning and record.tuning.trials),
    "tuning": (pl.String, lambda record: record.tuning and _encoded(record.tuning)),
}
"""Type of each column, and the function that returns the column's value for a record."""


def frame(records: str | Path | Iterable[RunRecord]) -> pl.DataFrame:
    """Return all runs of a folder or packed file as a dataframe with one row per run. Trials of searches are included.

    - ``options``, ``task_options``, ``model``, ``budget``, ``data``, ``tuning``, ``attention_card`` and ``task_card`` are JSON
      text.
    - ``curve`` is a list of points (``step``, ``train_seconds``, ``train_loss``, ``valid``).
    - ``parts`` is a list of scores on parts of the test split.
    - ``steps_to_90``, ``seconds_to_90`` and ``flops_to_90`` say when the validation score first reached 90 % of the highest
      possible score. They are null if it never did, or if training did not end at a criterion. Columns for 50 and 99 % exist as
      well.
    - Times are in seconds, and memory is in bytes.
    - Further counts and measurements of the records, if any, are the last columns.

    Files that are not complete records are left out; ``Store(folder).load()`` names them.

    For example, the mean accuracy of each mechanism, as a pandas dataframe::

        import polars
        from attn_zoo.records import frame
        runs = frame("results/quickstart").filter(status="done", task="digits")
        runs.group_by("attention").agg(polars.col("test").mean()).to_pandas()

    Args:
        records: path of a folder or packed file, or several ``RunRecord`` objects.

    Raises:
        NotADirectoryError: the path is a file but not a packed file.
        RecordError: the path is a damaged packed file.
        ValueError: ``records`` holds an object that is not a ``RunRecord``.
    """
    if isinstance(records, str | Path):
        records = Store(records).load()[0]
    records = list(records) if isinstance(records, Iterable) else [records]
    if strangers := [record for record in records if not isinstance(record, RunRecord)]:
        raise ValueError(f"records must be RunRecord objects, as returned by Store(FOLDER).load(); got {strangers[0]!r:.80}")
    further = sorted({name for record in records for name in (*record.counted, *record.measured)} - _COLUMNS.keys())
    columns = _COLUMNS | {name: _number(partial(_further, name=name)) for name in further}
    lines = [{name: take(record) for name, (_, take) in columns.items()} for record in records]
    return pl.DataFrame(lines, {name: kind for name, (kind, _) in columns.items()})


def _processor(environment: Mapping[str, Any]) -> str:
    device = environment.get("gpu") or environment.get("cpu") or "unknown device"
    threads = environment.get("threads")
    return f"{device}, {threads} thread{'s' * (threads != 1)}"


def _further(record: RunRecord, name: str) -> float | None:
    return record.counted.get(name, record.measured.get(name))


def _parts(scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the scores on parts of the test split."""
    named = {name.removeprefix(_PARTS): score for name, score in scores.items() if name.startswith(_PARTS)}
    return [{"part": str(writable(part)), "score": _finite(score)} for part, score in named.items()]


def _point(point: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _finite(point.get(name)) for name in _POINT}


def _finite(value: Any) -> float | None:
    """Return a number, or None for NaN, infinity and values that are not numbers."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

"""Runs as a polars dataframe with one row per run, so that users can make their own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from attn_zoo.records.record import COUNTED, MEASURED, PART, RunRecord, run_records
from attn_zoo.records.spec import Budget, ModelSpec, writable
from attn_zoo.records.store import Store

_POINT = {"step": pl.Int64, "train_seconds": pl.Float64, "train_loss": pl.Float64, "valid": pl.Float64}
_PART = {"part": pl.String, "score": pl.Float64}
_LARGEST = 2**63 - 1

Kind = tuple[Any, Callable[[Any], Any]]
"""Type of a column, and the function that converts a value of a record to this type."""


def _text(value: Any) -> str | None:
    return None if value is None else str(writable(str(value)))


def _plain(value: Any) -> Any:
    """Return a mapping as a dict, and any other value that JSON lacks as text."""
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _encoded(value: Any) -> str | None:
    value = value.to_dict() if isinstance(value, ModelSpec | Budget) else value  # without fields that were added later
    return None if value is None else msgspec.json.encode(value, enc_hook=_plain).decode()


def _finite(value: Any) -> float | None:
    """Return a number, or None for NaN, infinity and values that are not numbers."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _bounded(value: Any) -> int | None:
    return None if value is None else max(-_LARGEST, min(_LARGEST, int(value)))


def _points(curve: Iterable[Mapping[str, float]]) -> list[dict[str, float | None]]:
    return [{name: _finite(point.get(name)) for name in _POINT} for point in curve]


def _parts(scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the scores on parts of the test split."""
    named = {name.removeprefix(PART): score for name, score in scores.items() if name.startswith(PART)}
    return [{"part": str(writable(part)), "score": _finite(score)} for part, score in named.items()]


_TEXT: Kind = (pl.String, _text)
_JSON: Kind = (pl.String, _encoded)
_NUMBER: Kind = (pl.Float64, _finite)
_COUNT: Kind = (pl.Int64, _bounded)
_COLUMNS: dict[str, tuple[Kind, str]] = {
    **{name: (_TEXT, name) for name in ("run_id", "source", "protocol")},
    "task": (_TEXT, "spec.task"),
    "task_version": (_TEXT, "task_card.version"),
    "task_options": (_JSON, "spec.task_options"),
    "task_card": (_JSON, "task_card"),
    "attention": (_TEXT, "spec.attention"),
    "attention_version": (_COUNT, "spec.attention_version"),
    "attention_card": (_JSON, "attention_card"),
    "control": ((pl.Boolean, bool), "attention_card.control"),
    "options": (_JSON, "spec.options"),
    "requested": (_TEXT, "spec.implementation"),
    "implementation": (_TEXT, "implementation"),
    "seed": (_COUNT, "spec.seed"),
    "model": (_JSON, "spec.model"),
    "heads": (_COUNT, "spec.model.heads"),
    "budget": (_JSON, "spec.budget"),
    "precision": (_TEXT, "spec.precision"),
    "device": (_TEXT, "spec.device"),
    "data": (_JSON, "data"),
    "status": (_TEXT, "status"),
    "reason": (_TEXT, "reason"),
    "warnings": ((pl.List(pl.String), lambda said: [str(writable(each)) for each in said]), "warnings"),
    "chance": (_NUMBER, "chance"),
    **{name: (_NUMBER, f"scores.{name}") for name in ("test", "valid", "train")},
    "parts": ((pl.List(pl.Struct(_PART)), _parts), "scores"),
    "curve": ((pl.List(pl.Struct(_POINT)), _points), "curve"),
    "stopped": (_TEXT, "stopped"),
    "flat": ((pl.Boolean, lambda flat: flat), "flat"),
    **{
        f"{unit}_to_{share}": (_NUMBER, f"reached.{share}.{unit}")
        for share in ("50", "90", "99")
        for unit in ("steps", "seconds", "flops")
    },
    **{name: (_COUNT, f"counted.{name}") for name in COUNTED},
    **{name: (_NUMBER, f"measured.{name}") for name in MEASURED},
    "processor": (_TEXT, "processor"),
    "machine": (_TEXT, "machine"),
    **{name: (_TEXT, f"environment.{name}") for name in ("started", "command", "commit")},
    "study": (_TEXT, "tuning.study"),
    "trial": (_COUNT, "tuning.trial"),
    "trials": (_COUNT, "tuning.trials"),
    "tuning": (_JSON, "tuning"),
}
"""Kind of each column, and the path of its value in a record."""


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
    records = run_records(Store(records).load()[0] if isinstance(records, str | Path) else records)
    known = [*COUNTED, *MEASURED]
    further = sorted({(group, name) for record in records for group in ("counted", "measured") for name in getattr(record, group)})
    columns = _COLUMNS | {name: (_NUMBER, f"{group}.{name}") for group, name in further if name not in known}
    lines = [{name: convert(_at(record, path)) for name, ((_, convert), path) in columns.items()} for record in records]
    return pl.DataFrame(lines, {name: kind for name, ((kind, _), _) in columns.items()})


def _at(value: Any, path: str) -> Any:
    """Return the value at a path of fields and keys, such as ``spec.task``. If a part of the path is missing, return None."""
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value

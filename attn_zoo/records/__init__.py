"""Records of runs: the spec of a run, the record of its results, and folders of records. This package does not import PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attn_zoo.records.environment import describe_environment
from attn_zoo.records.files import read_record
from attn_zoo.records.record import DIED, FINAL_STATUSES, SCHEMA, STATUSES, RecordError, RunRecord, Status
from attn_zoo.records.spec import PROTOCOLS, Budget, ModelSpec, RunSpec, file_stem
from attn_zoo.records.store import Damaged, Store
from attn_zoo.records.tuning import Tuning

if TYPE_CHECKING:
    from attn_zoo.records.frames import frame

__all__ = [
    "DIED",
    "FINAL_STATUSES",
    "PROTOCOLS",
    "SCHEMA",
    "STATUSES",
    "Budget",
    "Damaged",
    "ModelSpec",
    "RecordError",
    "RunRecord",
    "RunSpec",
    "Status",
    "Store",
    "Tuning",
    "describe_environment",
    "file_stem",
    "frame",
    "read_record",
]


def __getattr__(name: str) -> Any:
    """Import ``frame`` when it is first used, because importing polars takes a fifth of a second."""
    if name == "frame":
        from attn_zoo.records.frames import frame

        return frame
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

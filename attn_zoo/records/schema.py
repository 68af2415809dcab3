"""Shape of the plain data of a record: its fields, their types, and the bounds of all numbers. It is checked with msgspec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any

from msgspec import Meta, Struct, defstruct

from attn_zoo.records.spec import Budget, ModelSpec, RunSpec
from attn_zoo.records.tuning import Tuning

LARGEST = 2.0**64
"""Greatest absolute value of a number in a record."""
_LONG = 2**63 - 1
"""Bound of every integer in a record."""

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-_LONG, le=_LONG)]
Count = Annotated[int, Meta(ge=0, le=_LONG)]
Scalar = None | bool | str | Number | Whole
Free = dict[str, Scalar]
"""Mapping from any names to single values, such as numbers and strings."""


_KINDS: Mapping[str, Any] = {
    **{"str": str, "int": Whole, "float": Number, "bool": bool, "int | None": Count | None, "float | None": Number | None},
    **{"Mapping[str, str]": dict[str, str], "Mapping[str, Any]": Free},
}
"""Schema of a field by the annotation in its dataclass."""


def _part(kind: type, **parts: Any) -> type[Struct]:
    """Return the schema of a dataclass. Fields with a default may be missing; ``parts`` has the schemas of some fields."""
    made: list[Any] = []
    for part in fields(kind):
        needed = part.default is MISSING and part.default_factory is MISSING
        made.append((part.name, parts.get(part.name, _KINDS.get(str(part.type))), *(() if needed else (None,))))
    return defstruct(kind.__name__, made, forbid_unknown_fields=True, kw_only=True)


_Spec = _part(RunSpec, model=_part(ModelSpec), budget=_part(Budget), attention_version=Count)
_Tuning = _part(Tuning)


class _AttentionCard(Struct, kw_only=True):
    name: str
    title: str
    control: bool = False
    length_rules: dict[str, str] = {}
    paper: str = ""
    equation: str = ""
    time: str = ""
    memory: str = ""
    origin: str = ""


class _TaskCard(Struct, kw_only=True):
    name: str
    title: str
    version: str
    metric: str
    length: Count | None
    summary: str = ""
    source: str = ""
    licence: str = ""
    problem: str = ""
    criterion: str = ""
    higher_is_better: bool = True
    data: str | None = None
    causal: bool | None = None
    classes: Count | None = None


class _Environment(Struct, kw_only=True):
    cpu: str | None = None
    gpu: str | None = None
    torch: str | None = None
    started: str | None = None
    command: str | None = None
    commit: str | None = None
    backend: str | None = None
    cuda: str | None = None
    threads: Count = 0
    processes: Count = 0
    cores: Count | None = None
    memory_bytes: Count = 0
    dirty: bool | None = None
    denormals_flushed: bool = False
    resumed: list[dict[str, Scalar | Free]] = []
    plugins: Free = {}
    settings: Free = {}


class _Split(Struct, forbid_unknown_fields=True):
    digest: str
    examples: Count
    distant: Count = 0


class _Point(Struct, forbid_unknown_fields=True):
    step: Count
    train_seconds: Number | None = None
    train_loss: Number | None = None
    valid: Number | None = None


class RecordData(Struct, forbid_unknown_fields=True, kw_only=True):
    schema: Count
    protocol: str
    run_id: str
    status: str
    reason: str | None
    spec: _Spec  # type: ignore[valid-type]  # made by a call
    attention_card: _AttentionCard
    task_card: _TaskCard
    environment: _Environment
    data: dict[str, _Split]
    scores: dict[str, Number]
    chance: Number | None
    curve: list[_Point]
    counted: dict[str, Count]
    measured: dict[str, Amount]
    stopped: str | None
    reached: dict[str, dict[str, Amount] | None]
    flat: bool | None
    implementation: str | None
    warnings: list[str]
    tuning: _Tuning | None = None  # type: ignore[valid-type]  # made by a call
    digest: str | None = None


class OpenData(Struct):
    """Types of the fields that cards and environments may have beside the known ones."""

    attention_card: dict[str, Scalar | dict[str, str]]
    task_card: Free
    environment: dict[str, Scalar | Free | list[dict[str, Scalar | Free]]]

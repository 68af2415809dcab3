"""Schema of a record as plain data: types of all fields and bounds of all numbers, which msgspec checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, defstruct

from attn_zoo.records.errors import RecordError
from attn_zoo.records.spec import Budget, ModelSpec

LARGEST = 2.0**64
"""Greatest absolute value of a number in a record."""
_LONG = 2**63 - 1
"""Bound of every integer in a record."""
_SHARE = (0.0, 1.0)
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("accuracy", "f1", "f1_micro", "f1_macro"), _SHARE),
    "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
    "mse": (0.0, math.inf),
}
"""Least and greatest possible score of each metric."""
_AT_LEAST_ONE = ("parameters", "flops_per_example", "training_flops_per_example", "pretraining_flops_per_example")
"""Counts that must be at least 1, because they include the output layer of the network."""

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-_LONG, le=_LONG)]
Count = Annotated[int, Meta(ge=0, le=_LONG)]
Scalar = None | bool | str | Number | Whole
Free = dict[str, Scalar]
"""Mapping from any names to single values, such as numbers and strings."""


def _part(name: str, kind: type) -> type[Struct]:
    """Return the schema of a part of a spec: a dataclass of which every field may be missing."""
    known: Mapping[str, Any] = {"int": Whole, "float": Number, "str": str, "bool": bool}
    optional = [(option.name, known[str(option.type)], None) for option in fields(kind)]
    return defstruct(name, optional, forbid_unknown_fields=True)


_Model, _Budget = _part("_Model", ModelSpec), _part("_Budget", Budget)


class _Spec(Struct, forbid_unknown_fields=True, kw_only=True):
    attention: str
    task: str
    options: Free
    task_options: Free
    implementation: str
    model: _Model  # type: ignore[valid-type]  # made by a call
    budget: _Budget  # type: ignore[valid-type]  # made by a call
    seed: Whole
    device: str
    precision: str
    attention_version: Count = 1


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


class _Point(Struct, forbid_unknown_fields=True):
    step: Count
    train_seconds: Number | None = None
    train_loss: Number | None = None
    valid: Number | None = None


class _Tuning(Struct, forbid_unknown_fields=True, kw_only=True):
    study: str
    space: dict[str, str]
    trial: Count | None = None
    trials: Count | None = None
    failed: Count | None = None
    best_trial: Count | None = None
    seed: Count | None = None
    best_valid: Number | None = None


class _Record(Struct, forbid_unknown_fields=True, kw_only=True):
    schema: Count
    protocol: str
    run_id: str
    status: str
    reason: str | None
    spec: _Spec
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
    tuning: _Tuning | None = None
    digest: str | None = None


class _Open(Struct):
    """Types of the fields that cards and environments may have beside the known ones."""

    attention_card: dict[str, Scalar | dict[str, str]]
    task_card: Free
    environment: dict[str, Scalar | Free | list[dict[str, Scalar | Free]]]


def check_shape(data: Mapping[str, Any]) -> None:
    """Check the types of all fields and the bounds of all numbers in a record's plain data.

    Raises:
        RecordError: fields or numbers are wrong; the message names the first.
    """
    for schema in (_Record, _Open):
        try:
            convert(data, schema)
        except ValidationError as error:
            told = ascii(str(error))[1:-1]  # it quotes names of the data
            raise RecordError(f"the record does not fit its schema: {told:.200}") from None
    if words := next(beyond_bounds(data), None):
        raise RecordError(words)


def bounds(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest possible score of a metric. For an unknown metric, they are infinite."""
    return BOUNDS.get(metric, (-math.inf, math.inf))


def beyond_bounds(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each impossible number in a record's plain data: a score outside the bounds of its metric, or an
    impossible count or time."""
    metric = data["task_card"]["metric"]
    least, most = bounds(metric)
    for name, score in _scores(data):
        if score is not None and not least <= score <= most:
            yield f"{name} must be from {least:g} to {most:g}, because the metric is {metric}; got {score:g}"
    counted = data["counted"]
    for name in _AT_LEAST_ONE:
        if counted.get(name, 1) < 1:
            yield f"counted.{name} must be at least 1; got {counted[name]}"
    for name, value in data["measured"].items():
        if not value and name != "step_seconds_iqr":
            yield f"measured.{name} must be above 0; got {value:g}"
    if counted.get("attention_parameters", 0) > counted.get("parameters", math.inf):
        yield f"counted.attention_parameters must be at most {counted['parameters']}; got {counted['attention_parameters']}"


def _scores(data: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    yield from ((f"the score {name!r}", score) for name, score in data["scores"].items())
    yield "the chance level", data["chance"]
    yield from ((f"the validation score at step {point['step']}", point.get("valid")) for point in data["curve"])
    yield "the best validation score of the study", (data.get("tuning") or {}).get("best_valid")

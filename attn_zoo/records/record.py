"""Record of one run, finished or failed, and checks of the plain data from which it is made.

All commands read records with ``RunRecord.from_dict``, so they show exactly the records that ``attn-zoo records verify`` accepts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import msgspec
from msgspec import ValidationError, convert

from attn_zoo.records.criterion import ALIKE
from attn_zoo.records.schema import LARGEST, OpenData, RecordData
from attn_zoo.records.spec import RunSpec, digest_of, writable
from attn_zoo.records.tuning import Tuning

MOST_BYTES = 2**26
"""Maximum size of the file of a record."""
SCHEMA = 6
"""Version of the fields of a record file. Records of earlier versions, which were never released, cannot be read."""

Status = Literal["done", "diverged", "out_of_memory", "timed_out", "refused", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)
FINAL_STATUSES = ("done", "diverged", "refused")
"""Statuses that would be the same if the run was repeated. A run with another status is repeated when its command is given again,
unless its record has the key ``DIED``."""


DIED = "died"
"""Key in the ``environment`` of a record. It means that the run died on every try: its process ended before the run did, or the run
raised an error that ends a process, such as SystemExit. The status of such a run is final."""


_SHARE = (0.0, 1.0)
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("accuracy", "f1", "f1_micro", "f1_macro"), _SHARE),
    "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
    "mse": (0.0, math.inf),
}
"""Least and greatest possible score of each metric."""
PART = "test: "
"""Prefix of the names of scores on parts of the test split."""
COUNTED = (
    *("parameters", "attention_parameters", "flops_per_example", "training_flops_per_example", "pretraining_flops_per_example"),
    *("activation_bytes_per_example", "mechanism_flops", "mechanism_flops_4096", "state_bytes", "state_bytes_4096"),
)
"""Names of counts, which are equal on every machine."""
MEASURED = (*("pretrain_seconds", "train_seconds", "step_seconds_median", "step_seconds_iqr", "examples_per_second", "peak_bytes"),)
"""Names of measurements, which hold for one machine."""
_AT_LEAST_ONE = ("parameters", "flops_per_example", "training_flops_per_example", "pretraining_flops_per_example")
"""Counts that must be at least 1, because they include the output layer of the network."""


class RecordError(ValueError):
    """Error for a file that is not a record, is incomplete, or was changed after it was written."""

    kind = "damaged"
    """Kind of the finding in ``attn-zoo records verify``: ``damaged``, ``edited`` or ``no record``."""


class EditedError(RecordError):
    """Error for a record that contradicts itself or its digest, because it was changed after it was written."""

    kind = "edited"


class ForeignError(RecordError):
    """Error for a JSON file of another kind, such as the output of ``attn-zoo measure``."""

    kind = "no record"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Record of one run. Numbers that were not measured are None or missing, never estimated."""

    schema: int
    protocol: str
    run_id: str
    spec: RunSpec
    attention_card: Mapping[str, Any]
    """Facts on the mechanism's card at the time of the run, so that tables do not need the mechanism's code: name, title, paper,
    equation, time, memory, control, origin, length_rules."""
    task_card: Mapping[str, Any]
    """Facts on the task's card at the time of the run: name, title, version, summary, source, licence, metric, higher_is_better,
    data, length, classes, causal and, for a problem other than classification, ``problem``."""
    data: Mapping[str, Mapping[str, Any]]
    """Data of each split: ``examples`` (count) and ``digest`` (SHA-256). For the test split of a task whose card names a part
    ``distant``, also the number of examples in this part."""
    status: Status
    reason: str | None
    """Why the status is not ``done``; None if it is."""
    scores: Mapping[str, float]
    """Scores ``test`` (computed once), ``valid``, ``train`` (on as many examples as ``valid``) and, for each part of the test split
    that the task names, ``test: PART``. With a fixed budget, they are scores of the weights with the best validation score;
    otherwise, of the last weights."""
    chance: float | None
    """Chance level: the test score of always giving the constant answer that fits the training labels best."""
    curve: tuple[Mapping[str, float], ...]
    """Learning curve: points of ``step``, ``train_seconds``, ``train_loss``, ``valid``. With a fixed budget, the loss is that of
    the step; with a criterion, it is the mean over the steps since the previous point."""
    counted: Mapping[str, int]
    """Counts, which are equal on every machine. For the whole network: ``parameters``, ``attention_parameters`` (projections and
    mechanism), ``flops_per_example`` (forward), ``training_flops_per_example`` (forward and backward),
    ``activation_bytes_per_example`` (saved by autograd for a training batch; absent if uncertain) and, with pretraining,
    ``pretraining_flops_per_example`` (forward and backward). For the mechanisms of all layers together: ``mechanism_flops``
    (forward) and, in causal tasks, ``state_bytes``; with the suffix ``_4096``, the same at 4,096 tokens."""
    measured: Mapping[str, float]
    """Measurements on one machine: ``pretrain_seconds``, ``train_seconds`` (without pretraining), ``step_seconds_median``,
    ``step_seconds_iqr``, ``examples_per_second``, ``peak_bytes``."""
    environment: Mapping[str, Any]
    """Facts about the run: versions, device, cores, commit, start in UTC, command. ``dirty`` is True if files differed from the
    commit, other than those in ``results``. ``resumed`` lists the earlier parts of an interrupted run. ``settings`` has the
    settings of the process that differ from PyTorch's defaults. ``died`` is True if the run died on every try, and missing
    otherwise."""
    implementation: str | None
    """Implementation that ran; None if the run ended before it was chosen."""
    stopped: str | None = None
    """How a finished run with a criterion ended: ``criterion`` if it met the criterion, ``cap`` if it did all steps without meeting
    it. None for other runs."""
    reached: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    """``steps``, ``seconds`` and ``flops`` of training until the validation score first reached 50, 90 and 99 % of the highest
    possible score; None for a percentage that the run did not reach. Empty without a criterion."""
    flat: bool | None = None
    """True if the training loss fell by less than 2 % after the warm-up. Tables call such a run *not trained* if its validation
    score is also within two points of the best control. None without a criterion."""
    warnings: tuple[str, ...] = ()
    """Warnings about the settings, such as a window as long as the input."""
    tuning: Tuning | None = None
    """Hyperparameter search that the run belongs to; left out of the file if None. A trial has no test score, because settings are
    chosen by validation scores."""
    source: str | None = field(default=None, compare=False)
    """Path of the file, relative to the folder of records; not saved."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"the status must be one of {', '.join(STATUSES)}; got {self.status!r}")
        if (self.status == "done") != (self.reason is None):
            raise RecordError(
                f"reason must be null if status is done, and text for any other status; got status {self.status!r}, reason "
                f"{self.reason!r}"
            )
        if self.stopped not in (None, "criterion", "cap"):
            raise RecordError(f"stopped must be criterion, cap or None; got {self.stopped!r}")
        if self.status == "done" and not self.is_trial and "test" not in self.scores:
            raise RecordError("a record with status done must have a test score; got none")
        if self.is_trial and any(name == "test" or name.startswith("test:") for name in self.scores):
            raise RecordError("a trial of a study must not have a test score, because settings are chosen by validation alone")

    @property
    def is_trial(self) -> bool:
        """True for a trial of a hyperparameter search. A trial has no row in tables."""
        return self.tuning is not None and self.tuning.trial is not None

    @property
    def is_final(self) -> bool:
        """True if the run is finished for good: the same command does not repeat it."""
        return self.status in FINAL_STATUSES or DIED in self.environment

    @property
    def processor(self) -> str:
        """Device that did the run, with the number of threads."""
        threads = self.environment.get("threads")
        device = self.environment.get("gpu") or self.environment.get("cpu") or "unknown device"
        return f"{device}, {threads} thread{'s' * (threads != 1)}"

    @property
    def machine(self) -> str:
        """Processor and version of PyTorch. Measurements are compared only between runs on the same machine."""
        return f"{self.processor}, torch {self.environment.get('torch')}"

    @property
    def steps_to_90(self) -> float | None:
        """Training steps until the validation score first reached 90 % of the highest possible score, or None if it did not."""
        return (self.reached.get("90") or {}).get("steps")

    @property
    def tests_as_validated(self) -> bool:
        """True if the test examples are of the same kind as the validation examples, whose scores end a run with a criterion."""
        return self.task_card.get("criterion", ALIKE) == ALIKE

    @property
    def validations(self) -> list[Mapping[str, float]]:
        """Points of the curve whose validation score is finite."""
        return [point for point in self.curve if point.get("valid") is not None and math.isfinite(point["valid"])]

    def score(self, name: str) -> float | None:
        """Return a score, or None if it is missing or not finite."""
        found = self.scores.get(name)
        return found if found is not None and math.isfinite(found) else None

    def to_text(self) -> str:
        """Return the record as the text of its file, after the checks that ``from_text`` makes.

        Raises:
            RecordError: the record fails a check.
        """
        try:
            text = json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False) + "\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"the record cannot be written as JSON: {error}") from error
        if len(text) > MOST_BYTES:
            raise RecordError(f"a record must have at most {MOST_BYTES:,} bytes; this one has {len(text):,}")
        RunRecord.from_text(text)
        return text

    @classmethod
    def from_text(cls, text: str, source: str | None = None) -> RunRecord:
        """Return the record that ``to_text`` turned into ``text``. The errors are those of ``parse`` and ``from_dict``."""
        return cls.from_dict(parse(text), source)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data for JSON, with its digest. NaN and infinity, as in a diverged loss, become None."""
        data = _plain(asdict(self))
        del data["source"]
        if self.tuning is None:
            del data["tuning"]
        else:
            data["tuning"] = {name: value for name, value in data["tuning"].items() if value is not None}
        return {**data, "digest": digest_of(data)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str | None = None) -> RunRecord:
        """Return the record that ``to_dict`` turned into ``data``.

        Raises:
            RecordError: a field is missing, unknown or of the wrong type, a number is out of bounds, or the schema is another one.
            EditedError: the data do not match their digest, or contradict themselves.
        """
        _check_schema(data)
        _check_shape(data)
        rest = {name: value for name, value in data.items() if name != "digest"}
        if data.get("digest") != digest_of(rest):
            raise EditedError("the content of the record does not match its digest, so it was changed after it was written")
        try:
            parsed = {"spec": RunSpec.from_dict(data["spec"]), "curve": tuple(data["curve"]), "warnings": tuple(data["warnings"])}
            parsed |= {"tuning": Tuning(**rest["tuning"]) if rest.get("tuning") is not None else None}
            record = cls(**{**rest, **parsed, "source": source})
        except RecordError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"the record is not complete: {type(error).__name__}: {error}") from error
        if contradiction := next(_contradictions(record), None):
            raise EditedError(contradiction)
        return record


def parse(text: str) -> Any:
    """Return the content of JSON text. Its numbers must be finite.

    Raises:
        RecordError: the text is not JSON, or a number is NaN or infinite.
    """
    try:
        return msgspec.json.decode(text.encode())
    except RecursionError as error:
        raise RecordError("a record must be JSON that Python can read; this JSON is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RecordError(f"the text is not readable as JSON: {error}") from error


def run_records(records: Any) -> list[RunRecord]:
    """Return records as a list.

    Raises:
        ValueError: ``records`` holds an object that is not a ``RunRecord``.
    """
    found = list(records) if isinstance(records, Iterable) else [records]
    if strangers := [record for record in found if not isinstance(record, RunRecord)]:
        raise ValueError(f"records must be RunRecord objects, as returned by Store(FOLDER).load(); got {strangers[0]!r:.80}")
    return found


def _check_schema(data: Any) -> None:
    """Check that plain data are a record of the present schema.

    Raises:
        ForeignError: the data are something else.
        RecordError: the data are not a mapping, or have another schema.
    """
    if not isinstance(data, Mapping):
        raise RecordError(f"a record must be a mapping; got a {type(data).__name__}")
    if not {"run_id", "spec"} & set(data):
        raise ForeignError("this JSON file is not the record of a run, so tables leave it out")
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        older = type(schema) is int and 0 < schema < SCHEMA
        advice = "Repeat the run, because this version was never released" if older else "Install the newest attn-zoo to read it"
        raise RecordError(f"the schema must be {SCHEMA}; got {schema!a:.80}. {advice}")


def _check_shape(data: Mapping[str, Any]) -> None:
    """Check the types of all fields and the bounds of all numbers in a record's plain data.

    Raises:
        RecordError: fields or numbers are wrong; the message names the first.
    """
    for schema in (RecordData, OpenData):
        try:
            convert(data, schema)
        except ValidationError as error:
            told = ascii(str(error))[1:-1]  # it quotes names of the data
            raise RecordError(f"the record does not fit its schema: {told:.200}") from None
    if words := next(_beyond_bounds(data), None):
        raise RecordError(words)


def bounds(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest possible score of a metric. For an unknown metric, they are infinite."""
    return BOUNDS.get(metric, (-math.inf, math.inf))


def _beyond_bounds(data: Mapping[str, Any]) -> Iterator[str]:
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


def _contradictions(record: RunRecord) -> Iterator[str]:
    """Yield contradictions between fields of a record as text."""
    expected = record.spec.run_id(str(record.task_card.get("version")), record.protocol)
    if record.run_id != expected:
        yield f"the record was changed after it was written: its run_id is {record.run_id}, but its spec gives {expected}"
    for what, actual, expected in (
        ("task", record.task_card.get("name"), record.spec.task),
        ("attention", record.attention_card.get("name"), record.spec.attention),
    ):
        if actual != expected:
            yield f"the record's card names the {what} {actual!r}, but its spec names {expected!r}"
    tested = _tested_on_curve(record)
    if tested is not None and tested != record.scores.get("valid"):
        yield f"the record's validation score is {record.scores.get('valid')}, but its curve gives {tested}"


def _tested_on_curve(record: RunRecord) -> float | None:
    """Return the validation score on the curve for the weights that are tested, or None if the run is not done."""
    scores = [point["valid"] for point in record.curve if point.get("valid") is not None]
    if record.status != "done" or not scores:
        return None
    if record.spec.budget.until == "criterion":
        return scores[-1]
    return max(scores) if record.task_card.get("higher_is_better", True) else min(scores)


def _plain(value: Any) -> Any:
    """Return plain data that can be read again: None for NaN and numbers beyond ``LARGEST``, escapes for bytes that are not
    text.
    """
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return None
    if isinstance(value, dict):
        return {writable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return writable(value)

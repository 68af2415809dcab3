"""What was found: one run, whole, failures included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from attn_zoo.records.spec import RunSpec
from attn_zoo.records.tuning import Tuning

SCHEMA = 4
"""Shape of the file. Old shapes keep loading: 1 had no ``warnings``, 2 no ``tuning``, 3 no ``implementation``."""

Status = Literal["done", "diverged", "out_of_memory", "timed_out", "refused", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)
FINAL_STATUSES = ("done", "diverged", "refused")
"""Statuses that would come out the same again; the others are tried anew by a second start."""


_TILED_AS_EAGER = frozenset(
    [
        *("bigbird", "block_sparse", "cosformer", "delta_rule", "entmax", "fixed"),
        *("gated_linear", "kernelized_linformer", "linear", "linformer", "linformer_lsh", "linformer_window"),
        *("local", "long_short", "longformer", "luna", "mega", "nystrom"),
        *("performer", "reformer", "sparse_linformer", "strided", "topk", "transformer_xl"),
    ]
)
"""Mechanisms whose CPU tiles were called ``eager`` before schema 4."""


class RecordError(ValueError):
    """A file is not a record, or not a whole one."""


def _implementation_before_4(spec: Any) -> str | None:
    """Today's name of the implementation that a record before schema 4 asked for, which is the one that ran."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("implementation"), str):
        return None
    asked = str(spec["implementation"])
    return "tiled" if asked == "eager" and spec.get("attention") in _TILED_AS_EAGER else asked


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. A number that was not measured is None, never a guess."""

    schema: int
    protocol: str
    run_id: str
    spec: RunSpec
    attention_card: Mapping[str, Any]
    """name, title, paper, equation, time, memory, control, origin: as they stood, so that tables need no code."""
    task_card: Mapping[str, Any]
    """name, title, version, summary, source, licence, metric, length, classes, causal."""
    data: Mapping[str, Mapping[str, Any]]
    """By split: ``examples`` (count) and ``digest`` (SHA-256)."""
    status: Status
    reason: str | None
    """Why the status is not ``done``; None when it is."""
    scores: Mapping[str, float]
    """``test`` (read once, with the weights that were best on validation), ``valid`` (best) and ``train`` (those weights, on as
    many examples as validation has); ``test: PART`` of each part of the test that the task names."""
    chance: float | None
    """Test score of always answering the most frequent training label."""
    curve: tuple[Mapping[str, float], ...]
    """Points of ``step``, ``train_seconds``, ``train_loss``, ``valid``."""
    counted: Mapping[str, int]
    """Same on every machine. Of the network: ``parameters``, ``attention_parameters`` (projections and mechanism),
    ``flops_per_example`` (forward), ``training_flops_per_example`` (forward and backward) and, where it is sure,
    ``activation_bytes_per_example`` (what autograd keeps of a training batch); ``pretraining_flops_per_example`` (forward and
    backward) where there was pretraining. Of the mechanisms alone, in all layers:
    ``mechanism_flops`` (forward) and, in causal tasks, ``state_bytes``; the same with ``_4096`` at 4,096 tokens."""
    measured: Mapping[str, float]
    """Of this machine: ``pretrain_seconds``, ``train_seconds`` (without those), ``step_seconds_median``, ``step_seconds_iqr``,
    ``examples_per_second``, ``peak_bytes``."""
    environment: Mapping[str, Any]
    """Versions, device, cores, commit, dirty, UTC start, command; of several processes their number and backend; of a run that was
    interrupted, as ``resumed``, the parts before the last."""
    implementation: str | None
    """Implementation that ran; None where the run ended before one was chosen."""
    warnings: tuple[str, ...] = ()
    """What makes the setting a doubtful one, such as a window as long as the input."""
    tuning: Tuning | None = None
    """The search of settings that the run belongs to; left out of the file where there is none. A trial has no test score: it is
    chosen from by validation alone."""
    source: str | None = field(default=None, compare=False)
    """File it was read from, relative to the folder of records; not part of the file."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if (self.status == "done") != (self.reason is None):
            raise RecordError(
                f"a run that is done has no reason, every other has one; got status {self.status!r}, reason {self.reason!r}"
            )
        if self.status == "done" and not self.is_trial and "test" not in self.scores:
            raise RecordError("a run that is done has a test score")
        if self.is_trial and any(name == "test" or name.startswith("test:") for name in self.scores):
            raise RecordError("a trial of a study has no test score; settings are chosen by validation alone")

    @property
    def is_trial(self) -> bool:
        """Whether the run was made to choose settings by, and is no row of a table."""
        return self.tuning is not None and self.tuning.trial is not None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        data = asdict(self)
        del data["source"]
        if self.tuning is None:
            del data["tuning"]
        else:
            data["tuning"] = {name: value for name, value in data["tuning"].items() if value is not None}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str | None = None) -> RunRecord:
        """The inverse of ``to_dict``, for a file ``source``.

        Raises:
            RecordError: a field is missing or unknown, or the schema is newer than this code.
        """
        if not isinstance(data, Mapping) or "schema" not in data:
            raise RecordError("not a run record: the field 'schema' is missing")
        if not isinstance(data["schema"], int) or not 1 <= data["schema"] <= SCHEMA:
            raise RecordError(f"schema {data['schema']!r} is not one of 1 to {SCHEMA}; install the newest attn-zoo to read it")
        if data["schema"] == 1:
            data = {**data, "warnings": []}
        ran = {} if data["schema"] >= 4 or "spec" not in data else {"implementation": _implementation_before_4(data["spec"])}
        data = {"tuning": None, **ran, **data, "schema": SCHEMA}
        known = {f.name for f in fields(cls)} - {"source"}
        if missing := known - set(data):
            raise RecordError(f"not a whole record: {', '.join(sorted(missing))} missing")
        if unknown := set(data) - known:
            raise RecordError(f"fields no record of schema {data['schema']} has: {', '.join(sorted(unknown))}")
        try:
            spec = RunSpec.from_dict(data["spec"])
            told = {"spec": spec, "curve": tuple(data["curve"]), "warnings": tuple(data["warnings"])}
            told |= {"tuning": Tuning(**data["tuning"]) if data["tuning"] is not None else None}
            return cls(**{**data, **told, "source": source})
        except RecordError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"not a whole record: {type(error).__name__}: {error}") from error

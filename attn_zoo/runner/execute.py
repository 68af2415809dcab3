"""Execution of one run, which returns a record even if it fails."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin
from torch import nn

from attn_zoo.checks import check_seed
from attn_zoo.contract import (
    SPLITS,
    AttentionCard,
    Examples,
    Geometry,
    Split,
    Task,
    TaskCard,
    TaskSpec,
    UnknownNameError,
    UnsupportedError,
    length_rules,
    plain_options,
)
from attn_zoo.count import attention_parameters, count_parameters, model_warnings
from attn_zoo.encoder import backbone_sizes, build_paired_model, build_token_reader
from attn_zoo.escapes import error_text
from attn_zoo.outside import Outside
from attn_zoo.plugin_imports import tell
from attn_zoo.process_state import flushed_denormals, flushes_denormals, sentence, unusual
from attn_zoo.process_state import kept as kept_state
from attn_zoo.records import DIED, SCHEMA, Budget, RunRecord, RunSpec, Status, describe_environment
from attn_zoo.records.criterion import is_flat, is_met, reached
from attn_zoo.records.record import PART, bounds
from attn_zoo.records.schema import LARGEST
from attn_zoo.registry import (
    attention_options,
    build_attention,
    build_task,
    card,
    changes_outside_runs,
    make_options,
    stated_options,
    task_card,
)
from attn_zoo.rows import RowName, attention_version, row_of
from attn_zoo.runner.checkpoint import Checkpoint, CheckpointError
from attn_zoo.runner.count import count_per_example, geometry_of
from attn_zoo.runner.facts import attention_facts, task_facts
from attn_zoo.runner.metrics import Measure, constant_score, evaluate, evaluate_parts, measure_named, measure_of
from attn_zoo.runner.patience import beat
from attn_zoo.runner.pretrain import pretrain
from attn_zoo.runner.state import DivergedError, Trained
from attn_zoo.runner.train import Progress, Setup, TimedOutError, train
from attn_zoo.runner.weights import KeptWeights

_PRECISIONS = {"fp32": ("no", torch.float32), "bf16": ("bf16", torch.bfloat16), "fp16": ("fp16", torch.float16)}
"""Name of each precision in accelerate, and dtype of its matrix products."""


_REASON = 10_000
"""Maximum number of characters of the reason in a record."""
_TORCH = Path(torch.__file__).parent
"""Folder of PyTorch. The reason of a failure names the last line outside it, because the fault may be how PyTorch was called."""


def resolve_spec(spec: RunSpec, locations: Mapping[str, Any] | None = None) -> RunSpec:
    """Return the spec with every default and the device filled in, so that it states all settings on which the run depends.

    Defaults that depend on the sequence length are computed for the length of the task. ``implementation`` is not changed, because
    ``auto`` is resolved when the run is built on its device. If training ends at a criterion and the task generates its examples,
    the seed of the run is also the seed of the examples (the task's option ``data_seed``).

    Args:
        locations: task options with the locations of data. They are checked, but are not in the result.

    Raises:
        UnknownNameError: the mechanism, the task, an option or the implementation is unknown.
        ValueError: an option, size, device, precision or ceiling is out of its range, or the network has fewer layers than its
            hybrid needs.
    """
    task_entry = task_card(spec.task)
    check_seed(spec.seed)
    task_options = plain_options(make_options(f"task {spec.task}", task_entry.options, {**spec.task_options, **(locations or {})}))
    task_options = {name: value for name, value in task_options.items() if name not in task_entry.locations}
    if spec.precision not in _PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(_PRECISIONS)}; got {spec.precision!r}")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device must be auto, cpu or cuda, and cuda needs a GPU that PyTorch finds; got {spec.device!r}")
    if spec.precision == "fp16" and device == "cpu":
        raise ValueError("precision=fp16 needs a GPU, because accelerate computes in fp32 on a CPU. Choose bf16 or fp32")
    measure = measure_named(task_entry.metric)
    most, why = (bounds(measure.name)[1], "its highest score") if measure.higher_is_better else (0.0, "where lower is better")
    if spec.budget.ceiling > most:
        raise ValueError(
            f"budget.ceiling must be at most {most:g} for the metric {measure.name}, {why}; got {spec.budget.ceiling:g}"
        )
    model = replace(spec.model, **backbone_sizes(spec.model.backbone)) if spec.model.backbone else spec.model
    for part in row_of(spec).parts():
        known = ("auto", *card(part.attention).implementations)
        if part.implementation not in known:
            raise UnknownNameError(f"implementation of {part.attention}", part.implementation, known)
    row_of(spec).layers(1 if model.shared_weights else model.depth)
    if spec.budget.until == "criterion" and build_task(spec.task, **task_options, **(locations or {})).generated:
        task_options["data_seed"] = spec.seed
    spec = replace(spec, task_options=task_options, model=model, device=device)
    row = _resolve_options(spec, locations or {})
    spec = replace(spec, attention=row.attention, options=row.options, implementation=row.implementation)
    return replace(spec, attention_version=attention_version(row.attention))


def _resolve_options(spec: RunSpec, locations: Mapping[str, Any]) -> RowName:
    """Return the row of a run with every option filled in. Build the task only if a default depends on its length."""

    @cache
    def geometry() -> Geometry:
        return geometry_of(spec, build_task(spec.task, **spec.task_options, **locations).spec)

    def resolve(part: RowName) -> RowName:
        entry = card(part.attention)
        if length_rules(entry.options).keys() <= part.options.keys():
            return replace(part, options=stated_options(entry, part.options))
        return replace(part, options=plain_options(attention_options(entry, geometry(), part.options)))

    return row_of(spec).changed(resolve)


def run(
    spec: RunSpec,
    progress: Progress,
    locations: Mapping[str, Any] | None = None,
    checkpoint: Checkpoint | None = None,
    kept: KeptWeights | None = None,
) -> RunRecord:
    """Train a network, test it once and return the record of the run.

    With a fixed budget, the weights with the best validation score are tested. If training ends at a criterion, the last weights
    are tested. A run that fails has a record with its ``status`` and ``reason``. If an interrupt from outside, such as Ctrl-C, ends
    the run, no record is returned.

    Args:
        spec: settings of the run, as ``resolve_spec`` returns them.
        locations: task options with the locations of data (``TaskCard.locations``).
        checkpoint: checkpoint from which the run continues, and to which it saves.
        kept: object that writes the weights of the network to a file after each of its chosen steps.

    Raises:
        CheckpointError: the checkpoint belongs to another network.
    """
    task_entry = task_card(spec.task)
    found = _Found(settings=unusual())
    ended, leaving = cast(tuple[Status, str | None], ("done", None)), False
    with Outside(progress.start, progress.advance) as outside, kept_state() as changed:
        try:
            progress.start(f"{spec.attention} on {spec.task}, seed {spec.seed}", spec.budget.steps)
            with flushed_denormals():
                _run(spec, build_task(spec.task, **spec.task_options, **(locations or {})), found, progress, checkpoint, kept)
        except CheckpointError:
            raise
        except BaseException as error:  # a plugin may raise anything
            ended, leaving = _failure(error), not issubclass(type(error), Exception)
            outside.pass_on(error)
        finally:
            progress.stop()
    found.warnings += _changes_by_plugins(spec, changed)
    record = found.record(spec, *ended, task_entry)
    return replace(record, environment={**record.environment, DIED: True}) if leaving else record


def _failure(error: BaseException) -> tuple[Status, str]:
    """Return the status and the reason to record for a run that ended in ``error``. The reason is the message of the error. If
    reading the message raises another error, as the code of a plugin may, the reason is a sentence about this error."""
    try:
        return _told(error)
    except BaseException as second:  # also an interrupt, which the caller passes on
        return "failed", f"it raised an error that cannot be read ({type(second).__name__})"


def _told(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, DivergedError):
        return "diverged", str(error)
    if isinstance(error, TimedOutError):
        return "timed_out", str(error)
    if isinstance(error, UnsupportedError):
        return "refused", str(error)
    text = error_text(error).partition(": ")[2]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return "out_of_memory", text.splitlines()[0] if text else "out of memory"
    frames = traceback.extract_tb(error.__traceback__)
    where = ([frame for frame in frames if not Path(frame.filename).is_relative_to(_TORCH)] or frames)[-1]
    return "failed", f"{type(error).__name__}: {text} (in {where.name}, {Path(where.filename).name}:{where.lineno})"


def _changes_by_plugins(spec: RunSpec, changed: Sequence[str]) -> tuple[str, ...]:
    """Return sentences about the settings of the process that a run's plugins changed, during their import or during the run.
    Settings that changed during the run (``changed``) also cause a warning."""
    entries: list[AttentionCard | TaskCard] = [*(card(part.attention) for part in row_of(spec).parts()), task_card(spec.task)]
    plugins = [entry for entry in entries if not entry.origin.startswith("attn_zoo.")]
    said = [words for entry in plugins for words in changes_outside_runs(entry)]
    if changed and plugins:
        said.append(sentence(" or ".join(entry.name for entry in plugins), "in a run", changed))
        tell(said[-1])
    return tuple(dict.fromkeys(said))


def died(spec: RunSpec, status: Status, reason: str) -> RunRecord:
    """Return the record of a run whose process ended early each time that the run was tried."""
    record = _Found(settings=unusual()).record(spec, status, reason, task_card(spec.task))
    return replace(record, environment={**record.environment, DIED: True})


@dataclass
class _Found:
    """Results of a run so far. Its record is made from them, whether they are complete or not."""

    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    task_spec: TaskSpec | None = None
    data_title: str | None = None
    criterion: str | None = None
    """Examples that the criterion reads, in words; None without a criterion."""
    scores: dict[str, float] = field(default_factory=dict)
    chance: float | None = None
    counted: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    trained: Trained = field(default_factory=Trained)
    environment: dict[str, Any] = field(default_factory=dict)
    implementation: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the process before the run that differ from PyTorch's defaults."""

    def record(self, spec: RunSpec, status: Status, reason: str | None, task: TaskCard) -> RunRecord:
        return RunRecord(
            schema=SCHEMA,
            protocol=spec.protocol,
            run_id=spec.run_id(task.version),
            spec=spec,
            attention_card=attention_facts(spec.attention),
            task_card=task_facts(task, self.task_spec, self.data_title, self.criterion),
            data=self.data,
            status=status,
            reason=reason if reason is None else reason[:_REASON],
            scores=self.scores,
            chance=self.chance,
            **self._criterion(spec.budget, status),
            curve=tuple(self.trained.curve),
            counted=self.counted,
            measured=_measured(self.trained, self._batch_size(spec.budget)),
            environment=self._environment(spec),
            implementation=self.implementation,
            warnings=self.warnings,
        )

    def _batch_size(self, budget: Budget) -> int:
        """Return the number of examples of a step, which is at most the size of the training split."""
        return min(budget.batch_size, self.data.get("train", {}).get("examples", budget.batch_size))

    def _criterion(self, budget: Budget, status: Status) -> dict[str, Any]:
        """Return the fields of the record that only runs until a criterion have, or none for other runs."""
        if budget.until != "criterion":
            return {}
        curve, flops = self.trained.curve, self.counted.get("training_flops_per_example")
        ended = "criterion" if is_met(curve, budget.ceiling) else "cap"
        return {
            "stopped": ended if status == "done" else None,
            "reached": reached(curve, budget.ceiling, None if flops is None else flops * self._batch_size(budget)),
            "flat": is_flat(curve, budget.warmup_steps),
        }

    def _environment(self, spec: RunSpec) -> dict[str, Any]:
        environment = self.environment or describe_environment(spec.device)
        said = {"resumed": self.trained.resumed, "settings": self.settings}
        return {**environment, **{name: value for name, value in said.items() if value}}


def _run(
    spec: RunSpec, task: Task, found: _Found, progress: Progress, checkpoint: Checkpoint | None, kept: KeptWeights | None
) -> None:
    found.environment = {**describe_environment(spec.device), "denormals_flushed": flushes_denormals()}
    measure = measure_of(task.card.metric, task.spec)
    splits: dict[Split, Examples] = {split: task.examples(split) for split in SPLITS}
    found.task_spec = task.spec
    found.data = {split: {"examples": len(part), "digest": part.digest()} for split, part in splits.items()}
    if task.card.distant is not None:
        members = task.slices("test")[task.card.distant]
        found.data["test"]["distant"] = int(members.reshape(len(members), -1).any(dim=1).sum())
    if checkpoint is not None:
        checkpoint.begin(found.environment, found.data)
    found.data_title = task.data_title
    found.criterion = task.criterion if spec.budget.until == "criterion" else None
    found.chance = constant_score(splits["train"].labels(), splits["test"].labels(), task.spec, measure)
    beat()  # from here on, a call that does not return ends the process if the run has a time limit
    found.implementation = implementation = _implementation(spec, task.spec)
    model = build_paired_model(task.spec, seed=spec.seed, implementation=implementation, **spec.network)
    found.counted = {
        "parameters": count_parameters(model),
        "attention_parameters": attention_parameters(model),
        **count_per_example(spec, task.spec, implementation),
    }
    found.warnings = model_warnings(model)
    reader = None
    if spec.budget.pretrain_steps:
        torch.manual_seed(spec.seed)  # so that the head of pretraining starts from the same values for every mechanism
        reader = build_token_reader(model, task.spec)
    accelerator, trained = _accelerator(spec), found.trained
    setup = Setup(task, spec.budget, spec.seed, accelerator, progress, trained, checkpoint, kept)
    torch.manual_seed(spec.seed)  # so that dropout and redraws do not depend on what building the model drew
    if reader is not None:
        pretrain(reader, splits["train"], setup)
    train(model, splits, setup)
    valid = trained.curve[-1]["valid"]
    if spec.budget.until == "steps":
        model.load_state_dict(trained.best_weights)
        assert trained.best_valid is not None
        valid = trained.best_valid
    scores = {
        "valid": valid,
        "train": evaluate(model, splits["train"], task.spec, measure, accelerator, limit=len(splits["valid"])),
        **_test_scores(model, task, splits["test"], measure, accelerator),
    }
    if lost := [name for name, score in scores.items() if not abs(score) <= LARGEST]:
        raise DivergedError(f"the score {lost[0]!r} must be a finite number; got {scores[lost[0]]}")
    found.scores = scores


def _implementation(spec: RunSpec, task: TaskSpec) -> str:
    """Return the implementation that runs: the requested one, or the one that ``auto`` chooses for the device and precision.

    For a hybrid: one name for all of its mechanisms, or one name for each, joined by ``+``.

    Raises:
        UnsupportedError: the mechanism lacks a capability that the task needs.
    """
    geometry, dtype = geometry_of(spec, task), _PRECISIONS[spec.precision][1]

    def choose(part: RowName) -> RowName:
        if part.implementation != "auto":
            return part
        with torch.device("meta"):
            built = build_attention(
                part.attention, geometry, implementation="auto", device=spec.device, dtype=dtype, **part.options
            )
        return replace(part, implementation=built.implementation)

    return row_of(spec).changed(choose).implementation


def _accelerator(spec: RunSpec) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate keeps device and precision of a process's first run
    return Accelerator(
        cpu=spec.device == "cpu",
        mixed_precision=_PRECISIONS[spec.precision][0],
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),  # this and the next override the launcher's config
        dynamo_backend="no",
    )


def _test_scores(model: nn.Module, task: Task, examples: Examples, measure: Measure, accelerator: Accelerator) -> dict[str, float]:
    """Return the score ``test`` over all examples, and ``test: PART`` for each part that the task names."""
    parts = {"test": torch.ones(len(examples), dtype=torch.bool)}
    parts |= {f"{PART}{name}": members for name, members in task.slices("test").items()}
    return evaluate_parts(model, examples, task.spec, measure, accelerator, parts)


def _measured(trained: Trained, batch_size: int) -> dict[str, float]:
    """Return the measurements on this machine. Median and interquartile range exclude the first step, which is a warm-up.

    Args:
        batch_size: examples of a step, at most all of the training split.
    """
    steps = trained.step_seconds[1:]
    measured = {"pretrain_seconds": trained.pretrain_seconds} if trained.pretrain_seconds else {}
    if len(steps) < 4:
        return measured
    quartiles = statistics.quantiles(steps, n=4)
    median = statistics.median(steps)
    measured |= {
        "train_seconds": trained.seconds,
        "step_seconds_median": median,
        "step_seconds_iqr": quartiles[2] - quartiles[0],
        "examples_per_second": batch_size / median,
    }
    if trained.peak_bytes:
        measured["peak_bytes"] = trained.peak_bytes
    return measured

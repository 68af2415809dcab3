"""Execution of one run in one process: train, test and record it, unless an equal run is already recorded.

The user's callback, such as an experiment tracker, observes the run, and does not change its result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attn_zoo import deaths, plugin_files
from attn_zoo.cli import progress
from attn_zoo.cli.config import Settings
from attn_zoo.contract import SPLITS
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.metrics import written
from attn_zoo.process_state.torch_parts import TORCH_RANDOM
from attn_zoo.records import DIED, RecordError, RunRecord, RunSpec, Status, Store, Tuning
from attn_zoo.records.environment import changed_plugins, command_line
from attn_zoo.records.tuning import setting
from attn_zoo.registry import build_task, card, load_plugin, task_card
from attn_zoo.rows import RowName
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.execute import died
from attn_zoo.runner.patience import place_of_hang, watched
from attn_zoo.runner.weights import KeptWeights
from attn_zoo.terminal import show


@dataclass(frozen=True, slots=True)
class Command:
    """Settings of a command, and all else that every process needs to execute its runs."""

    settings: Settings
    words: tuple[str, ...] = ()
    """Command as typed; it is stored in the records."""
    folder: str = field(default_factory=os.getcwd)
    """Working directory of the command, to which relative paths refer."""
    plugins: tuple[Path, ...] = ()
    """Files and folders of plugins, which every process loads."""

    def begin(self) -> None:
        """Prepare a worker process: change to the working directory of the command, load its plugins, and set its number of
        threads.

        Raises:
            FileNotFoundError: the folder or a plugin does not exist.
            ValueError: a plugin cannot be loaded.
        """
        if os.getcwd() != self.folder:
            try:
                os.chdir(self.folder)
            except OSError as error:
                raise FileNotFoundError(
                    f"a worker cannot find {self.folder!r}, the folder where the sweep was started. Start the sweep in a "
                    "folder that all workers share"
                ) from error
        for plugin in self.plugins:
            load_plugin(plugin)
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)


@dataclass(frozen=True, slots=True)
class Job:
    """One run that is to be executed."""

    spec: RunSpec
    """Specification of the run, with all values resolved."""
    locations: Mapping[str, Any] = field(default_factory=dict)
    """Task options that give the location of data."""
    tuning: Tuning | None = None
    """Hyperparameter search to which the run belongs; None for a run outside any search."""
    longer: str | None = None
    """Id of the run that may continue this run with more steps (``Checkpoint.longer``); None if there is no such run."""

    def resolved(self, **changes: Any) -> Job:
        """Return the job with changes of fields of its spec, and with all values resolved.

        Raises:
            UnknownNameError, ValueError: as ``resolve_spec``.
        """
        return replace(self, spec=resolve_spec(replace(self.spec, **changes), self.locations))

    @property
    def run_id(self) -> str:
        """Id of the run, which is also the id of its record."""
        return self.spec.run_id(task_card(self.spec.task).version)

    @property
    def label(self) -> str:
        """Name of the run in messages. For a trial of a search, it contains the values under test."""
        label = f"{self.spec.attention} on {self.spec.task}, seed {self.spec.seed}"
        if self.tuning is None or self.tuning.trial is None:
            return label
        return f"{label}, trial {self.tuning.trial} with {searched_values(self.spec, self.tuning)}"


def searched_values(spec: RunSpec, tuning: Tuning) -> str:
    """Return the searched hyperparameters with their values in ``spec``, as text."""
    found = ((key.partition(".")[2], setting(spec, key)) for key in sorted(tuning.space))
    return ", ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in found)


def load_callback(name: str) -> Callable[[RunSpec, str], Any]:
    """Return the class or function in a user's file that takes the spec and the id of a run, and makes a callback.

    Args:
        name: path of the file and name of the class or function, in the form ``FILE.py:NAME``.

    Raises:
        ValueError: ``name`` has another form, the file cannot be imported, or the file has no such class or function.
        FileNotFoundError: the file does not exist.
    """
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute:
        raise ValueError(f"callback= must be FILE.py:NAME, a file and the name of a class in it; got {name!r}")
    (module,) = plugin_files.load(Path(file))
    made = getattr(module, attribute, None)
    if not callable(made):
        raise ValueError(f"callback= must name a class in {file}, but this file has no class {attribute!r}. Correct the name")
    return made


class Watched:
    """Observer of a run that shows its progress and also calls the user's callback. If the callback raises an error, the error is
    reported once and the callback is not called again.

    Args:
        callback: name of the callback as ``FILE.py:NAME``, or None.
        bar: True to draw a bar on a terminal; False to print lines instead.

    Raises:
        ValueError: the callback cannot be loaded or created.
    """

    def __init__(self, callback: str | None, spec: RunSpec, run_id: str, *, bar: bool = True) -> None:
        self._name, self._by_time, self._bar = callback, bool(spec.budget.seconds), bar
        self._metric, self._valid = task_card(spec.task).metric, ""
        self._work: progress.Work | None = None
        self._random = TORCH_RANDOM.get()  # numbers of its own for the callback, so that those of the run do not change
        self._callback: Any = None
        if callback:
            make = load_callback(callback)
            try:
                self._callback = make(spec, run_id)
            except Exception as error:  # code of the user may raise anything
                raise ValueError(
                    f"the callback {callback} could not be created: {_text(error)}. Mend the class, or leave callback= out"
                ) from error

    def start(self, label: str, steps: int) -> None:
        """Begin to show the progress of the run. If its budget is a time, the number of steps is unknown."""
        self._work = progress.Work(label, None if self._by_time else steps, bar=self._bar, first=2 * progress.FIRST)
        self._work.__enter__()
        self._tell("start", label, steps)

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Show the number of steps done, the training loss and the last validation score. During pretraining, the number is
        negative and counts up to 0."""
        if valid is not None:
            self._valid = f"valid {written(valid, self._metric)}"
        if self._work is not None:
            self._work.update(step, ", ".join(filter(None, [f"loss {loss:.3f}", self._valid])))
        self._tell("advance", step, loss, valid)

    def stop(self) -> None:
        """Show and tell that the run has ended."""
        if self._work is not None:
            self._work.__exit__()
        self._tell("stop")

    def finish(self, record: RunRecord, path: Path) -> None:
        """Pass the record and the path of its file to the callback."""
        self._tell("finish", record, path)

    def _tell(self, method: str, *given: Any) -> None:
        if self._callback is not None:
            of_the_run = TORCH_RANDOM.get()
            TORCH_RANDOM.put(self._random)
            try:
                getattr(self._callback, method)(*given)
            except Exception as error:  # code of the user may raise anything
                self._callback = None
                print(f"attn-zoo: callback {self._name} failed and is not called again ({_text(error)})", file=sys.stderr)
            finally:
                self._random = TORCH_RANDOM.get()
                TORCH_RANDOM.put(of_the_run)


def one_run(command: Command, job: Job) -> RunRecord | None:
    """Execute a run and record it. A run is not executed if an equal run has a record with a final status, or if another process is
    executing it.

    Returns:
        The record of the run, new or earlier; None if another process is executing it.

    Raises:
        OSError: the record cannot be written into the folder. If it was written to another place, the message names this place.
        ValueError: the callback cannot be created.
    """
    settings, run_id = command.settings, job.run_id
    store = Store(settings.records)
    store.check_writable()  # before each run, since disks fill up in the course of a sweep
    with store.claim(run_id) as ours:
        if known := store.find(run_id, job.tuning, os.environ.get(deaths.STARTED, "")):
            weights = "; no weights were written; to write them, give another records=FOLDER" if settings.weights.after else ""
            _say(job, f"recorded already{_by_other_code(known)}{_with_other_data(known, job)}{weights}{_dead_before(known)}")
            return known
        if not ours:
            _say(job, "skipped, because another process is executing it; run the same command again to see its result")
            return None
        what, hang = f"{deaths.RUN}{run_id}", place_of_hang(store.claim_path(run_id))
        ends = deaths.reasons(what)
        if len(ends) >= deaths.TRIES:
            record = _dead(command, job, ends, hang)
        else:
            if ends:
                _say(job, f"its process {_hung(hang) or ends[-1]}; the run is tried once more, alone")
            store.claim_path(run_id).write_text("", encoding="utf-8")
            with deaths.during(what):
                record = _do(command, job, deaths.TRIES - len(ends))
    _say(job, _outcome(record))
    return record


def _say(job: Job, words: str) -> None:
    """Print a line about a run."""
    show(terminal(f"{job.label}: {words}"))


def _by_other_code(record: RunRecord) -> str:
    """Return a note that files of the plugins that define the mechanism and the task of a run have changed since. If they have
    not, the result is empty."""
    kinds = [task_card(record.spec.task).build, *(card(name).build for name in RowName(record.spec.attention).turn)]
    files = [file for kind in kinds if (file := plugin_files.file_of(sys.modules.get(kind.__module__)))]
    changed = changed_plugins(record.environment, files)
    return f" by an earlier version of {', '.join(changed)}; give another records=FOLDER to repeat it" if changed else ""


def _with_other_data(record: RunRecord, job: Job) -> str:
    """Return a note that the user's data, which the id of a run does not name, have changed since a run. If they have not, or
    cannot be read, the result is empty."""
    given = [f"task.{name}" for name, value in job.locations.items() if value and name != "root"]  # published data stay as they are
    if not given or not record.data:
        return ""
    task = build_task(job.spec.task, **job.spec.task_options, **job.locations)
    try:
        if all(task.examples(split).digest() == record.data[split]["digest"] for split in SPLITS):
            return ""
    except Exception:  # the run is not repeated, so nothing needs the data
        return ""
    return f" with other data than {' and '.join(given)} names now; give another records=FOLDER to train on these"


def _dead_before(record: RunRecord) -> str:
    """Return a note on a run without a score, and how to try it again if its process died. For a run with a score, it is empty."""
    again = ". To try it again, delete its record or give another records=FOLDER" if DIED in record.environment else ""
    return "" if record.status == "done" else f" as {record.status}: {record.reason}{again}"


def with_tuning(record: RunRecord, tuning: Tuning | None) -> RunRecord:
    """Return a record that names the hyperparameter search to which the run belongs. If ``tuning`` is None, return the record
    unchanged.

    Test scores are removed from the record of a trial, so that nobody can choose settings by them.
    """
    if tuning is None:
        return record
    kept = {name: score for name, score in record.scores.items() if name in ("valid", "train")}
    return replace(record, tuning=tuning, scores=record.scores if tuning.trial is None else kept)


def _do(command: Command, job: Job, tries: int) -> RunRecord:
    """Execute the run with the checkpoints and callback of the settings, and record it.

    Args:
        tries: how often the run is tried if it raises SystemExit or another error that would end its process.
    """
    settings, run_id = command.settings, job.run_id
    keep, card = settings.checkpoint, task_card(job.spec.task)
    progress = Watched(settings.callback, job.spec, run_id, bar=settings.launcher is None)
    kept = KeptWeights(settings.weights.folder, settings.weights.after, job.spec, card.version) if settings.weights.after else None
    checkpoint = None
    if keep.every or keep.minutes:
        checkpoint = Checkpoint(settings.records, run_id, keep.every, keep.minutes)
        checkpoint.longer = job.longer
        if words := checkpoint.open():
            _say(job, words)
    limit, claim = job.spec.budget.max_seconds or job.spec.budget.seconds, Store(settings.records).claim_path(run_id)
    with deaths.during(f"{deaths.RUN}{run_id}"), watched(limit, claim):  # a process that the run forked ends here, unrecorded
        record = with_tuning(run(job.spec, progress, job.locations, checkpoint, kept), job.tuning)
    if DIED in record.environment and tries > 1:
        _say(job, f"{record.reason}; the run is tried once more")
        return _do(command, job, tries - 1)
    record, path = _add(command, record)
    progress.finish(record, path)
    if checkpoint:
        checkpoint.remove()
    if kept:
        written, missing = len(kept.after) - len(kept.missing), ", ".join(map(str, kept.missing))
        lacking = f"; there are none after step {missing}" if missing else ""
        _say(job, f"weights of {written} step{'s' * (written != 1)} are in {settings.weights.folder!r}{lacking}")
    return record


def _dead(command: Command, job: Job, ends: Sequence[str], hang: str | None) -> RunRecord:
    """Record a run whose process died each time that the run was tried."""
    status: Status = "timed_out" if hang else "out_of_memory" if ends[-1] == deaths.KILLED else "failed"
    reason = f"the process {_hung(hang) or ends[-1]}, {len(ends)} times"
    return _add(command, with_tuning(died(job.spec, status, reason), job.tuning))[0]


def _hung(hang: str | None) -> str:
    """Return words for a process that was ended because a call did not return. If it was not, the result is empty."""
    return f"did not return from a call within its time limit ({hang})" if hang else ""


def _add(command: Command, record: RunRecord) -> tuple[RunRecord, Path]:
    """Add a record, with the command as typed; return it and its path. If no reader would accept it, because a plugin gave an
    impossible score or count, add a failed record that says so.
    """
    store, words = Store(command.settings.records), command_line(command.words)
    record = replace(record, environment={**record.environment, "command": words})
    try:
        return record, _keep(record, store)
    except RecordError as error:
        empty: dict[str, Any] = {
            "data": {},
            "scores": {},
            "chance": None,
            "curve": (),
            "counted": {},
            "measured": {},
            "warnings": (),
        }
        record = replace(record, status="failed", reason=f"the record of this run is not valid: {error}", **empty)
        return record, _keep(record, store)


def _keep(record: RunRecord, store: Store) -> Path:
    """Add the record. If its folder cannot be written, save it in the temporary folder, because the run may have taken hours."""
    try:
        return store.add(record)
    except OSError as error:
        try:
            kept = Store(tempfile.mkdtemp(prefix="attn-zoo-kept-")).add(record)
        except OSError:
            raise error from None
        raise OSError(
            f"{error}. The record was written to {str(kept)!r} instead. Copy this file to the folder of records before you run "
            "the command again"
        ) from error


def _outcome(record: RunRecord) -> str:
    if record.status != "done":
        return f"{record.status}: {record.reason}"
    seconds = record.measured.get("train_seconds")
    took = "" if seconds is None else f" after {seconds:.1f} s of training"
    split = "valid" if record.is_trial else "test"
    metric = record.task_card["metric"]
    return f"{split} {metric} {written(record.scores[split], metric)}{took}"


def _text(error: Exception) -> str:
    return terminal(f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": "))

"""Execution of one run in one process: train, test and record it, unless an equal run is already recorded."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attn_zoo import deaths
from attn_zoo.cli.callback import Watched
from attn_zoo.cli.plan import Job, Plan
from attn_zoo.contract import SPLITS
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.metrics import written
from attn_zoo.plugin_files import file_of
from attn_zoo.records import DIED, RecordError, RunRecord, Status, Store, Tuning
from attn_zoo.records.environment import changed_plugins, command_line
from attn_zoo.records.files import text_of
from attn_zoo.registry import build_task, card, task_card
from attn_zoo.rows import RowName
from attn_zoo.runner import run
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.execute import died
from attn_zoo.runner.patience import place_of_hang, watched
from attn_zoo.runner.weights import KeptWeights
from attn_zoo.terminal import show


def one_run(plan: Plan, job: Job) -> RunRecord | None:
    """Execute a run and record it. A run is not executed if an equal run has a record with a final status, or if another process is
    executing it.

    Returns:
        The record of the run, new or earlier; None if another process is executing it.

    Raises:
        OSError: the record cannot be written into the folder. If it was written to another place, the message names this place.
        ValueError: the callback cannot be created.
    """
    settings, run_id = plan.settings, job.run_id
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
            record = _dead(plan, job, ends, hang)
        else:
            if ends:
                _say(job, f"its process {_hung(hang) or ends[-1]}; the run is tried once more, alone")
            store.claim_path(run_id).write_text("", encoding="utf-8")
            with deaths.during(what):
                record = _do(plan, job, deaths.TRIES - len(ends))
    _say(job, _outcome(record))
    return record


def _say(job: Job, words: str) -> None:
    """Print a line about a run."""
    show(terminal(f"{job.label}: {words}"))


def _by_other_code(record: RunRecord) -> str:
    """Return a note that files of the plugins that define the mechanism and the task of a run have changed since. If they have
    not, the result is empty."""
    kinds = [task_card(record.spec.task).build, *(card(name).build for name in RowName(record.spec.attention).turn)]
    files = [file for kind in kinds if (file := file_of(sys.modules.get(kind.__module__)))]
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


def _do(plan: Plan, job: Job, tries: int) -> RunRecord:
    """Execute the run with the checkpoints and callback of the settings, and record it.

    Args:
        tries: how often the run is tried if it raises SystemExit or another error that would end its process.
    """
    settings, run_id = plan.settings, job.run_id
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
        return _do(plan, job, tries - 1)
    record, path = _add(plan, record)
    progress.finish(record, path)
    if checkpoint:
        checkpoint.remove()
    if kept:
        written, missing = len(kept.after) - len(kept.missing), ", ".join(map(str, kept.missing))
        lacking = f"; there are none after step {missing}" if missing else ""
        _say(job, f"weights of {written} step{'s' * (written != 1)} are in {settings.weights.folder!r}{lacking}")
    return record


def _readable(record: RunRecord) -> RunRecord:
    """Return the record. If no reader would accept it, because a plugin gave an impossible score or count, return a failed record
    that says so.
    """
    try:
        text_of(record)
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
        return replace(record, status="failed", reason=f"the record of this run is not valid: {error}", **empty)
    return record


def _dead(plan: Plan, job: Job, ends: Sequence[str], hang: str | None) -> RunRecord:
    """Record a run whose process died each time that the run was tried."""
    status: Status = "timed_out" if hang else "out_of_memory" if ends[-1] == deaths.KILLED else "failed"
    reason = f"the process {_hung(hang) or ends[-1]}, {len(ends)} times"
    return _add(plan, with_tuning(died(job.spec, status, reason), job.tuning))[0]


def _hung(hang: str | None) -> str:
    """Return words for a process that was ended because a call did not return. If it was not, the result is empty."""
    return f"did not return from a call within its time limit ({hang})" if hang else ""


def _add(plan: Plan, record: RunRecord) -> tuple[RunRecord, Path]:
    """Add a record, with the command as typed; return it and its path."""
    record = _readable(replace(record, environment={**record.environment, "command": command_line(plan.command)}))
    return record, _keep(record, Store(plan.settings.records))


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

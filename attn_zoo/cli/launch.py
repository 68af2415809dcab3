"""Launchers, which execute runs in worker processes of joblib, Ray or submitit."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from attn_zoo import deaths
from attn_zoo.cli.config import Settings
from attn_zoo.cli.job import Command, Job, one_run
from attn_zoo.records import RunRecord, Store


class Lost(NamedTuple):
    """Result of a run whose worker process ended before the run did."""

    error: Exception
    """Error that the package of the launcher raised."""


Outcome = RunRecord | None | Exception | Lost
"""Result of a worker: the record of its run, the error that occurred, ``Lost`` if the worker died, or None if another process is
executing the run."""

_PACKAGES = ("joblib", "ray", "submitit")
_DEATHS = ("TerminatedWorkerError", "UncompletedJobError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
"""Names of the errors with which joblib, Ray and submitit report that a worker process died."""
_ANY_CLUSTER = ("name", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "timeout_min", "stderr_to_stdout")
"""Parameters of submitit for every cluster. The names of its other parameters, which are for SLURM alone, begin with ``slurm_``."""
_OBJECT_STORE_BYTES = 75 * 2**20
"""Size of the object store of a Ray cluster that this command starts. It is Ray's minimum, because runs exchange little data."""


def launch(command: Command, jobs: Sequence[Job]) -> list[RunRecord | None]:
    """Execute the jobs with the launcher of the settings. Return their records in the order of ``jobs``. An entry is None if
    another process is executing the run.

    If a worker process dies during a run, the run is tried once more, alone. After a second death, it is recorded as failed.

    Raises:
        OSError, ValueError, RuntimeError: an error in a worker.
        Exception: an error of the launcher's package, such as the death of a worker before a run began (``is_death_of_a_worker``).
    """
    store, found, left = Store(command.settings.records), dict[int, RunRecord | None](), list(range(len(jobs)))
    start = _LAUNCHERS[str(command.settings.kind)]
    while left:
        outcomes = dict(zip(left, start(command, [jobs[at] for at in left]), strict=True))
        lost = {at: outcome for at, outcome in outcomes.items() if isinstance(outcome, Lost)}
        found |= {at: _record(outcome) for at, outcome in outcomes.items() if at not in lost}
        begun = [at for at in lost if store.is_left_behind(jobs[at].run_id)]
        if lost and not begun:
            raise next(iter(lost.values())).error
        found |= {at: _alone(command, jobs[at], lost[at].error) for at in begun}
        left = [at for at in lost if at not in begun]
    return [found[at] for at in range(len(jobs))]


def _alone(command: Command, job: Job, error: Exception) -> RunRecord | None:
    """Try a run again, without other runs beside it, and record it as failed if its worker dies again."""
    print(f"attn-zoo: {job.label}: a worker {_ending(error)}; the run is tried once more, alone", file=sys.stderr)
    deaths.add(f"{deaths.RUN}{job.run_id}", _ending(error))
    [outcome] = _LAUNCHERS[str(command.settings.kind)](command, [job])
    if not isinstance(outcome, Lost):
        return _record(outcome)
    deaths.add(f"{deaths.RUN}{job.run_id}", _ending(outcome.error))
    return one_run(command, job)


def _record(outcome: Outcome) -> RunRecord | None:
    if isinstance(outcome, Exception):
        raise outcome
    assert not isinstance(outcome, Lost)
    return outcome


def _ending(error: Exception) -> str:
    """Return in words how a worker ended."""
    codes = set(map(int, re.findall(r"[A-Z]\((-?\d+)\)", str(error))))
    if codes == {-9} or type(error).__name__ == "OutOfMemoryError":
        return deaths.KILLED
    return deaths.ending(codes.pop()) if len(codes) == 1 else f"ended ({in_short(error)})"


def attempt(command: Command, job: Job) -> Outcome:
    """Execute a job in a worker and return its outcome. An error is returned as a built-in exception, which every process can
    unpickle."""
    try:
        command.begin()
        return one_run(command, job)
    except (OSError, ValueError) as error:
        return (OSError if isinstance(error, OSError) else ValueError)(str(error))
    except Exception:
        return RuntimeError(f"a worker failed:\n{traceback.format_exc()}")


def at_once(settings: Settings) -> int:
    """Return how many runs are executed at the same time on this machine: the setting ``workers`` or, by default, the number of
    cores divided by the setting ``threads``, but at least 1."""
    from joblib import cpu_count

    return settings.workers or max(1, cpu_count() // settings.threads)


def is_of_a_launcher(error: BaseException) -> bool:
    """Return True if the error was raised by the package of a launcher: joblib, Ray or submitit."""
    return any(kind.__module__.split(".")[0] in _PACKAGES for kind in type(error).__mro__)


def is_death_of_a_worker(error: BaseException) -> bool:
    """Return True if the error means that a worker process died before its run ended."""
    return is_of_a_launcher(error) and type(error).__name__ in _DEATHS  # exact names: subclasses mean other failures


def in_short(error: BaseException) -> str:
    """Return a short text for an error: its class, its first line and its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no more is known"]
    return " ... ".join(dict.fromkeys([f"{type(error).__name__}: {lines[0]}", *lines[1:][-1:]]))


def _joblib(command: Command, jobs: Sequence[Job]) -> list[Outcome]:
    from joblib import Parallel, delayed

    found: dict[int, Outcome] = {}
    # Batches of one job: runs take seconds to hours, and a free worker takes the next one.
    work = Parallel(n_jobs=at_once(command.settings), backend="loky", batch_size=1, return_as="generator_unordered")
    try:
        with deaths.children_going_on():
            for done in work(delayed(_numbered)(at, command, job) for at, job in enumerate(jobs)):
                found |= dict([done])
    except Exception as error:  # all workers are stopped when one dies
        if not is_death_of_a_worker(error):
            raise
        return [found.get(at, Lost(error)) for at in range(len(jobs))]
    return [found[at] for at in range(len(jobs))]


def _numbered(at: int, command: Command, job: Job) -> tuple[int, Outcome]:
    return at, attempt(command, job)


def _or_lost(result: Callable[[], Any]) -> Outcome:
    """Return the outcome of one worker, which may have died.

    Raises:
        Exception: another error of the launcher's package.
    """
    try:
        outcome: Outcome = result()
        return outcome
    except Exception as error:
        if is_death_of_a_worker(error):
            return Lost(error)
        raise


def _ray(command: Command, jobs: Sequence[Job]) -> list[Outcome]:
    import ray

    ray.init(**ray_arguments(command.settings))
    task = ray.remote(**_given(command.settings.launcher["remote"] or {}))(attempt)
    try:
        asked = [task.remote(command, job) for job in jobs]
        return [_or_lost(partial(ray.get, one)) for one in asked]
    finally:
        ray.shutdown()


def ray_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``ray.init`` that the settings define."""
    given = _given(settings.launcher["init"] or {})
    room = {"num_cpus": settings.workers * settings.threads} if settings.workers else {}
    return {**given, **room, **({} if "address" in given else {"object_store_memory": _OBJECT_STORE_BYTES})}


def _submitit(command: Command, jobs: Sequence[Job]) -> list[Outcome]:
    import submitit

    class Requeued(submitit.helpers.Checkpointable):
        """``attempt``, whose job SLURM may stop and queue again; its run then goes on from its own checkpoint."""

        __call__ = staticmethod(attempt)

    requeued = Requeued()  # type: ignore[no-untyped-call]  # submitit leaves its base class untyped
    cluster = "slurm" if command.settings.kind == "slurm" else "local"
    options = _given({name: value for name, value in command.settings.launcher.items() if name != "kind"})
    timeouts = {"slurm_max_num_timeout": options.pop("max_num_timeout")} if cluster == "slurm" else {}
    executor = submitit.AutoExecutor(folder=options.pop("folder"), cluster=cluster, **timeouts)
    if cluster == "slurm" and command.settings.workers:
        options["array_parallelism"] = command.settings.workers
    executor.update_parameters(**{name if name in _ANY_CLUSTER else f"slurm_{name}": value for name, value in options.items()})
    together = len(jobs) if cluster == "slurm" else at_once(command.settings)  # local batches run one after the other
    found: list[Outcome] = []
    for start in range(0, len(jobs), together):
        batch = jobs[start : start + together]
        found += [_or_lost(job.result) for job in executor.map_array(requeued, [command] * len(batch), batch)]
    return found


_LAUNCHERS: Mapping[str, Callable[[Command, Sequence[Job]], list[Outcome]]] = {
    "joblib": _joblib,
    "ray": _ray,
    "slurm": _submitit,
    "submitit_local": _submitit,
}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in options.items() if value is not None}

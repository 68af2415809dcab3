"""``attn-zoo run``: Hydra composes each run, the runner does it, the store keeps it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from attn_zoo.cli.config import locations_from, spec_from, store_groups
from attn_zoo.cli.launch import Order, in_short, is_death_of_a_worker, is_of_a_launcher, missing_extra, quiet_optuna
from attn_zoo.cli.plan import plan
from attn_zoo.cli.progress import RichProgress
from attn_zoo.cli.trial import objective, trial_label, with_tuning
from attn_zoo.contract import UnknownNameError
from attn_zoo.records import RunRecord, RunSpec, Store, Tuning
from attn_zoo.registry import task_card
from attn_zoo.runner import Progress, run
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.processes import Processes, speaks, started_together
from attn_zoo.runner.tracking import Tracking, Watchers, check_trackers

_SCRATCH = "ATTN_ZOO_SCRATCH"


def run_command(overrides: Sequence[str], *, command: Sequence[str] | None = None, ledger: Tuning | None = None) -> int:
    """Check every run that ``overrides`` ask for, then let Hydra do them; its callback prints the leaderboard.

    Args:
        command: what was typed, where that is another command than this.
        ledger: what the runs record of the study that their settings are the best of.

    Returns:
        Exit status: 0, or 1 where workers died more often than they are started again.

    Raises:
        ValueError: a key, value or name in the overrides is wrong; the message lists the right ones.
    """
    _hush()
    for name, reason in store_groups().items():
        print(f"attn-zoo: plugin {name} failed and is left out: {reason}", file=sys.stderr)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they are said in one line
    program = sys.argv[0].removesuffix(" run")
    sys.argv = list(command or [f"{program} run", *overrides])  # records keep it as the command
    typed = tuple(sys.argv)
    with in_words():
        planned = plan(overrides)
        if planned is None:
            return _launch(Order(typed, os.getcwd()), [program, *overrides], 0)
        planned = replace(planned, ledger=ledger)
        Store(planned.records).check_writable()
        planned.read_data()
        print(planned.announcement(), flush=True)
        if planned.study:
            quiet_optuna()
        order = Order(typed, os.getcwd(), planned.study, ledger)
        status = _launch(order, [program, *overrides, *planned.words], planned.restarts)
        if missing := planned.missing():
            print(f"{missing} runs are not recorded: another process is at them, or was; the same command will show", flush=True)
        return status


@contextmanager
def in_words() -> Iterator[None]:
    """Hydra's and OmegaConf's errors as ValueErrors in the zoo's words."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error


@contextmanager
def scratch_folder() -> Iterator[None]:
    """A folder for what Hydra leaves behind, which has no place among records; one around others serves for all."""
    if os.path.isdir(os.environ.get(_SCRATCH, "")):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="attn-zoo-") as scratch:
        os.environ[_SCRATCH] = scratch  # workers learn of it, and those that go on to the next sweep know no other
        try:
            yield
        finally:
            del os.environ[_SCRATCH]


def _launch(order: Order, argv: Sequence[str], restarts: int) -> int:
    """Let Hydra do what ``argv`` says; where a worker dies, let it do again what is missing, ``restarts`` times."""
    for again in range(restarts + 1):
        sys.argv = list(argv)
        try:
            with scratch_folder():
                _hydra_main(order)()
            return 0
        except Exception as error:
            if not is_death_of_a_worker(error):
                if is_of_a_launcher(error):
                    raise OSError(f"the launcher failed: {str(error).strip()}") from error
                raise
            then = "what is missing is started again" if again < restarts else "the same command does what is missing"
            said = f"a worker ended before its run did ({in_short(error)}); what is recorded is kept, and {then}"
            print(f"attn-zoo: {said}", file=sys.stderr)
        finally:
            sys.argv = list(order.command)
    return 1


def _hydra_main(order: Order) -> Callable[[], None]:
    """Hydra's entry for a command. What it calls for each run is pickled into workers together with ``order``."""

    @hydra.main(version_base="1.3", config_path="pkg://attn_zoo.configs", config_name="run")
    def job(config: DictConfig) -> float | None:
        order.begin(config)
        tuning = order.tuning()
        record = one_run(config, tuning)
        return None if order.study is None else objective(record)

    return job


def one_run(config: DictConfig, tuning: Tuning | None = None) -> RunRecord | None:
    """Do one composed run and record it, unless an equal one is recorded with a final status or another process is at it.

    Args:
        tuning: what the run is to a study.

    Returns:
        The record of the run, whoever did it; None where another process is at it.

    Raises:
        OSError: the folder cannot take the record; where it was written instead, the message says so.
    """
    _require_plain_sweep()
    spec = spec_from(config)
    processes = Processes.join(spec.device)
    processes.check_batch(spec.budget.batch_size)
    check_trackers(config.tracking.to)
    store = Store(config.records)
    label = f"{spec.attention} on {spec.task}, seed {spec.seed}{trial_label(spec, tuning)}"
    run_id = spec.run_id(task_card(spec.task).version)
    if processes.is_main:
        store.check_writable()  # before each run, since disks fill up in the course of a sweep
    with store.claim(run_id) if processes.is_main else nullcontext(True) as claimed:
        found = store.find(run_id, tuning) if processes.is_main else None
        theirs, known, ours = processes.share((run_id, found, claimed))
        if theirs != run_id:
            raise ValueError("the processes were given different runs; launch each with the same command")
        if known:
            print(f"{label}: recorded already", flush=True)
            return known
        if not ours:
            print(f"{label}: left to another process, which is at it; the same command will show whether it ended", flush=True)
            return None
        record = _do(config, spec, run_id, label, tuning)
    print(f"{label}: {_outcome(record)}", flush=True)
    return record


def _do(config: DictConfig, spec: RunSpec, run_id: str, label: str, tuning: Tuning | None) -> RunRecord:
    """The run itself, its state kept and its course told as ``config`` has it; the main process records it."""
    is_main, keep, told = Processes().is_main, config.checkpoint, config.tracking
    checkpoint = None
    if keep.every or keep.minutes:
        checkpoint = Checkpoint(config.records, run_id, keep.every, keep.minutes)
        if is_main and (words := checkpoint.open()):
            print(f"{label}: {words}", flush=True)
    trackers: AbstractContextManager[Tracking | None] = nullcontext()
    if told.to and is_main:
        trackers = Tracking(told.to, spec, run_id, project=told.project, folder=told.folder, every=told.every)
    with trackers as tracking:
        watchers: list[Progress] = [RichProgress(by_time=bool(spec.budget.seconds))] if is_main else []
        progress = Watchers(*watchers, *([tracking] if tracking else []))
        record = with_tuning(run(spec, progress, locations_from(config), checkpoint), tuning)
        if is_main:
            path = _keep(record, Store(config.records))
            if tracking:
                tracking.finish(record, path)
            if checkpoint:
                checkpoint.remove()
    return record


def _require_plain_sweep() -> None:
    """Raises ValueError where several processes that do each run together would each start workers of their own."""
    if started_together() == 1 or not HydraConfig.initialized():
        return
    chosen = [str(node._target_).rpartition(".")[2] for node in (HydraConfig.get().launcher, HydraConfig.get().sweeper)]
    if chosen != ["BasicLauncher", "BasicSweeper"]:
        raise ValueError(
            f"{started_together()} processes that do each run together cannot share runs out as well; leave {' and '.join(chosen)} "
            "(launch=, experiment=tune) out, or start one process"
        )


def _hush() -> None:
    """Of processes that do each run together one prints; what goes wrong is said by each."""
    if not speaks():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)


def _keep(record: RunRecord, store: Store) -> Path:
    """Add the record; where its folder takes no more, write it to the system's temporary one, as it may have taken hours."""
    try:
        return store.add(record)
    except OSError as error:
        try:
            kept = Store(tempfile.mkdtemp(prefix="attn-zoo-kept-")).add(record)
        except OSError:
            raise error from None
        raise OSError(f"{error}; it is not lost: copy {str(kept)!r} to there first") from error


def explain(error: BaseException) -> str:
    """An error of Hydra or OmegaConf in the zoo's words: what came, and which keys there are."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        kind: Any = getattr(link, "object_type", None)
        key = getattr(link, "key", None)
        if key is not None and is_dataclass(kind) and key not in (known := [f.name for f in fields(kind)]):
            where = str(getattr(link, "full_key", key)).rpartition(".")[0]
            return str(UnknownNameError(f"option under {where!r}" if where else "setting of a run", str(key), known))
    text = "\n".join(dict.fromkeys(str(link).strip() for link in chain))
    return missing_extra(text) or text


def _outcome(record: RunRecord) -> str:
    if record.status != "done":
        return f"{record.status}: {record.reason}"
    seconds = record.measured.get("train_seconds")
    took = "" if seconds is None else f" after {seconds:.1f} s of training"
    split = "valid" if record.is_trial else "test"
    return f"{split} {record.task_card['metric']} {100 * record.scores[split]:.1f} %{took}"

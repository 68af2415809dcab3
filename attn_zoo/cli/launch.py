"""Sweeps on several processes and machines: what Hydra's launchers are told, and what is done when a worker dies."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from attn_zoo.cli.search import Study
from attn_zoo.records import Tuning

_LAUNCHERS = {
    "JoblibLauncher": "hydra.launcher.n_jobs",
    "RayLauncher": "hydra.launcher.ray.init.num_cpus",
    "SlurmLauncher": "hydra.launcher.array_parallelism",
    "LocalLauncher": "hydra.sweeper.max_batch_size",
}
"""By class of a launcher, the key that says how many runs it does at once."""
_PACKAGES = ("joblib", "ray", "submitit")
_DEATHS = ("TerminatedWorkerError", "UncompletedJobError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
"""Of their errors, those that say that a process ended; the others say that it could not be started, or that we are wrong."""


@dataclass(frozen=True, slots=True)
class Order:
    """What every process that does runs of a command is told, beside the configuration of each run."""

    command: tuple[str, ...]
    """As it was typed; records keep it."""
    folder: str
    """The one it was typed in, which relative paths are relative to."""
    study: Study | None = None
    """That the runs are trials of."""
    ledger: Tuning | None = None
    """What the runs record of the study that their settings are the best of."""

    def begin(self, config: DictConfig) -> None:
        """Make this process, whoever started it, like the one that the command was typed in.

        Raises:
            FileNotFoundError: the folder is not there.
        """
        if os.getcwd() != self.folder:
            try:
                os.chdir(self.folder)
            except OSError as error:
                raise FileNotFoundError(
                    f"this worker does not see the folder {self.folder!r} that the sweep was started in; start it in a folder "
                    "that all workers share"
                ) from error
        sys.argv = list(self.command)
        if config.threads:
            torch.set_num_threads(config.threads)

    def tuning(self) -> Tuning | None:
        """What the run that Hydra has configured in this process is to a study."""
        if self.study is None:
            return self.ledger
        return Tuning(self.study.id, self.study.space, trial=HydraConfig.get().job.num)


def launch_words(config: DictConfig, given: Collection[str]) -> list[str]:
    """Overrides of Hydra's own that make a launcher do as many runs at once as ``workers`` and ``threads`` say.

    Args:
        config: composed, with Hydra's part.
        given: keys that the command line has already.

    Raises:
        ValueError: ``workers`` or ``threads`` break their rule.
    """
    launcher = _class_of(config.hydra.launcher)
    for name in ("threads", "restarts"):
        if config[name] < 0:
            raise ValueError(f"{name} counts something, so it is not negative; got {config[name]}")
    if config.workers is not None and config.workers < 1:
        raise ValueError(f"workers counts processes, so it is at least 1; got {config.workers}")
    if launcher not in _LAUNCHERS:
        if config.workers is not None:
            raise ValueError(
                "workers= is for a sweep on several processes; add launch=joblib, ray, submitit_local or slurm, or leave it out"
            )
        return []
    if config.threads < 1:
        raise ValueError("a launcher shares cores out by the threads of a run, so threads is at least 1 with launch=; got 0")
    if launcher == "SlurmLauncher" and shutil.which("sbatch") is None:
        raise ValueError(
            "launch=slurm gives jobs to sbatch, which is not on PATH; give the command on a machine of the cluster, or try the "
            "sweep with launch=submitit_local"
        )
    key = _LAUNCHERS[launcher]
    if key in given or (launcher == "LocalLauncher" and _class_of(config.hydra.sweeper) != "BasicSweeper"):
        return []
    at_once = config.workers
    if launcher in ("JoblibLauncher", "LocalLauncher"):
        at_once = at_once or max(1, _cores() // config.threads)
    if at_once is None:
        return []
    if launcher == "RayLauncher":
        if config.hydra.launcher.ray.init.get("address"):
            raise ValueError("a Ray cluster that is there says itself how many runs it has room for; leave workers= out")
        return [f"+{key}={at_once * config.threads}"]
    return [f"{key}={at_once}"]


def is_of_a_launcher(error: BaseException) -> bool:
    """Whether an error comes from what carries runs to their workers."""
    return any(kind.__module__.split(".")[0] in _PACKAGES for kind in type(error).__mro__)


def is_death_of_a_worker(error: BaseException) -> bool:
    """Whether a launcher tells that a process ended before its run did."""
    return is_of_a_launcher(error) and type(error).__name__ in _DEATHS  # submitit counts failures among its deaths


def in_short(error: BaseException) -> str:
    """Its kind, its first line and its last, where those say something different."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no more is known"]
    return " ... ".join(dict.fromkeys([f"{type(error).__name__}: {lines[0]}", *lines[1:][-1:]]))


def missing_extra(text: str) -> str | None:
    """What to install, where Hydra did not find a launcher or sweeper of the extra ``sweeps``."""
    match = re.search(r"Could not find 'hydra/(launcher|sweeper|sweeper/sampler)/(ray|submitit_\w+|optuna|tpe|grid)'", text)
    if match is None:
        return None
    return f"Hydra's {match[1].partition('/')[0]} {match[2]!r} is not installed; pip install 'attn-zoo[sweeps]'"


def quiet_optuna() -> None:
    """Keep Optuna from naming its own studies, which live no longer than the command."""
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _class_of(node: DictConfig) -> str:
    return str(node._target_).rpartition(".")[2]

"""Plan of a command: its runs, and everything that a process needs to execute them, as plain data that can be sent to workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attn_zoo.cli.config import Settings
from attn_zoo.cli.progress import tracked
from attn_zoo.cli.search import Study
from attn_zoo.plugin_imports import apart
from attn_zoo.records import RunSpec, Store, Tuning
from attn_zoo.records.tuning import setting, trials_of
from attn_zoo.registry import build_task, load_plugin, task_card


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
    found = ((key.partition(".")[2], setting(spec, key)) for key in tuning.space)
    return ", ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in found)


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs that a command asks for, and the settings with which every process executes them."""

    jobs: tuple[Job, ...]
    """Jobs of the runs. A hyperparameter search (``study``) has none, because its trials are drawn later."""
    settings: Settings
    study: Study | None = None
    """Hyperparameter search whose trials are the runs; None if the runs are not trials."""
    command: tuple[str, ...] = ()
    """Command as typed; it is stored in the records."""
    folder: str = field(default_factory=os.getcwd)
    """Working directory of the command, to which relative paths refer."""
    plugins: tuple[Path, ...] = ()
    """Files and folders of plugins, which every process loads."""

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """Specifications of the runs. For a hyperparameter search, there is one specification, in which each searched key has the
        first value of its range."""
        return (self.study.base,) if self.study else tuple(job.spec for job in self.jobs)

    def without_runs(self) -> Plan:
        """Return a copy of the plan without its runs, for a worker that receives one run at a time."""
        return replace(self, jobs=(), study=None)

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

    def left(self) -> list[Job]:
        """Return the runs that do not have a record with a final status yet."""
        store = Store(self.settings.records)
        return [job for job in self.jobs if not store.finished(job.run_id, job.tuning)]

    def missing(self) -> int:
        """Return the number of runs without a record of a result or a failure. For a search, the number is 0, because trials are
        drawn later."""
        store = Store(self.settings.records)
        return sum(not store.has(job.run_id) for job in self.jobs)

    def read_data(self) -> None:
        """Read the published data of all runs that are still to do, so that missing files are found before the first run starts.

        Raises:
            MissingDataError: data are missing; the message says which files to put where.
            DamagedDataError: a file of the data is damaged.
            ValueError: the data cannot be split as the options ask.
        """
        wanted = [Job(self.study.base, self.study.locations)] if self.study else self.left()
        data: list[tuple[str, Mapping[str, Any]]] = []
        for job in wanted:
            one = (job.spec.task, {**job.spec.task_options, **job.locations})
            if task_card(job.spec.task).locations and one not in data:
                data.append(one)
        for task, options in tracked(data, "reading data") if data else data:
            with apart(f"task {task}", "when its data were read"):
                build_task(task, **options).examples("test")

    def announcement(self) -> str:
        """Return the line that is printed first: the number of runs or trials, how many are recorded already, and the folder of
        records."""
        to = f"records go to {self.settings.records!r}"
        if study := self.study:
            known = len(trials_of(Store(self.settings.records).load(study.base.task, study.base.attention)[0], study.id))
            searched = ", ".join(f"{key}={text}" for key, text in study.space.items())
            trials = f"{study.trials} trial{'s' * (study.trials != 1)}" if study.trials else "bracketed search"
            what = f"{trials} of {study.base.attention} on {study.base.task} over {searched}"
            return f"study {study.id}: {what}; {known} {'of them ' if study.trials else 'trials '}recorded already; {to}"
        total, left = len(self.jobs), len(self.left())
        return f"{total} run{'s' * (total != 1)}, {total - left} of them recorded already, {left} to do; {to}"

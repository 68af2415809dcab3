"""Plan of the runs that a command line asks for. Hydra composes the experiment once; each run changes some values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import torch
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from attn_zoo.checks import check_number, check_whole
from attn_zoo.cli.bracket import LOWER, Trial, rungs
from attn_zoo.cli.config import Settings, changed, locations_from, settings_from, spec_from, store_groups
from attn_zoo.cli.progress import tracked
from attn_zoo.cli.search import Study, bracketed, study_of
from attn_zoo.cli.words import Word, read_run_words, unfolded
from attn_zoo.plugin_imports import apart
from attn_zoo.records import RunSpec, Store, Tuning
from attn_zoo.records.tuning import setting, trials_of
from attn_zoo.registry import build_task, load_plugin, task_card
from attn_zoo.runner.weights import KeptWeights

LAUNCHERS = ("joblib", "ray", "slurm", "submitit_local")
_NEEDS = {"ray": "ray", "slurm": "submitit", "submitit_local": "submitit", "tpe": "optuna"}
"""Package that each launcher or sampler needs. The extra ``sweeps`` installs all of them."""
_FLAGS = ("-m", "--multirun")
_OPEN = ("attention", "task", "dials", "tuning.space", "tuning.dials")
"""Parts of a config in which any key is allowed. Their keys are checked later."""


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


class Composed(NamedTuple):
    """Config of an experiment and its launcher."""

    config: DictConfig
    several: bool
    """True if the experiment itself defines several runs, so that the word ``-m`` is not needed."""
    swept: tuple[str, ...]
    """Words ``KEY=VALUE,...`` for the keys that have several values in the experiment."""


def compose(given: Iterable[Word]) -> Composed:
    """Return the config of the experiment and of the launcher that the command-line words ``experiment=NAME`` and ``launch=NAME``
    select. Words for settings of runs are not used here; ``changed`` applies them later.

    Raises:
        ValueError: ``experiment`` or ``launch`` has several values.
        HydraException: there is no such experiment or launcher.
    """
    named = [word for word in given if word.key in ("experiment", "launch")]
    if several := [word for word in named if word.swept]:
        raise ValueError(f"{several[0].key}= must be one name; got {several[0].text}. Run one command for each name")
    store_groups()
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        config = hydra.compose("run", overrides=[f"{word.key}={word.text}" for word in named], return_hydra_config=True)
    several, params = config.hydra.mode == RunMode.MULTIRUN, dict(config.hydra.sweeper.get("params") or {})
    with open_dict(config):
        del config["hydra"]  # its copies for each run would take most of the time
    for part in (OmegaConf.select(config, key) for key in _OPEN):
        OmegaConf.set_struct(part, False)
    return Composed(config, several, tuple(f"{key}={value}" for key, value in params.items()))


def plan(words: Sequence[str]) -> Plan:
    """Return the plan of all runs that a command line asks for.

    Args:
        words: words of the form KEY=VALUE. A value of ``attention`` is a mechanism, with options in brackets, such as
            ``linformer[projected_length=32]``. The word ``-m`` permits several runs.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: a run or one end of a search range is invalid.
    """
    if flags := [word for word in words if word.startswith("-") and word not in _FLAGS]:
        raise ValueError(f"settings of runs must be written KEY=VALUE; got {flags[0]!r}. See attn-zoo run --help")
    given = read_run_words(word for word in words if word not in _FLAGS)
    composed = compose(given)
    with apart("a plugin", "when the runs were planned"):
        return plan_runs(given, composed, several=any(word in _FLAGS for word in words))


def plan_runs(given: Sequence[Word], composed: Composed, *, several: bool = False) -> Plan:
    """Return the plan of all runs of an experiment, after the words of the command line (such as ``seed=1,2``) have changed its
    config.

    Args:
        several: True if the words may give several values for a key, as with ``-m``.
    """
    fixed, swept = unfolded(word for word in given if not word.swept), [word for word in given if word.swept]
    config = changed(composed.config, fixed)
    settings = settings_from(config)
    check_settings(settings)
    if settings.tuning.space:
        study = study_of(spec_from(config), locations_from(config), settings.tuning, [*fixed, *swept])
        shortest = bracketed(study, Trial(LOWER, rungs(study.base.budget.steps)[0])) if not study.trials else study.base
        _check_weights(settings, [shortest])
        return Plan((), settings, study)
    if several or composed.several:
        parts = [(*composed.swept, *part.split()) for part in settings.sweeps or [""]]
        configs = [config for part in parts for config in _sweep(read_run_words(part), given, composed.config)]
    elif swept:
        raise ValueError(f"{swept[0].key}={swept[0].text} has several values, and each value needs a run of its own. Add -m")
    else:
        configs = [config]
    jobs = [Job(spec_from(config), locations_from(config)) for config in configs]
    _check_weights(settings, [job.spec for job in jobs])
    return Plan(tuple({job.run_id: job for job in jobs}.values()), settings)


def _check_weights(settings: Settings, specs: Iterable[RunSpec]) -> None:
    """Raise a ValueError if weights are to be written after a step that a run does not have."""
    for spec in specs:
        KeptWeights(settings.weights.folder, settings.weights.after, spec, task_card(spec.task).version)


def _sweep(written: Sequence[Word], typed: Sequence[Word], config: DictConfig) -> list[DictConfig]:
    """Return the configs of all runs of a grid. A typed word replaces the experiment's word with the same key."""
    keys = {word.key for word in typed}
    words = [*(word for word in written if word.key not in keys), *typed]
    grid = product(*([word._replace(value=value) for value in word.values()] for word in words))
    return [changed(config, unfolded(run)) for run in grid]


def kind_of(settings: Settings) -> str | None:
    """Return the name of the launcher that the settings select, or None if no launcher is selected."""
    return None if settings.launcher is None else str(settings.launcher["kind"])


def check_settings(settings: Settings) -> None:
    """Check the settings of a command, such as the launcher.

    Raises:
        ValueError: a setting breaks its rule, a launcher or sampler needs a package or program that is missing, or this process was
            started together with others, for example by torchrun.
    """
    if (together := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(
            f"a run must be a single process, but {together} processes were started together (WORLD_SIZE={together}). Start "
            "one process, and divide the runs of a sweep with launch=joblib, ray or slurm"
        )
    launcher = settings.launcher
    if launcher is not None and (not isinstance(launcher, Mapping) or launcher.get("kind") not in LAUNCHERS):
        raise ValueError(
            f"launch= must be one of {', '.join(LAUNCHERS)}; got {launcher!a}. Set options of the launcher with launcher.KEY=VALUE"
        )
    kind = kind_of(settings)
    check_whole("threads", settings.threads, 0 if kind is None else 1, 4096)
    check_whole("checkpoint.every", settings.checkpoint.every, 0)
    check_number("checkpoint.minutes", settings.checkpoint.minutes, 0)
    if settings.workers is not None:
        check_whole("workers", settings.workers)
    if not settings.records:
        raise ValueError("records= must name a folder; got an empty text")
    if kind is None and settings.workers is not None:
        raise ValueError(
            "workers= must go with launch=, because only a launcher starts several processes. Add launch=joblib, ray, "
            "submitit_local or slurm, or leave workers= out"
        )
    searched = settings.tuning.sampler if settings.tuning.space else None
    for name, said in ((kind, f"launch={kind}"), (searched, f"tuning.sampler={searched}")):
        if name in _NEEDS and find_spec(_NEEDS[name]) is None:
            raise ValueError(
                f"{said} needs the package {_NEEDS[name]}, which is not installed. Install it with: pip install 'attn-zoo[sweeps]'"
            )
    if kind == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "launch=slurm needs the command sbatch, which is not on this machine. Run the command on a machine of the "
            "cluster, or try the sweep with launch=submitit_local"
        )

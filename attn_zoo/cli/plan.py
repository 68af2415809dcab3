"""Plan of a command line: every run of it, composed and resolved once, before work starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from attn_zoo.cli.config import Settings, locations_from, settings_from, spec_from, stored_row
from attn_zoo.cli.job import Job
from attn_zoo.cli.launch import check_launch
from attn_zoo.cli.overrides import parse, parse_overrides, unfold_row
from attn_zoo.cli.progress import tracked
from attn_zoo.cli.search import Study, study_of
from attn_zoo.plugin_imports import apart
from attn_zoo.records import RunSpec, Store
from attn_zoo.records.tuning import trials_of
from attn_zoo.registry import build_task, task_card


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs that a command asks for, and the settings with which they are executed."""

    jobs: tuple[Job, ...]
    """Jobs of the runs; empty for a study, whose trials are drawn later."""
    settings: Settings
    study: Study | None = None
    """Hyperparameter search whose trials are the runs; None without one."""

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """Specs of the runs; for a study its base spec, with the first end of each range."""
        return (self.study.base,) if self.study else tuple(job.spec for job in self.jobs)

    def left(self) -> list[Job]:
        """Runs that are not recorded yet with a final status."""
        store = Store(self.settings.records)
        return [job for job in self.jobs if not store.finished(job.run_id, job.tuning)]

    def missing(self) -> int:
        """Number of runs without any record, even of a failure; 0 for a study, whose search knows its trials."""
        store = Store(self.settings.records)
        return sum(not store.has(job.run_id) for job in self.jobs)

    def read_data(self) -> None:
        """Read the published data of every run that is left, once for each task and its options, before the first run starts.

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
        """Line that announces the runs or trials to do, and the folder of their records."""
        to = f"records go to {self.settings.records!r}"
        if study := self.study:
            known = len(trials_of(Store(self.settings.records).load(study.base.task, study.base.attention)[0], study.id))
            searched = ", ".join(f"{key}={text}" for key, text in study.space.items())
            trials = f"{study.trials} trial{'s' * (study.trials != 1)}" if study.trials else "bracketed search"
            what = f"{trials} of {study.base.attention} on {study.base.task} over {searched}"
            return f"study {study.id}: {what}; {known} {'of them ' if study.trials else 'trials '}recorded already; {to}"
        total, left = len(self.jobs), len(self.left())
        return f"{total} run{'s' * (total != 1)}, {total - left} of them recorded already, {left} to do; {to}"


def plan(words: Sequence[str], composer: Composer | None = None) -> Plan:
    """Compose and resolve every run that a command line asks for.

    Args:
        words: Hydra's overrides, with rows as values of ``attention``; ``-m`` where they sweep.
        composer: composer of several plans that share configs; None for one of its own.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: a run, or an end of a search range, is invalid.
    """
    several = any(word in ("-m", "--multirun") for word in words)
    if flags := [word for word in words if word.startswith("-") and word not in ("-m", "--multirun")]:
        raise ValueError(f"settings of runs are KEY=VALUE, and -m asks for several runs; got {flags[0]!r}")
    given = parse_overrides([word for word in words if not word.startswith("-")])
    swept = [str(override.input_line) for override in given if override.is_sweep_override()]
    fixed = unfold_row([str(override.input_line) for override in given if not override.is_sweep_override()])
    with apart("a plugin", "when the runs were planned"), hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        composer = composer or Composer()
        base = composer.config(fixed)
        settings = settings_from(base)
        check_launch(settings)
        if settings.tuning.space:
            everything = list(map(parse, [*fixed, *swept]))
            return Plan((), settings, study_of(spec_from(base), locations_from(base), settings.tuning, everything))
        if several or base.hydra.mode == RunMode.MULTIRUN:
            params = [f"{key}={value}" for key, value in (base.hydra.sweeper.get("params") or {}).items()]
            configs = [config for part in settings.sweeps or [""] for config in _sweep([*params, *part.split()], given, composer)]
        else:
            configs = [hydra.compose("run", overrides=[*fixed, *swept])] if swept else [base]  # Hydra refuses a sweep here
    jobs = [Job(spec_from(config), locations_from(config)) for config in configs]
    return Plan(tuple({job.run_id: job for job in jobs}.values()), settings)


class Composer:
    """Configs of runs. Those that differ in row and seed alone are composed once, as Hydra takes a tenth of a second for each."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], DictConfig] = {}
        """Config by the words that it was composed of."""
        self._shared: dict[tuple[str, ...], DictConfig | None] = {}
        """Config of the first row by the other words; None where it does not hold for other rows."""

    def config(self, words: Sequence[str]) -> DictConfig:
        """Config of the run that these overrides ask for, together with Hydra's own settings."""
        seeds = [word for word in words if re.fullmatch("seed=(0|[1-9][0-9]*)", word)]
        config = self._of_row([word for word in words if word not in seeds])
        for seed in seeds:
            config.seed = int(seed.removeprefix("seed="))
        return config

    def _of_row(self, words: Sequence[str]) -> DictConfig:
        own = [word for word in words if re.match(r"attention[=.]", word)]
        others = tuple(word for word in words if word not in own)
        changes = list(map(parse, own))
        rows = [change for change in changes if change.key_or_group == "attention"]
        if len(rows) != 1 or (row := stored_row(str(rows[0].value()))) is None:
            return deepcopy(self._composed(words))  # an experiment's row, or Hydra's words for a wrong one
        if others not in self._shared:
            bare = self._composed([*others, str(rows[0].input_line)])
            self._shared[others] = bare if _holds_for_other_rows(bare, row, others) else None
        if (shared := self._shared[others]) is None:
            return deepcopy(self._composed(words))
        config = deepcopy(shared)
        config.attention = row
        for change in changes:
            if change is not rows[0]:
                OmegaConf.update(config, change.key_or_group, change.value())
        return config

    def _composed(self, words: Sequence[str]) -> DictConfig:
        if (key := tuple(words)) not in self._made:
            self._made[key] = hydra.compose("run", overrides=[*words], return_hydra_config=True)
        return self._made[key]


def _holds_for_other_rows(config: DictConfig, row: DictConfig, words: Sequence[str]) -> bool:
    """Tell whether words, and the experiment that they name, change no option of the row that a config was composed with, and refer
    to none of Hydra's own settings, which name the row."""
    settings = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    changed = config.attention != row or any(re.match(r"\++attention\.|hydra\.searchpath", word) for word in words)
    return not changed and "${hydra" not in OmegaConf.to_yaml(settings)


def _sweep(words: Sequence[str], typed: Sequence[Override], composer: Composer) -> list[DictConfig]:
    """Compose the configs of all runs of a grid: an experiment's overrides, replaced by typed overrides of the same key."""
    keys = {override.key_or_group for override in typed}
    written = [override for override in parse_overrides(words) if override.key_or_group not in keys]
    jobs = [job for batch in BasicSweeper.split_arguments([*written, *typed], max_batch_size=None) for job in batch]
    return [composer.config(unfold_row(job)) for job in jobs]

"""What a command line means before anything of it is done: every run of it, resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from attn_zoo.cli.config import locations_from, spec_from
from attn_zoo.cli.launch import launch_words
from attn_zoo.cli.search import Study, ends_of, refusal, space_of
from attn_zoo.records import RunSpec, Store, Tuning
from attn_zoo.records.tuning import study_id, trials_of
from attn_zoo.registry import build_task, task_card
from attn_zoo.runner.metrics import measure_named


class RefusedSearchError(ValueError):
    """A mechanism does not take the task with settings that a search reaches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a command asks for, and where their records go."""

    specs: tuple[RunSpec, ...]
    """Of a study, whose trials nobody knows beforehand, those at the ends of its space."""
    locations: tuple[Mapping[str, Any], ...]
    """Of each spec, the task options that say where data lie."""
    records: str
    words: tuple[str, ...] = ()
    """What Hydra is told beside the command line."""
    study: Study | None = None
    """The search that the runs are trials of."""
    ledger: Tuning | None = None
    """What the runs are to a study whose best settings they have."""
    restarts: int = 0
    """How often what is missing is started again after a worker has died."""

    def left(self) -> list[int]:
        """Places of the runs that are not recorded yet with a final status."""
        store = Store(self.records)
        ids = [spec.run_id(task_card(spec.task).version) for spec in self.specs]
        return [at for at, run_id in enumerate(ids) if not store.finished(run_id, self.ledger)]

    def missing(self) -> int:
        """How many runs have no record at all, not even of a failure; 0 of a study, whose trials its search knows."""
        recorded = {record.run_id for record in Store(self.records).load()[0]}
        ids = [spec.run_id(task_card(spec.task).version) for spec in self.specs]
        return 0 if self.study else sum(run_id not in recorded for run_id in ids)

    def read_data(self) -> None:
        """Read the published data of every run that is left, once for each task, before the first is begun.

        Raises:
            MissingDataError: data are not there; the message says what to put where.
            DamagedDataError: a file is not what it must be.
            ValueError: the data cannot be divided as the options want it.
        """
        seen: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
        for at in self.left():
            wanted = (self.specs[at].task, self.specs[at].task_options, self.locations[at])
            if task_card(wanted[0]).locations and wanted not in seen:
                seen.append(wanted)
                build_task(wanted[0], **wanted[1], **wanted[2]).examples("test")

    def announcement(self) -> str:
        """What will be done, in one line."""
        if self.study:
            study, known = self.study, len(trials_of(Store(self.records).load()[0], self.study.id))
            searched = ", ".join(f"{key}={text}" for key, text in study.space.items())
            return (
                f"study {study.id}: {study.trials} trials of {study.attention} on {study.task} over {searched}; {known} of them "
                f"recorded already; records go to {self.records!r}"
            )
        total, left = len(self.specs), len(self.left())
        return f"{total} runs, {total - left} of them recorded already, {left} to do; records go to {self.records!r}"


def plan(words: Sequence[str]) -> Plan | None:
    """Compose and resolve every run that Hydra would start for these words; None where they ask Hydra for something else.

    Hydra's callbacks cannot stop a sweep, so this comes before Hydra.

    Raises:
        ValueError: one of the runs is wrong, or an end of a search is; so are HydraException and OmegaConfBaseException.
    """
    asked = get_args_parser().parse_args(list(words))
    if asked.help or asked.hydra_help or asked.cfg or asked.info or asked.shell_completion:
        return None
    given = OverridesParser.create().parse_overrides(asked.overrides)
    keys = {str(override.get_key_element()).lstrip("+~") for override in given}
    fixed = [override.input_line or "" for override in given if not override.is_sweep_override()]
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        base = hydra.compose("run", overrides=fixed, return_hydra_config=True)
        several = asked.multirun or base.hydra.mode == RunMode.MULTIRUN
        if base.tuning.space:
            planned = _search(base, given, fixed, keys)
        else:
            params = [f"{key}={value}" for key, value in (base.hydra.sweeper.get("params") or {}).items()]
            planned = _plan([*params, *asked.overrides] if several else None, asked.overrides)
    return replace(planned, words=(*planned.words, *launch_words(base, keys)), records=base.records, restarts=base.restarts)


def _plan(swept: Sequence[str] | None, alone: Sequence[str]) -> Plan:
    """The runs of a sweep over a grid, or the one that is no sweep."""
    jobs: list[list[str]] = [list(alone)]
    if swept is not None:
        parsed = OverridesParser.create().parse_overrides(list(swept))
        jobs = [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
    configs = [hydra.compose("run", overrides=job) for job in jobs]
    return Plan(tuple(map(spec_from, configs)), tuple(map(locations_from, configs)), "")


def _search(base: DictConfig, given: Sequence[Override], fixed: Sequence[str], keys: set[str]) -> Plan:
    """The ends of a search, each of which its mechanism must take."""
    sweeper = base.hydra.sweeper
    if "n_trials" not in sweeper:
        raise ValueError("tuning.space is for Optuna's sweeper; use experiment=tune, which selects it")
    if sweeper.n_trials < 1 or sweeper.n_jobs < 1:
        raise ValueError(f"n_trials and n_jobs count trials, so they are at least 1; got {sweeper.n_trials} and {sweeper.n_jobs}")
    space, words = space_of(base, given)
    configs = [hydra.compose("run", overrides=[*fixed, *ends]) for ends in ends_of(space)]
    specs, locations = tuple(map(spec_from, configs)), tuple(map(locations_from, configs))
    for spec, where in zip(specs, locations, strict=True):
        if reason := refusal(spec, where):
            raise RefusedSearchError(f"the search reaches settings that are refused: {reason}")
    task = task_card(specs[0].task)
    study = Study(study_id(specs[0], space, task.version), space, specs[0].attention, task.name, sweeper.n_trials)
    if "hydra.sweeper.direction" not in keys and not measure_named(task.metric).higher_is_better:
        words = [*words, "hydra.sweeper.direction=minimize"]
    return Plan(specs, locations, "", tuple(words), study)

"""What a command line means before anything of it is done: every run of it, resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from attn_zoo.cli.config import locations_from, spec_from
from attn_zoo.records import RunSpec, Store
from attn_zoo.registry import build_task, task_card


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a command asks for, and where their records go."""

    specs: tuple[RunSpec, ...]
    locations: tuple[Mapping[str, Any], ...]
    """Of each spec, the task options that say where data lie."""
    records: str

    def left(self) -> list[int]:
        """Places of the runs that are not recorded yet with a final status."""
        store = Store(self.records)
        ids = [spec.run_id(task_card(spec.task).version) for spec in self.specs]
        return [at for at, run_id in enumerate(ids) if not store.finished(run_id)]

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


def plan(words: Sequence[str]) -> Plan | None:
    """Compose and resolve every run that Hydra would start for these words; None where they ask Hydra for something else.

    Hydra's callbacks cannot stop a sweep, so this comes before Hydra.

    Raises:
        ValueError: one of the runs is wrong; so are HydraException and OmegaConfBaseException.
    """
    asked = get_args_parser().parse_args(list(words))
    if asked.help or asked.hydra_help or asked.cfg or asked.info or asked.shell_completion:
        return None
    given = OverridesParser.create().parse_overrides(asked.overrides)
    fixed = [override.input_line or "" for override in given if not override.is_sweep_override()]
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        base = hydra.compose("run", overrides=fixed, return_hydra_config=True)
        jobs: list[list[str]] = [list(asked.overrides)]
        if asked.multirun or base.hydra.mode == RunMode.MULTIRUN:
            params = [f"{key}={value}" for key, value in (base.hydra.sweeper.get("params") or {}).items()]
            swept = OverridesParser.create().parse_overrides([*params, *asked.overrides])
            jobs = [list(job) for batch in BasicSweeper.split_arguments(swept, max_batch_size=None) for job in batch]
        configs = [hydra.compose("run", overrides=job) for job in jobs]
    return Plan(tuple(map(spec_from, configs)), tuple(map(locations_from, configs)), base.records)

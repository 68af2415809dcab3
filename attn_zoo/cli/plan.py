"""What a command line means before anything of it is done: every run of it, resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from attn_zoo.cli.config import spec_from
from attn_zoo.records import RunSpec, Store
from attn_zoo.registry import task_card


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs that a command asks for, and where their records go."""

    specs: tuple[RunSpec, ...]
    records: str

    def left(self) -> int:
        """How many are not recorded yet with a final status."""
        store = Store(self.records)
        return sum(not store.finished(spec.run_id(task_card(spec.task).version)) for spec in self.specs)


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
    return Plan(tuple(spec_from(config) for config in configs), base.records)

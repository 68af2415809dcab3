"""Hydra callback: checks a whole sweep before its first run, and prints the leaderboard after its last."""

from __future__ import annotations

from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from attn_zoo.cli.config import spec_from
from attn_zoo.leaderboard import leaderboard
from attn_zoo.records import Store
from attn_zoo.registry import task_card


class LeaderboardCallback(Callback):
    """Bad input anywhere in a sweep stops it before work starts; afterwards the tables are printed."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Resolve every run of the sweep.

        Raises:
            ValueError: one of them is wrong.
        """
        Store(config.records).check_writable()
        jobs = _jobs(config)
        specs = [spec_from(hydra.compose("run", overrides=job)) for job in jobs]
        store = Store(config.records)
        left = sum(not store.finished(spec.run_id(task_card(spec.task).version)) for spec in specs)
        print(f"{len(specs)} runs, {len(specs) - left} of them recorded already, {left} to do; records go to {config.records!r}")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the tables of the records folder."""
        print(leaderboard(config.records, format="terminal"))

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the tables of the records folder."""
        print(leaderboard(config.records, format="terminal"))


def _jobs(config: DictConfig) -> list[list[str]]:
    """The overrides of every run of a sweep, in the basic sweeper's order."""
    params = config.hydra.sweeper.get("params") or {}
    swept = [f"{key}={value}" for key, value in params.items()] + list(config.hydra.overrides.task)
    batches = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(swept), max_batch_size=None)
    return [list(job) for batch in batches for job in batch]

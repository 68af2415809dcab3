"""Hydra callback: prints the leaderboard after a run or a sweep."""

from __future__ import annotations

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from attn_zoo.leaderboard import leaderboard
from attn_zoo.leaderboard.heatmap.terminal import colours_here


class LeaderboardCallback(Callback):
    """Prints the tables of the records folder when the last run is done."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep."""
        if config.report and not config.tuning.space:  # trials are no rows
            print(f"\n{leaderboard(config.records, colours=colours_here())}")

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a single run."""
        if config.report:
            print(f"\n{leaderboard(config.records, colours=colours_here())}")

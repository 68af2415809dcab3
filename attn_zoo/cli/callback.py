"""Hydra callback: prints the leaderboard after a run or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from attn_zoo.leaderboard import leaderboard, tables
from attn_zoo.leaderboard.heatmap.costs import recorded_columns
from attn_zoo.leaderboard.heatmap.model import heat_map
from attn_zoo.leaderboard.heatmap.svg import heat_map_svg
from attn_zoo.leaderboard.heatmap.terminal import colours_here
from attn_zoo.records import Store

PICTURE = "leaderboard.svg"


class LeaderboardCallback(Callback):
    """Prints the tables of the records folder when the last run is done."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep."""
        if config.report and not config.tuning.space:  # trials are no rows
            _report(config)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a single run."""
        if config.report:
            _report(config)


def _report(config: DictConfig) -> None:
    """Print the leaderboard; with ``overview`` its first table alone, which is also saved as a picture."""
    print(f"\n{leaderboard(config.records, overview=config.overview, colours=colours_here())}")
    if not config.overview:
        return
    made = tables(Store(config.records).load()[0])
    picture = Path(config.records) / PICTURE
    picture.write_text(heat_map_svg(heat_map(made, recorded_columns(made))), encoding="utf-8")
    print(f"\nPicture: {picture}. Ranks, costs and equal budgets: attn-zoo leaderboard --records {config.records}")

"""Committed results: records by folder, and measurements."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from attn_zoo.leaderboard import Table
from attn_zoo.leaderboard import tables as leaderboard_tables
from attn_zoo.records import RunRecord, Store

ROOT = Path(__file__).parents[1]


@cache
def records_in(name: str) -> list[RunRecord]:
    return Store(ROOT / "results" / name).load()[0]


@cache
def boards_of(name: str) -> list[Table]:
    """Leaderboards of the records in a folder of ``results``."""
    return leaderboard_tables(records_in(name))


def measured(name: str) -> Any:
    """Content of a measurement's file."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))

"""Committed results: records by folder, and measurements."""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from attn_zoo.bench.measurement import Measurement
from attn_zoo.leaderboard import Table
from attn_zoo.leaderboard import tables as leaderboard_tables
from attn_zoo.records import RunRecord, Store

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # for programs; pytest has it there already


@cache
def records_in(name: str) -> list[RunRecord]:
    """Records in a folder of ``results``; all but those of other people for an empty name."""
    records, damaged = Store(ROOT / "results" / name).load()
    records = [record for record in records if not str(record.source).startswith("community/")]
    assert not (name and damaged), damaged  # beside the folders are measurements
    return records


@cache
def boards_of(name: str) -> list[Table]:
    """Leaderboards of the records in a folder of ``results``."""
    return leaderboard_tables(records_in(name))


def measured(name: str) -> Any:
    """Content of a measurement's file."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def benchmarked(name: str, grid: str) -> str:
    """Report of a measurement's file that the program of this name in ``benchmarks`` wrote; ``grid`` is its experiment."""
    return getattr(import_module(name), grid).report(Measurement.from_dict(measured(name)))

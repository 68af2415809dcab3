"""Committed results: records by folder, and measurements."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from attn_zoo.bench.measurement import Measurement
from attn_zoo.cli.bracket import USUAL
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


def titled(table: Table, name: str = "name") -> str:
    """Return the name of a table's task, or its title, and its direction."""
    return f"{table.task[name]} ({'causal' if table.task.get('causal') else 'bidirectional'})"


def task_place(record: RunRecord) -> tuple[str, str]:
    """Return the name of a run's task, and its direction."""
    return record.spec.task, "causal" if record.task_card.get("causal") else "bidirectional"


@cache
def newer_records() -> list[RunRecord]:
    """Return the records of the profile until a criterion."""
    return records_in("profile3")


def until_criterion(records: Sequence[RunRecord]) -> set[tuple[str, str]]:
    """Return the tasks on which ``records`` hold runs of all main rows and controls of the profile, with five seeds each."""
    seeds: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        if not record.is_trial:
            seeds[task_place(record)][record.spec.attention].add(record.spec.seed)
    controls = {record.spec.attention for record in records_in("profile") if record.attention_card.get("control")}
    wanted = {}
    for direction, name in (("bidirectional", "encoder"), ("causal", "decoder")):
        file = ROOT / "configs" / "experiment" / f"profile3_{name}.yaml"
        wanted[direction] = controls | set(yaml.safe_load(file.read_text(encoding="utf-8"))["tuning"]["main"])
    return {place for place, rows in seeds.items() if all(len(rows[name]) >= USUAL for name in wanted[place[1]])}


@cache
def profile_records() -> list[RunRecord]:
    """Records of the profile: of runs until a criterion on the tasks of ``until_criterion``, with a fixed budget on all others."""
    newer = until_criterion(newer_records())
    found = [r for r in records_in("profile") if task_place(r) not in newer]
    found += [r for r in newer_records() if task_place(r) in newer]
    return sorted(found, key=lambda record: str(record.source))


@cache
def profile_boards() -> list[Table]:
    """Leaderboards of ``profile_records``."""
    return leaderboard_tables(profile_records())


def measured(name: str) -> Any:
    """Content of a measurement's file."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def benchmarked(program: str, experiment: str, file: str = "") -> str:
    """Return the report of a measurement that a program in ``benchmarks`` wrote.

    ``experiment`` is the class of its experiment, or empty if the program has a function ``report``. ``file`` is the name of the
    measurement, by default that of the program.
    """
    module = import_module(program)
    maker = getattr(module, experiment) if experiment else module
    return str(maker.report(Measurement.from_dict(measured(file or program))))

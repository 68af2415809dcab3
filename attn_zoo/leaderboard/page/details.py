"""Details of a row: its runs, one by one, and their environments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from attn_zoo.leaderboard.metrics import figure, mebibytes, optional, seconds, unit
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.records import RunRecord
from attn_zoo.records.plain import writable

_PER_RUN = ("started", "command", "commit", "dirty")
"""Fields of an environment that differ from run to run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One record as a line of text."""

    seed: int
    status: str
    reason: str
    scores: tuple[str, ...]
    """Test, validation and training score."""
    seconds: str
    memory: str
    commit: str
    started: str
    environment: int
    """Number in ``Runs.environments``, from 1."""
    data: str
    """First eight digits of the digest of the test split."""
    file: str
    address: str
    """Address of the file, from the page; empty where it cannot be linked."""


class Runs:
    """Records by file, and the environments in which they were made.

    Args:
        records_at: address of the records' folder relative to the page; None links no files.
    """

    def __init__(self, records: Sequence[RunRecord], records_at: str | None) -> None:
        self._by_file = {writable(record.source): record for record in records if record.source}
        self._at = records_at
        self._numbers: dict[str, int] = {}
        self.environments: list[Mapping[str, Any]] = []

    def records(self, row: Row) -> list[RunRecord]:
        """Records of a row, sorted by seed."""
        return sorted((self._by_file[file] for file in row.files), key=lambda record: record.spec.seed)

    def lines(self, row: Row, table: Table) -> list[Run]:
        """Records of a row as lines."""
        return [self._line(record, table) for record in self.records(row)]

    def command(self, row: Row) -> str:
        """Command that runs every seed of the row again with exactly its settings."""
        records = self.records(row)
        return command(records[0].spec, [record.spec.seed for record in records])

    def _line(self, record: RunRecord, table: Table) -> Run:
        told = [record.scores.get(name) for name in ("test", "valid", "train")]
        commit = str(record.environment.get("commit") or "-")[:8]
        return Run(
            seed=record.spec.seed,
            status=record.status.replace("_", " "),
            reason=record.reason or "",
            scores=tuple(optional(score, lambda value: figure(value, table) + unit(table, " %")) for score in told),
            seconds=optional(record.measured.get("train_seconds"), seconds),
            memory=optional(record.measured.get("peak_bytes"), mebibytes),
            commit=commit + (" changed" if record.environment.get("dirty") else ""),
            started=str(record.environment.get("started") or "-").replace("T", " ").replace("+00:00", " UTC"),
            environment=self._number(record.environment),
            data=str(record.data.get("test", {}).get("digest", "-"))[:8],
            file=record.source or "",
            address="" if self._at is None else self._at + quote(record.source or ""),
        )

    def _number(self, environment: Mapping[str, Any]) -> int:
        kept = {name: value for name, value in sorted(environment.items()) if name not in _PER_RUN and value is not None}
        key = json.dumps(kept, default=str)
        if key not in self._numbers:
            self.environments.append(kept)
            self._numbers[key] = len(self.environments)
        return self._numbers[key]

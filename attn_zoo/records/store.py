"""A folder of records: one JSON file a run, added whole or not at all, never changed."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attn_zoo.records.claim import claimed
from attn_zoo.records.packed import is_packed, unpack
from attn_zoo.records.record import FINAL_STATUSES, RecordError, RunRecord
from attn_zoo.records.tuning import Tuning

ROOM = 2**18
"""Bytes that a folder must take before a run is begun; a record takes some kilobytes."""

TRY, HALF = ".try-", ".half"
"""Begins and ends the names of what is written on trial and of what is not whole yet."""

CHECKPOINT, UNUSED = ".checkpoint", ".unused"
"""End the names of the state of a run that is not recorded yet, and of one that could not be gone on from."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file in the folder that is no whole record."""

    path: Path
    reason: str


class Store:
    """An append-only folder of run records, safe to share between processes and to merge by copying files.

    Args:
        root: the folder; made when the first record is added. A packed file (``attn_zoo.records.packed``) can be read.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def check_writable(self) -> None:
        """Make the folder and try it with ``ROOM`` bytes, so that no work starts whose result could not be kept.

        Raises:
            OSError: naming the folder, why it cannot take records, and what to do.
        """
        advice = "choose another folder with records=FOLDER"
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"the records folder {str(self.root)!r} is a file; {advice}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=TRY) as file:
                file.write(bytes(ROOM))
                file.flush()
        except OSError as error:
            raise OSError(
                f"the records folder {str(self.root)!r} cannot be written ({error.strerror or error}); {advice}"
            ) from error

    def add(self, record: RunRecord) -> Path:
        """Add a record: written beside its place, flushed to the disk, then renamed into it.

        Raises:
            OSError: the disk took no more; what was recorded before is untouched.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        stem = f"{record.spec.attention}-{record.spec.task}-s{record.spec.seed}-{record.run_id}"
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = self.root / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', stem)}-{stamp}-{secrets.token_hex(3)}.json"
        text = json.dumps(_finite(record.to_dict()), indent=1, sort_keys=True, allow_nan=False) + "\n"
        half = path.with_name(f".{path.name}{HALF}")
        try:
            with half.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        except OSError as error:
            with suppress(OSError):  # where nothing can be written, nothing can be removed either
                half.unlink(missing_ok=True)
            raise OSError(
                f"the record of {stem} could not be written to {str(self.root)!r} ({error.strerror or error}); "
                f"make room or choose another folder, then give the same command again"
            ) from error
        return path

    def load(self) -> tuple[list[RunRecord], list[Damaged]]:
        """All records under the folder, and the files that are none, each with its reason. Missing folders hold none.

        Raises:
            RecordError: the root is a packed file, and damaged.
        """
        if is_packed(self.root):
            return unpack(self.root), []
        records: list[RunRecord] = []
        damaged: list[Damaged] = []
        for path in self._files():
            try:
                source = path.relative_to(self.root).as_posix()
                records.append(RunRecord.from_dict(json.loads(path.read_text(encoding="utf-8")), source))
            except (OSError, ValueError) as error:  # RecordError, bad JSON and bad UTF-8 are ValueErrors
                damaged.append(Damaged(path, str(error) if isinstance(error, RecordError) else f"not readable as JSON: {error}"))
        return records, damaged

    def find(self, run_id: str, tuning: Tuning | None = None) -> RunRecord | None:
        """The record of an equal run that need not be done again, or None.

        That is one with a status that would come out the same again. A trial is one of a study and is spent whatever its status;
        it stands for no run outside the study, as none outside stands for it.

        Args:
            tuning: what the run is to a study.
        """
        for path in self._files(f"*{run_id}*.json"):
            try:
                record = RunRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                continue  # a damaged record does not count as one; the run is done again
            ours = record.run_id == run_id and _part(record.tuning) == _part(tuning)
            if ours and (record.is_trial or record.status in FINAL_STATUSES):
                return record
        return None

    def finished(self, run_id: str, tuning: Tuning | None = None) -> bool:
        """Whether ``find`` finds a record."""
        return self.find(run_id, tuning) is not None

    def claim(self, run_id: str) -> AbstractContextManager[bool]:
        """Whether this process is the one to do the run, among all that write into the folder (see ``claimed``)."""
        return claimed(self.root, run_id)

    def _files(self, pattern: str = "*.json") -> Iterator[Path]:
        """In the order of their names wherever they lie, so that nothing hangs on the folders that merged records came in."""
        if self.root.is_dir():
            yield from sorted(
                (path for path in self.root.rglob(pattern) if not path.name.startswith(".")), key=lambda path: (path.name, path)
            )


def _part(tuning: Tuning | None) -> tuple[str, bool] | None:
    """Which study, and whether as a trial of it."""
    return None if tuning is None else (tuning.study, tuning.trial is not None)


def _finite(value: Any) -> Any:
    """The same plain data with null for NaN and infinity, which JSON does not have: a diverged loss, say."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

"""Folder of records: one JSON file per run, or many runs in a packed file. A record is written as a whole and never changed.

Processes that write into the same folder divide the runs among themselves by file locks.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import IO

from attn_zoo.records.files import HALF, NAME, is_packed, pack, read_record, unpack, write_whole
from attn_zoo.records.files import SUFFIX as PACKED
from attn_zoo.records.record import RecordError, RunRecord
from attn_zoo.records.spec import file_pattern, file_stem
from attn_zoo.records.tuning import Tuning

if sys.platform != "win32":
    import fcntl

ROOM = 2**18
"""Bytes that must be free in the folder before a run starts."""

TRY = ".try-"
"""Prefix of files that test write access."""

_WRITING_SECONDS = 3600
"""Age in seconds above which an incomplete file is removed. Writing takes only seconds, so its writer has died."""

CHECKPOINT, UNUSED, CLAIM = ".checkpoint", ".unused", ".claim"
"""Suffixes of three kinds of files: the checkpoint of a run that is not recorded yet, a checkpoint that cannot be used, and the
file whose lock claims a run."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """File that is left out when records are loaded, because it is not a record, or the record is damaged or edited."""

    path: Path
    reason: str
    kind: str = "damaged"
    """``damaged``, ``edited``, or ``no record`` for JSON of another kind."""


class Store:
    """Folder of records. Several processes can write to it, and folders can be merged by copying files.

    Args:
        root: path of the folder, which is created with the first record. The records in its packed files are read as well. ``root``
            can also be a packed file, which can only be read.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def check_writable(self) -> None:
        """Create the folder and write ``ROOM`` bytes as a test. No run should start if its record could not be saved.

        Raises:
            OSError: the folder cannot be written; the message states the reason and what to do.
        """
        advice = "Choose another folder with records=FOLDER"
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"records= must name a folder, but {str(self.root)!r} is a file. {advice}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=TRY) as file:
                file.write(bytes(ROOM))
                file.flush()
        except OSError as error:
            raise OSError(
                f"the records folder {str(self.root)!r} cannot be written ({error.strerror or error}). {advice}"
            ) from error

    def add(self, record: RunRecord) -> Path:
        """Write a record to a file in the folder and return its path. The file is written as a whole.

        Raises:
            RecordError: the record is incomplete or invalid; nothing is written.
            OSError: the record could not be written; earlier records are not changed.
        """
        text = record.to_text()
        self.root.mkdir(parents=True, exist_ok=True)
        stem, stamp = file_stem(record.spec, record.run_id), datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = self.root / f"{stem}-{stamp}-{secrets.token_hex(3)}.json"
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise OSError(
                f"the record of {stem} could not be written to {str(self.root)!r} ({error.strerror or error}). Make room or "
                "choose another folder, then run the same command again"
            ) from error
        return path

    def load(self, task: str | None = None, attention: str | None = None) -> tuple[list[RunRecord], list[Damaged]]:
        """Return two lists: all records in the folder and its subfolders, and the files that are left out, each with the reason.

        If the folder does not exist, both lists are empty.

        Args:
            task: if given, only files that are named after this task are read.
            attention: if given, only files that are named after this mechanism and ``task`` are read. It needs ``task``.

        Raises:
            NotADirectoryError: the root is a file but not a packed file.
            RecordError: the root is a damaged packed file.
        """
        if is_packed(self.root):
            return unpack(self.root), []
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(
                f"{str(self.root)!r} must be a folder of records, but is a file. Name the folder that holds the records"
            )
        packs = list(self._files(f"*{PACKED}"))
        found = list(self._read(file_pattern(attention, task)))
        if packs != list(self._files(f"*{PACKED}")):  # another process packs or unpacks the folder, which moves records
            return self.load(task, attention)
        damaged = [item for item in found if isinstance(item, Damaged) and os.path.lexists(item.path)]
        return sorted((item for item in found if isinstance(item, RunRecord)), key=_by_name), damaged

    def _read(self, pattern: str) -> Iterator[RunRecord | Damaged]:
        """Yield the records whose file names match a pattern, from files of their own and from packed files, and the files that
        cannot be read. A packed record is left out if it has been read already, from its own file or from another packed file."""
        known: set[str | None] = set()
        for path in chain(self._files(pattern), self._files(f"*{PACKED}")):
            place = path.relative_to(self.root)
            try:
                if path.name.endswith(PACKED):
                    held = unpack(path, place.parent.as_posix())
                    found = [record for record in held if fnmatchcase(_by_name(record)[0], pattern)]
                else:
                    found = [read_record(path, place.as_posix())]
            except RecordError as error:
                yield Damaged(path, str(error), error.kind)
            except OSError as error:
                yield Damaged(path, f"cannot be read: {error.strerror or error}")
            else:
                yield from (record for record in found if record.source not in known)
                known |= {record.source for record in found}

    def pack(self) -> Path:
        """Write all records of the folder to one packed file, remove the files from which they were read, and return the path of
        the packed file.

        Files that are not complete records stay, and so do files that a process is still writing.

        Raises:
            FileNotFoundError: there is no record.
            NotADirectoryError: the root is a file.
            RecordError: the records are too many for one file, or a packed file is damaged; nothing is changed.
            OSError: the file cannot be written, or another process packs the folder; nothing is changed.
        """
        with self._alone() as (packs, records, damaged):
            if not records:
                raise FileNotFoundError(
                    f"the folder {str(self.root)!r} must hold records, but holds none. Name the folder that holds the records"
                )
            path = self.root / NAME
            own = [self.root / str(record.source) for record in records]
            pack(records, path)
            for file in (*packs, *(file for file in own if file.exists() and file not in damaged)):
                if file != path:
                    file.unlink()
        return path

    def unpack(self) -> list[Path]:
        """Write each record in packed files to a file of its own, remove the packed files, and return the new paths. A damaged file
        is replaced if a packed file has its record.

        Raises:
            FileNotFoundError: there is no packed file.
            NotADirectoryError: the root is a file.
            RecordError: a packed file is damaged; nothing is changed.
            OSError: a file cannot be written, or another process packs the folder. The packed files remain until all records are
                written.
        """
        written = list[Path]()
        with self._alone() as (packs, records, damaged):
            if not packs:
                raise FileNotFoundError(
                    f"the folder {str(self.root)!r} must hold a packed file, but holds none. Name a folder that was packed with "
                    "attn-zoo records pack"
                )
            for record in records:
                path = self.root / str(record.source)
                if not path.exists() or path in damaged:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(path, record.to_text().encode())
                    written.append(path)
            for packed in packs:
                packed.unlink()
        return written

    @contextmanager
    def _alone(self) -> Iterator[tuple[list[Path], list[RunRecord], set[Path]]]:
        """Return a context in which no other process packs or unpacks this folder, because that would lose what this process
        writes. It yields the packed files, all records, and the files that are not complete records."""
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"{str(self.root)!r} must be a folder, but is a file. Name the folder that holds the file")
        if not self.root.is_dir():
            raise FileNotFoundError(f"the folder {str(self.root)!r} does not exist. Name the folder that holds the records")
        with self.claim("packing") as ours:
            if not ours:
                raise BlockingIOError(
                    f"{str(self.root)!r} is being packed or unpacked by another process. Try again when that process has ended"
                )
            packs, (records, damaged) = list(self._files(f"*{PACKED}")), self.load()
            if reason := next((item.reason for item in damaged if item.path in packs), None):
                raise RecordError(reason)
            yield packs, records, {item.path for item in damaged}

    def find(self, run_id: str, tuning: Tuning | None = None, since: str = "") -> RunRecord | None:
        """Return a record that makes the run ``run_id`` unnecessary, or None if the run must be done.

        The record must have the same run id. It must be final or a trial of a search, because trials are never repeated. The run
        and the record must belong to no search, or to the same search with the same role (trial, or run with the best settings).

        Args:
            tuning: search to which the run belongs, and its role in it; None for a run outside any search.
            since: a time, or an empty string for none. A record of a run that started at this time or later counts as final, even
                if the run failed.
        """
        for record in self._recorded(run_id):
            is_new = bool(since) and str(record.environment.get("started", "")) >= since
            if _role(record.tuning) == _role(tuning) and (record.is_trial or record.is_final or is_new):
                return record
        return None

    def finished(self, run_id: str, tuning: Tuning | None = None) -> bool:
        """Return True if ``find`` returns a record, so that the run need not be done."""
        return self.find(run_id, tuning) is not None

    def has(self, run_id: str) -> bool:
        """Return True if the folder has a record of the run ``run_id``, finished or failed."""
        return next(self._recorded(run_id), None) is not None

    def clear_leftovers(self) -> None:
        """Remove checkpoints of runs that have a record by now, and temporary files that are more than an hour old."""
        for path in self.root.glob(".*"):
            with suppress(OSError):  # another process may remove the file first
                written = path.name.startswith(TRY) or path.name.endswith(HALF)
                if (path.name.endswith(CHECKPOINT) and self.is_over(path)) or (
                    written and time.time() - path.stat().st_mtime > _WRITING_SECONDS
                ):
                    path.unlink(missing_ok=True)

    def is_over(self, checkpoint: Path) -> bool:
        """Return True if the run of a checkpoint has a newer final record and no process is doing the run.

        A checkpoint that is newer than all final records of its run is still needed: the run was started again, for example by
        another search.
        """
        run_id = checkpoint.name.strip(".").removesuffix(CHECKPOINT)
        with suppress(FileNotFoundError):  # of a run that ends now
            since = checkpoint.stat().st_mtime
            written = [_written(record) for record in self._recorded(run_id) if record.is_final]
            return not is_claimed(self.claim_path(run_id)) and any(moment >= since for moment in written)
        return False

    def _recorded(self, run_id: str) -> Iterator[RunRecord]:
        """Return the records of a run. Damaged ones are left out, so that their run is repeated."""
        for found in self._read(f"*{run_id}*.json"):
            if isinstance(found, RunRecord) and found.run_id == run_id:
                yield found

    def claim(self, run_id: str) -> AbstractContextManager[bool]:
        """Return a context that yields True if this process claimed the run ``run_id``, and False if another process had claimed
        it."""
        return claimed(self.claim_path(run_id))

    def claim_path(self, run_id: str) -> Path:
        """Return the path of the file with which a process claims a run. If the process dies during the run, the file remains."""
        return self.root / f".{run_id}{CLAIM}"

    def is_left_behind(self, run_id: str) -> bool:
        """Return True if a process died while it did the run ``run_id``."""
        path = self.claim_path(run_id)
        return path.exists() and not is_claimed(path)

    def _files(self, pattern: str = "*.json") -> Iterator[Path]:
        """Return paths sorted by file name, so that the order does not depend on subfolders of merged records."""
        if self.root.is_dir():
            yield from sorted(
                (path for path in self.root.rglob(pattern) if not path.name.startswith(".")), key=lambda path: (path.name, path)
            )


def _written(record: RunRecord) -> float:
    """Return the time after which a record was not written, according to its file name, or 0 if the name has no time."""
    stamp = re.search(r"-(\d{8}T\d{6}Z)-", str(record.source))
    return datetime.strptime(stamp[1], "%Y%m%dT%H%M%S%z").timestamp() + 1 if stamp else 0.0  # the name has whole seconds


def _by_name(record: RunRecord) -> tuple[str, str]:
    """Return the file name of a record. Records are sorted by it, so that their order does not depend on subfolders."""
    source = str(record.source)
    return source.rpartition("/")[2], source


def _role(tuning: Tuning | None) -> tuple[str, bool] | None:
    """Return the study of a run and whether the run is a trial of it, or None for a run outside any study."""
    return None if tuning is None else (tuning.study, tuning.trial is not None)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Return a context that yields True if this process claimed a run, and False if another process has claimed it.

    The claim is a lock on the hidden file ``path`` that lasts until the context ends. If the process is killed, the system releases
    the lock. If the file system or platform has no locks, every process gets True. Two processes may then do the same run, but
    tables count only one of its two records.

    Raises:
        OSError: the folder cannot be written.
    """
    held = _lock(path)
    try:
        yield held is not None
    finally:
        if held is not None:
            with suppress(OSError):  # the folder has become read-only; a file without a lock claims nothing
                os.unlink(held.name)  # before the lock is released, so that no other process's claim is removed
            held.close()


def is_claimed(path: Path) -> bool:
    """Return True if a running process has locked the file ``path`` to claim a run."""
    if sys.platform == "win32":
        return False
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # deleted meanwhile, or a file system without locks
        return False
    return False


def _lock(path: Path) -> IO[str] | None:
    """Open and lock the file. Return None if another process holds the lock."""
    while True:
        file = path.open("a", encoding="utf-8")
        if sys.platform == "win32":
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if is_claimed(path):
                return None
            continue  # the other process only asked, in ``is_claimed``
        except OSError:  # no locks on this file system
            return file
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # its holder deleted it after it was opened here: a lock on it would claim nothing

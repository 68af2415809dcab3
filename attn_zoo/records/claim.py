"""File locks by which processes that write into the same folder of records divide the runs among themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl

SUFFIX = ".claim"


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

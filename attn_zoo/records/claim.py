"""Who does a run: processes that write into one folder agree on it without talking to each other."""

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
def claimed(root: Path, run_id: str) -> Iterator[bool]:
    """Whether this process is the one to do the run; no other is told so until the block ends.

    The claim is a lock on a hidden file, which the system drops with its process however that ends, so none outlives a kill.
    Where a file system or platform has no locks, every process is told yes: a run done twice counts once.

    Raises:
        OSError: the folder cannot be written.
    """
    held = _lock(root / f".{run_id}{SUFFIX}")
    try:
        yield held is not None
    finally:
        if held is not None:
            with suppress(OSError):  # a folder that has become read-only in between; the file alone claims nothing
                os.unlink(held.name)  # before the lock goes, so that nobody's claim but our own is removed
            held.close()


def is_claimed(path: Path) -> bool:
    """Whether a process that lives holds the claim in the file ``path``."""
    if sys.platform == "win32":
        return False
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # gone by now, or no locks here
        return False
    return False


def _lock(path: Path) -> IO[str] | None:
    """The file, locked; None where another process has the lock."""
    while True:
        file = path.open("a", encoding="utf-8")
        if sys.platform == "win32":
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # no locks on this file system
            return file
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # its holder removed it after we had opened it: a lock on it would say nothing

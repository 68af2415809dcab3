"""Time limit for each call of a network. If a call does not return in time, the process is ended."""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attn_zoo import deaths

PREPARATION = 600.0
"""Seconds that a run may take to read data and build its network, even if the time limit is shorter."""

_watched: list[tuple[float, IO[str]]] = []


@contextmanager
def watched(limit: float, path: Path) -> Iterator[None]:
    """Return a context that ends this process if ``beat`` is not called for ``limit + deaths.GRACE`` seconds. Until
    the first call, the limit is ``PREPARATION`` seconds if that is longer.

    Before the process ends, the place at which it hangs is written into the file ``path``, even if Python is blocked.

    Args:
        limit: time limit in seconds; 0 for none.
    """
    if not limit:
        yield
        return
    with path.open("a", encoding="utf-8") as file:
        _watched.append((limit + deaths.GRACE, file))
        _wait(max(limit + deaths.GRACE, PREPARATION), file)
        try:
            yield
        finally:
            _watched.pop()
            faulthandler.cancel_dump_traceback_later()


def beat() -> None:
    """Restart the time limit of ``watched``. Training and evaluation call this function between batches."""
    if _watched:
        _wait(*_watched[-1])


def place_of_hang(path: Path) -> str | None:
    """Return the function, file and line at which a process hung when ``watched`` ended the process. Return None if ``watched`` did
    not end it.

    Args:
        path: file that was given to ``watched``.
    """
    try:
        threads = path.read_text(encoding="utf-8", errors="replace").split("Thread ")
    except OSError:
        return None
    if len(threads) < 2:
        return None
    found = re.search(r'File "(.*)", line (\d+) in (\S+)', threads[-1])  # the main thread comes last, its innermost call first
    return f"{found[3]}, {Path(found[1]).name}:{found[2]}" if found else "an unknown place"


def _wait(seconds: float, file: IO[str]) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=file)

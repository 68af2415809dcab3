"""Standard output and standard error, which stay open even if a plugin closes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = {"stdout": 1, "stderr": 2}
"""File descriptors of the streams."""


@contextmanager
def streams_kept(changed: list[str]) -> Iterator[None]:
    """Return a context that restores standard output and standard error at its end.

    To restore the streams, the context keeps copies of their file descriptors. If a plugin closed these copies, the process ends.

    Args:
        changed: list to which ``standard streams`` is added at the end if a stream had changed.
    """
    streams = {name: getattr(sys, name) for name in _NUMBERS}
    places = {number: _place(number) for number in _NUMBERS.values()}
    copies = {number: os.dup(number) for number, place in places.items() if place is not None}
    try:
        yield
    finally:
        if any(_place(copy) != places[number] for number, copy in copies.items()):
            os._exit(1)  # all files of this process were closed, also the lock of its run; another process may go on
        moved = [number for number in copies if _place(number) != places[number]]
        for number in moved:
            os.dup2(copies[number], number)
        replaced = [name for name, stream in streams.items() if getattr(sys, name) is not stream]
        closed = [name for name, stream in streams.items() if getattr(stream, "closed", False)]
        for name in {*replaced, *closed}:
            setattr(sys, name, _opened(_NUMBERS[name]) if name in closed else streams[name])
        for copy in copies.values():
            os.close(copy)
        if moved or replaced or closed:
            changed.append("standard streams")


def _opened(number: int) -> object:
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _place(number: int) -> tuple[int, int] | None:
    """Return the device and number of the file behind a descriptor, or None if it is closed."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino

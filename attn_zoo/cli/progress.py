"""Progress of long work: a bar with the remaining time on a terminal, and otherwise a line from time to time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attn_zoo.escapes import terminal
from attn_zoo.terminal import COLUMNS

EVERY = 20.0
"""Seconds between two lines of progress, if there is no terminal."""
FIRST = 5.0
"""Seconds before the first line of progress."""
T = TypeVar("T")


class Work:
    """Context manager around long work, which reports its progress to standard error.

    Args:
        total: number of parts of the work; None if it is unknown.
        bar: True to draw a bar on a terminal. False to print lines instead, because several processes cannot share one bar.
        even: True to estimate the remaining time from the finished parts. False if some parts take far longer than others.
    """

    def __init__(self, label: str, total: int | None = None, *, bar: bool = True, first: float = FIRST, even: bool = True) -> None:
        self.label, self.total, self._done, self._note, self._first, self._even = label, total, 0, "", first, even
        self._started, self._over = time.monotonic(), threading.Event()
        self._stream = sys.stderr  # that of now: work may redirect it, to see whether a call prints
        console = Console(file=self._stream)
        self._bar: Progress | None = None
        if bar and console.is_terminal:
            counted = () if total is None else (MofNCompleteColumn(), *([TimeRemainingColumn(compact=True)] if even else []))
            columns = (TextColumn("{task.description}"), BarColumn(20), *counted, TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(label, total=total)

    def __enter__(self) -> Work:
        if self._bar is not None:
            self._bar.start()
        else:
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int | None = None, note: str = "") -> None:
        """Report the number of finished parts, by default one more than before, and a note on the present part."""
        self._done, self._note = self._done + 1 if done is None else done, note
        if self._bar is not None:
            room = max(20, self._bar.console.width - 55)
            described = f"{self.label}: {note}" if note else self.label
            self._bar.update(self._task, completed=self._done, description=described[:room])

    def line(self) -> str:
        """Return the progress as one line of text, with the estimated remaining time if there is an estimate."""
        seconds, left = time.monotonic() - self._started, ""
        if self._even and self.total and 0 < self._done < self.total:
            left = f", about {seconds * (self.total - self._done) / self._done:.0f} s left"
        parts = f"{self._done} of {self.total}" if self.total else str(self._done or "")
        return terminal(f"{self.label}: {', '.join(filter(None, [parts, self._note, f'{seconds:.0f} s{left}']))}")[:COLUMNS]

    def _tick(self) -> None:
        wait = self._first
        while not self._over.wait(wait):
            print(self.line(), file=self._stream, flush=True)
            wait = EVERY


def tracked(items: Iterable[T], label: str) -> Iterator[T]:
    """Yield the items one by one and report progress after each."""
    counted = list(items)
    with Work(label, len(counted)) as work:
        for item in counted:
            yield item
            work.update()

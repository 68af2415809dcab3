"""Ctrl-C and SIGTERM, held back until what was trained can be saved."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

PATIENCE = 2.0
"""A launcher passes on what the terminal has sent to all: two signals in so many seconds are one."""

_HELD: list[Interrupts] = []


class StoppedError(BaseException):
    """A signal asked the run to stop, and all its processes agreed; no ``Exception``, as it is nothing that went wrong."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def pass_on(self) -> BaseException:
        """What the signal would have raised: KeyboardInterrupt, or the end of the process with the status of one terminated."""
        return KeyboardInterrupt() if self.number == signal.SIGINT else SystemExit(128 + self.number)


class Interrupts:
    """Context in which a SIGINT or SIGTERM is only remembered; another, ``PATIENCE`` seconds later, acts as it would have without.

    Python handles signals in its main thread; in another thread nothing is held back. Nor is a signal that somebody else handles,
    such as submitit, which starts a job of its own again.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._remember)
        _HELD.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _HELD.remove(self)
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > PATIENCE:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def asked() -> int:
    """Number of the signal that was held back; 0 for none."""
    return max((held.number for held in _HELD), default=0)

"""Delay of Ctrl-C and SIGTERM during a run: they end the run after a checkpoint is saved."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from attn_zoo.outside import Interrupted, Terminated, is_plain

PATIENCE = 2.0
"""Seconds within which two signals count as one. With a launcher, a process can get each signal twice: from the launcher and from
the terminal."""

_HELD: list[Interrupts] = []


class StoppedError(BaseException):
    """Error with which a signal stops a run. It is a ``BaseException`` but not an ``Exception``, because the run did not fail."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def pass_on(self) -> BaseException:
        """Return the exception that ends the process: ``Interrupted`` after SIGINT, or ``Terminated`` with the usual exit status
        after another signal.
        """
        return Interrupted() if self.number == signal.SIGINT else Terminated(128 + self.number)


class Interrupts:
    """Context in which the first SIGINT or SIGTERM does not end the process. The run calls ``asked`` to learn of the signal, and
    then ends.

    Another signal more than ``PATIENCE`` seconds later takes effect at once. Python handles signals in its main thread only, so a
    context in another thread has no effect. If a signal already has a special handler, such as that of submitit, this handler
    stays.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if is_plain(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._remember)
        _HELD.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        _HELD.remove(self)
        self._restore()
        if self.number and kind is not None and not issubclass(kind, Interrupted | Terminated):
            signal.raise_signal(self.number)  # an error of the run came before the deferred signal was heeded

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
    """Return the number of the signal that ``Interrupts`` delays, or 0 if there is none."""
    return max((held.number for held in _HELD), default=0)

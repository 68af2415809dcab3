"""Distinction between errors of a plugin and events from outside that end the code of the plugin, such as Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

PLAIN = (signal.SIG_DFL, signal.default_int_handler)
"""Default signal handlers: the system's and Python's."""

_TRACEBACK = vars(BaseException)["__traceback__"]


class Interrupted(KeyboardInterrupt):
    """Error that ends a run after Ctrl-C (SIGINT), once the checkpoint of the run is saved."""


class Terminated(SystemExit):
    """Error that ends the process after the signal SIGTERM."""


class Outside:
    """Context that distinguishes errors of the code in the context from events outside of this code, such as signals (see
    ``pass_on``).

    A KeyboardInterrupt counts as an event from outside if SIGINT arrived in the context, even if the code in the context sent the
    signal.

    Args:
        callers: functions of other code that the code in the context calls. An error that passes through one of these functions
            counts as an event from outside.
    """

    def __init__(self, *callers: Callable[..., object]) -> None:
        known = [*map(signal.getsignal, signal.valid_signals()), *callers]
        functions = [getattr(one, "__func__", one) for one in known]
        self._codes = [code for function in functions if (code := getattr(function, "__code__", None))]
        self._arrived = False
        self._before: Any = None
        self._noted = self._note  # one object, which getsignal returns

    def __enter__(self) -> Outside:
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():
            self._before = before
            signal.signal(signal.SIGINT, self._noted)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) is self._noted:
            signal.signal(signal.SIGINT, self._before)

    def pass_on(self, error: BaseException) -> None:
        """Raise ``error`` again if an event from outside caused it. If SIGINT arrived, but the code in the context replaced or
        suppressed the KeyboardInterrupt, raise ``Interrupted``. Otherwise do nothing.
        """
        kind = type(error)  # the class as such: every attribute of an error may be code of a plugin
        if issubclass(kind, Interrupted | Terminated) or (issubclass(kind, KeyboardInterrupt) and self._may_be_a_signal()):
            raise error
        if self._arrived:
            raise Interrupted from error
        if any(frame.f_code in self._codes for frame, _ in traceback.walk_tb(_TRACEBACK.__get__(error))):
            raise error

    def _may_be_a_signal(self) -> bool:
        """Return True if SIGINT arrived, or if another signal handler was set, which may have hidden it."""
        now = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()  # other threads are never interrupted
        return self._arrived or (in_main and now is not self._noted and now not in (signal.SIG_IGN, signal.SIG_DFL))

    def _note(self, number: int, frame: FrameType | None) -> object:
        self._arrived = True
        return self._before(number, frame)


def is_plain(handler: Any) -> bool:
    """Return True if ``handler`` is a default signal handler: the system's or Python's. A handler that ``Outside`` set counts
    as the handler that it replaced.
    """
    noting = getattr(handler, "__self__", None)
    return is_plain(noting._before) if isinstance(noting, Outside) else handler in PLAIN

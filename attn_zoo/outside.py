"""Ends that come from outside of a plugin's code: Ctrl-C, SIGTERM, and whatever another handler of signals raises."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

PLAIN = (signal.SIG_DFL, signal.default_int_handler)
"""Handlers of a signal that nobody has set."""

_TRACEBACK = vars(BaseException)["__traceback__"]


class Interrupted(KeyboardInterrupt):
    """End of a run that SIGINT asked for, and that waited until a checkpoint was saved."""


class Terminated(SystemExit):
    """End of the process that SIGTERM asked for."""


class Outside:
    """Context that tells ends that come from outside of a plugin's code from errors that the code raises itself.

    KeyboardInterrupt comes from outside if SIGINT arrived in the context, whoever sent it, because a process does not learn that.

    Args:
        callers: functions of others that the code calls or that are called beside it; what they raise comes from outside.
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
        """Raise an error again that came from outside, or an interrupt that the code turned into another error or lost."""
        kind = type(error)  # the class as such: every attribute of an error may be code of a plugin
        if issubclass(kind, Interrupted | Terminated) or (issubclass(kind, KeyboardInterrupt) and self._may_be_a_signal()):
            raise error
        if self._arrived:
            raise Interrupted from error
        if any(frame.f_code in self._codes for frame, _ in traceback.walk_tb(_TRACEBACK.__get__(error))):
            raise error

    def _may_be_a_signal(self) -> bool:
        """Return True if SIGINT arrived, or another handler was set, which may have hidden it."""
        now = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()  # other threads are never interrupted
        return self._arrived or (in_main and now is not self._noted and now not in (signal.SIG_IGN, signal.SIG_DFL))

    def _note(self, number: int, frame: FrameType | None) -> object:
        self._arrived = True
        return self._before(number, frame)


def is_plain(handler: Any) -> bool:
    """Return True if nobody has set the handler of a signal, apart from an ``Outside``."""
    noting = getattr(handler, "__self__", None)
    return is_plain(noting._before) if isinstance(noting, Outside) else handler in PLAIN

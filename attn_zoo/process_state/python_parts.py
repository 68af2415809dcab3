"""Settings and other state that Python, its standard library and NumPy keep for the whole process."""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import operator
import os
import random
import signal
import sys
import warnings
from typing import Any

import numpy as np

from attn_zoo import deaths
from attn_zoo.process_state.functions import copies, loaded, put_functions, same_functions
from attn_zoo.process_state.part import Part

if sys.platform != "win32":
    import resource


def _same_environment(before: dict[str, str], now: dict[str, str]) -> bool:
    """Return True if the environment variables are equal. Those that PyTorch, accelerate and scikit-learn add do not count."""
    prefixes = ("ACCELERATE_", "KINETO_", "KMP_", "TORCHINDUCTOR_", "TRITON_")
    ours = {name for name in now if name not in before and name.startswith(prefixes)}
    return {name: value for name, value in now.items() if name not in ours} == before


def _put_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _put_filters(before: list[Any]) -> None:
    warnings.resetwarnings()  # also makes every module read the filters anew
    warnings.filters[:] = before  # type: ignore[index]  # a list, which its type hides


def _same_filters(before: list[Any], now: list[Any]) -> bool:
    """Return True if warning filters are equal, apart from those that a library adds for its own warnings during import."""
    new = [one for one in now if one not in before]
    return all(one in now for one in before) and not any(one[0] == "error" or (one[1] is None and one[2] is Warning) for one in new)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _put_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _timers() -> tuple[bool, ...]:
    return tuple(signal.getitimer(timer)[0] > 0 for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF))


def _put_timers(before: tuple[bool, ...]) -> None:
    for timer, ran in zip((signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF), before, strict=True):
        if not ran:
            signal.setitimer(timer, 0)


def _put_arguments(before: list[str]) -> None:
    sys.argv[:] = before


def _put_paths(before: list[str]) -> None:
    """Restore the paths that were removed. Paths that a plugin added stay, because it may import modules from them later."""
    sys.path[:] = [*(path for path in sys.path if path not in before), *before]


def _same_modules(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return all(now.get(name) is module for name, module in before.items())


def _put_finders(before: list[Any]) -> None:
    sys.meta_path[:] = [*(one for one in sys.meta_path if one not in before), *before]


def _tracing() -> tuple[Any, ...]:
    return sys.gettrace(), sys.getprofile()


def _put_tracing(before: tuple[Any, ...]) -> None:
    sys.settrace(before[0])
    sys.setprofile(before[1])


def _put_callbacks(before: list[Any]) -> None:
    gc.callbacks[:] = before


def _same_start(before: str | None, now: str | None) -> bool:
    """Return True if new processes start as before. The first one who asks for the method sets the default."""
    return now == (before or multiprocessing.get_all_start_methods()[0]) or now == before


def _put_start(before: str | None) -> None:
    multiprocessing.set_start_method(before, force=True)


def _limits() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


def _put_limits(before: dict[int, tuple[int, int]]) -> None:
    """Restore limits. A process of a command ends if it cannot restore what later rows need."""
    for number, limit in before.items():
        put = _set_limit(number, limit) or _set_limit(number, (limit[0], resource.getrlimit(number)[1]))
        if not put and number != resource.RLIMIT_CORE and deaths.in_command():
            os._exit(1)  # another process goes on, with the limits of the command


def _set_limit(number: int, limit: tuple[int, int]) -> bool:
    """Set a limit if it differs. Return False if the system does not allow it, as when the hard limit was lowered."""
    try:
        if resource.getrlimit(number) != limit:
            resource.setrlimit(number, limit)
    except (ValueError, OSError):
        return False
    return True


def _numpy() -> Any:
    """Return the state of NumPy's generator, or None if nobody has imported NumPy."""
    return np.random.get_state() if "numpy.random" in sys.modules else None


def _put_numpy(before: Any) -> None:
    if before is not None:
        np.random.set_state(before)


CALLED_AT_ANY_TIME = [
    Part("tracing and profiling", _tracing, _put_tracing),
    Part("calls of the garbage collector", lambda: list(gc.callbacks), _put_callbacks),
    Part("loaded modules", loaded, sys.modules.update, _same_modules),
]
"""Parts that are restored before all others. Tracing functions and callbacks are called at any time, so they could change other
parts again. Deleted modules must be put back first, because Python would otherwise import PyTorch a second time."""
PYTHON_PARTS = [
    Part("functions of PyTorch, NumPy, attn-zoo or Python", copies, put_functions, same_functions),
    Part("working directory", os.getcwd, os.chdir),
    Part("environment variables", lambda: dict(os.environ), _put_environment, _same_environment),
    Part("filters of warnings", lambda: list(warnings.filters), _put_filters, _same_filters),
    Part("level of logging", lambda: logging.root.manager.disable, logging.disable),
    Part("garbage collector", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Part("thresholds of the garbage collector", gc.get_threshold, lambda before: gc.set_threshold(*before)),
    Part("start of processes", lambda: multiprocessing.get_start_method(allow_none=True), _put_start, _same_start),
    Part("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, operator.le),
    Part("umask", _umask, os.umask),
    Part("locale", lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)),
    Part("sys.argv", lambda: list(sys.argv), _put_arguments),
    Part("sys.path", lambda: list(sys.path), _put_paths, lambda before, now: set(before) <= set(now)),
    Part("finders of modules", lambda: list(sys.meta_path), _put_finders, lambda before, now: set(before) <= set(now)),
    Part("floating-point errors of NumPy", np.geterr, lambda before: np.seterr(**before)),
]
if sys.platform != "win32":
    PYTHON_PARTS += [
        Part("signal handlers", _handlers, _put_handlers),
        Part("timers", _timers, _put_timers),
        Part("limits of resources", _limits, _put_limits),
    ]
PYTHON_RANDOM = [
    Part("NumPy's generator", _numpy, _put_numpy),
    Part("Python's generator", random.getstate, random.setstate),
]

"""State that Python, its standard library and NumPy keep for the whole process."""

from __future__ import annotations

import builtins
import gc
import locale
import logging
import math
import operator
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from attn_zoo.process_state.part import Part

if sys.platform != "win32":
    import resource

_PATCHABLE: tuple[Any, ...] = (
    *(torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.init, torch.nn.Module, torch.nn.Parameter),
    *(torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Dropout),
    *(torch.autograd, torch.linalg, torch.fft, torch.optim, torch.optim.AdamW, torch.optim.Optimizer),
    *(builtins, math, random, time, np),
)
"""Modules and classes whose functions a plugin may have replaced for every row."""


def _functions() -> list[dict[str, Any]]:
    return [{name: value for name, value in vars(place).items() if callable(value)} for place in _PATCHABLE]


def _replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Functions that are not what they were, by name; those that PyTorch's compiler wraps when it is imported do not count."""
    return {name: old for name, old in before.items() if (new := now.get(name)) is not old and not _is_of_the_compiler(new)}


def _is_of_the_compiler(function: Any) -> bool:
    file = str(getattr(getattr(function, "__code__", None), "co_filename", ""))
    return file.endswith("torch/_compile.py") or "torch/_dynamo/" in file


def _shadowed(place: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the methods that a class inherited before and has as its own now, such as ``torch.Tensor.softmax``.

    The step of an optimiser does not count: PyTorch wraps it when the first optimiser of a class is made, and marks it as hooked.
    """
    bases = place.__mro__[1:] if isinstance(place, type) else ()
    new = [name for name in now if name not in before and not getattr(now[name], "hooked", False)]
    return [name for name in new if any(name in vars(base) for base in bases)]


def _same_functions(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    return not any(map(_replaced, before, now)) and not any(map(_shadowed, _PATCHABLE, before, now))


def _put_functions(before: list[dict[str, Any]]) -> None:
    for place, old, new in zip(_PATCHABLE, before, _functions(), strict=True):
        for name, function in _replaced(old, new).items():
            setattr(place, name, function)
        for name in _shadowed(place, old, new):
            delattr(place, name)


def _same_environment(before: dict[str, str], now: dict[str, str]) -> bool:
    """Tell whether the variables are equal, apart from those that PyTorch, accelerate and scikit-learn add for themselves."""
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
    """Tell whether filters are as good as equal: a library may add one for its own warnings when it is imported."""
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
    """Bring back what was removed; what a plugin added may hold modules that it imports later."""
    sys.path[:] = [*(path for path in sys.path if path not in before), *before]


def _limits() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


def _put_limits(before: dict[int, tuple[int, int]]) -> None:
    for number, limit in before.items():
        with suppress(ValueError, OSError):  # only root may raise the hard limit
            resource.setrlimit(number, (limit[0], max(limit[1], resource.getrlimit(number)[1])))


def _numpy() -> Any:
    """State of NumPy's generator; None if nobody has imported it."""
    return np.random.get_state() if "numpy.random" in sys.modules else None


def _put_numpy(before: Any) -> None:
    if before is not None:
        np.random.set_state(before)


PYTHON_PARTS = [
    Part("functions of PyTorch, NumPy or Python", _functions, _put_functions, _same_functions),
    Part("working directory", os.getcwd, os.chdir),
    Part("environment variables", lambda: dict(os.environ), _put_environment, _same_environment),
    Part("filters of warnings", lambda: list(warnings.filters), _put_filters, _same_filters),
    Part("level of logging", lambda: logging.root.manager.disable, logging.disable),
    Part("garbage collector", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Part("thresholds of the garbage collector", gc.get_threshold, lambda before: gc.set_threshold(*before)),
    Part("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, operator.le),
    Part("umask", _umask, os.umask),
    Part("locale", lambda: locale.setlocale(locale.LC_ALL), lambda before: locale.setlocale(locale.LC_ALL, before)),
    Part("sys.argv", lambda: list(sys.argv), _put_arguments),
    Part("sys.path", lambda: list(sys.path), _put_paths, lambda before, now: set(before) <= set(now)),
    Part("hook of errors", lambda: sys.excepthook, lambda before: setattr(sys, "excepthook", before)),
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

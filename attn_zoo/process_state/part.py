"""Type of one part of the state of a process, with functions that read, compare and restore it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One part of the state of a process.

    Args:
        name: name in warnings and records.
        get: function that returns the present value. Later changes of the process do not change the returned value.
        put: function that restores a value that ``get`` returned.
        same: function that returns True if an earlier and a later value count as equal.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    same: Callable[[Any, Any], bool] = operator.eq

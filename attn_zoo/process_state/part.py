"""One part of the state of a process, and how it is read and restored."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One part of the state of a process.

    Args:
        name: name in warnings and records.
        get: returns the value, which later changes of the process leave as it is.
        put: sets a value that ``get`` returned.
        same: tells whether an earlier and a later value count as equal.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    same: Callable[[Any, Any], bool] = operator.eq

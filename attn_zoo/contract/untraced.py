"""Decorator for functions that torch.compile must call without tracing them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Return ``function`` marked with ``torch.compiler.disable``, so that torch.compile does not trace it.

    Use it for a loop over the tiles of a long sequence, because tracing would unroll the loop, which takes minutes. Use it also
    for code that a graph cannot hold, such as counting calls in Python.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:  # imported only when it is used, because the import takes two seconds
            return function(*args, **kwargs)
        disabled = getattr(function, "disabled", None)
        if disabled is None:
            # Cached as an attribute of the function, which its type does not declare.
            disabled = function.disabled = torch.compiler.disable(function)  # type: ignore[attr-defined]
        return disabled(*args, **kwargs)

    return cast(F, called)

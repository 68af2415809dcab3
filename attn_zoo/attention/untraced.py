"""Functions that ``torch.compile`` calls as they are, instead of looking in."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """``torch.compiler.disable``, but for importing the compiler, two seconds of it: that is left to whoever compiles.

    For functions that go through a long sequence tile by tile: traced, each tile would be a piece of program of its own, which
    takes minutes.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        disabled = getattr(function, "disabled", None)
        if disabled is None:
            # Kept with the function; functions take attributes, of which their type knows nothing.
            disabled = function.disabled = torch.compiler.disable(function)  # type: ignore[attr-defined]
        return disabled(*args, **kwargs)

    return cast(F, called)

"""Work cut into tiles, so that temporaries are still in a processor's cache when the next step reads them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

CHEAP_BYTES = 16 * 2**20
"""Half of glibc's largest mmap threshold (32 MiB): above that, each allocation is page-faulted anew,
which costs several times the arithmetic done on it. A block keeps to half, for what stands beside it."""

CACHE_BYTES = 2**20
"""Of the longest temporary of a step on a CPU. Attention within buckets at 4,096 tokens took a fifth longer with a quarter as
much, for the calls, and up to a tenth with four times as much, for the cache; random features did not tell them apart."""

DEVICE_BYTES = 2**26
"""The same elsewhere, where a step costs the launch of a kernel whatever its size."""


def step_bytes(device: torch.device) -> int:
    """How long a temporary of a step should be. What would be computed on ``meta`` is counted as on a CPU."""
    return CACHE_BYTES if device.type in ("cpu", "meta") else DEVICE_BYTES


def sequences(batch: int, heads: int, bytes_each: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Examples and heads whose sequences are taken together, where each of them has temporaries of ``bytes_each``.

    They are many where sequences are short: some heads of one example, or all heads of some.
    """
    if exported():
        yield slice(None), slice(None)
        return
    together = max(1, step_bytes(device) // max(1, bytes_each))
    examples, beside = max(1, together // heads), min(heads, together)
    for example in range(0, batch, examples):
        for head in range(0, heads, beside):
            yield slice(example, example + examples), slice(head, head + beside)


def rows_of_step(length: int, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """Rows of a step, where each of them has temporaries of ``row_bytes``."""
    if exported():
        return iter([slice(0, length)])
    step = max(1, step_bytes(device) // max(1, row_bytes))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def like_tokens(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """Uninitialised, its heads beside each other in memory as the layer joins and splits them: without a copy."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def exported() -> bool:
    """Whether this run is captured as a program for another runtime, whose sizes are to stay open: nothing is cut by them then."""
    return torch.compiler.is_exporting()


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

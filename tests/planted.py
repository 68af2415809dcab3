"""Planted defects in a line or two, each in an attention with a sound base: a table, and the classes made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import originals_more
from mutants import MUTANTS, breaks
from originals import ORIGINALS
from torch import Tensor

SHAPED = originals_more.Window, originals_more.Gated, originals_more.Features
"""Importing them enters their cards."""

Around = Callable[..., Tensor]
"""A call of the base as a function of (attend, module, query, key, value, key_valid), where ``attend`` is the base's."""


def plant(
    name: str,
    base: str,
    check: str,
    says: str,
    around: Around | None = None,
    *,
    method: str = "attend",
    members: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Enter a mutant of ``base``: ``around`` stands for one method, ``members`` for others."""
    sound = ORIGINALS[base].build
    held = dict(members or {})
    if around is not None:
        own = getattr(sound, method)
        held[method] = lambda self, *given, **streams: around(partial(own, self), self, *given, **streams)
    breaks(check, base, says, **facts)(type(name, (sound,), {"__module__": __name__, "__doc__": name, **held}))


def planted() -> list[str]:
    """Names of the planted mutants."""
    return [mutant.card.name for mutant in MUTANTS if mutant.card.build.__module__ == __name__]

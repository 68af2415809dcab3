"""Registration of mutants: a class written by hand, or a defect of a line or two planted in a sound attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from attn_zoo.contract import Attention, AttentionCard
from mutants.originals import ORIGINALS


class Mutant(NamedTuple):
    """A broken attention, the check that must catch it, its original, and a part of the expected message."""

    check: str
    card: AttentionCard
    original: AttentionCard
    says: str


MUTANTS: list[Mutant] = []
Class = type[Attention]

Around = Callable[..., Tensor]
"""Wrapper of the base's method: a function of (attend, module, query, key, value, key_valid), ``attend`` being that method."""


def breaks(check: str, original: str, says: str, **facts: Any) -> Callable[[Class], Class]:
    """Enter a class as the mutant that ``check`` must catch. ``facts`` change its card; ``can`` changes single claims."""

    def enter(cls: Class) -> Class:
        sound = ORIGINALS[original]
        can = replace(sound.can, **facts.pop("can", {}))
        cls.card = replace(sound, name=cls.__name__, build=cls, can=can, **facts)
        MUTANTS.append(Mutant(check, cls.card, sound, says))
        return cls

    return enter


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
    """Enter a mutant of ``base``: ``around`` wraps its ``method``, and ``members`` replace other attributes."""
    sound = ORIGINALS[base].build
    held = dict(members or {})
    if around is not None:
        own = getattr(sound, method)
        held[method] = lambda self, *given, **streams: around(partial(own, self), self, *given, **streams)
    breaks(check, base, says, **facts)(type(name, (sound,), {"__module__": __name__, "__doc__": name, **held}))

"""Registration of mutants: a defect planted around a method of a sound attention, or a class written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from attn_zoo.contract import Attention, AttentionCard
from mutants.originals import ORIGINALS


class Mutant(NamedTuple):
    """A broken attention, the check that must catch it, its original, and a part of the expected message."""

    check: str
    card: AttentionCard
    original: AttentionCard
    says: str


MUTANTS: list[Mutant] = []


def breaks(check: str, original: str, says: str, *, method: str = "attend", **facts: Any) -> Callable[[Any], Any]:
    """Enter the mutant that ``check`` must catch: a class, or a function that is called in place of the original's ``method``
    with that method, the module and the arguments of the call. ``facts`` change the card; ``can`` changes single claims."""

    def enter(defect: Any) -> Any:
        plant(defect.__name__, original, check, says, defect, method=method, **facts)
        return defect

    return enter


def plant(
    name: str,
    original: str,
    check: str,
    says: str,
    defect: Any = None,
    *,
    method: str = "attend",
    members: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Enter a mutant by name: ``defect`` is as for ``breaks``, and ``members`` replace attributes of the original."""
    sound = ORIGINALS[original]
    cls: Any = defect if isinstance(defect, type) else _derived(name, sound.build, defect, method, dict(members or {}))
    can = replace(sound.can, **facts.pop("can", {}))
    cls.card = replace(sound, name=name, build=cls, can=can, **facts)
    MUTANTS.append(Mutant(check, cls.card, sound, says))


def _derived(name: str, base: type[Attention], defect: Any, method: str, members: dict[str, Any]) -> Any:
    if defect is not None:
        own = getattr(base, method)
        members[method] = lambda self, *given, **named: defect(partial(own, self), self, *given, **named)
    return type(name, (base,), {"__module__": __name__, "__doc__": name, **members})

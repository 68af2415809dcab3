"""Context that restores the state of the process after code of plugins has run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from attn_zoo.process_state.compiler import COMPILER, STANCE
from attn_zoo.process_state.part import Part
from attn_zoo.process_state.python_parts import CALLED_AT_ANY_TIME, PYTHON_PARTS, PYTHON_RANDOM
from attn_zoo.process_state.streams import streams_kept
from attn_zoo.process_state.torch_parts import STATED, TORCH_PARTS, TORCH_RANDOM

_PARTS = [*CALLED_AT_ANY_TIME, *TORCH_PARTS, COMPILER, STANCE, *PYTHON_PARTS]
_RANDOM = [TORCH_RANDOM, *PYTHON_RANDOM]
"""Generators of random numbers. Any code may draw from them, so a change of their state is undone but not reported."""
_UNREAD = object()
"""Placeholder for a value that cannot be read."""


def add_part(part: Part) -> None:
    """Add a part to the state of the process that ``kept`` restores."""
    _PARTS.append(part)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Return a context that, at its end, restores the state of the process.

    The context yields a list. At the end, the names of the settings that had changed are added to the list.
    """
    changed: list[str] = []
    before = [(part, _read(part)) for part in _PARTS]
    generators = [(part, _read(part)) for part in _RANDOM]
    with streams_kept(changed):
        try:
            yield changed
        finally:
            changed += [part.name for part, value in before if _put_back(part, value)]
            for part, value in generators:
                _put_back(part, value)


def unusual() -> dict[str, str]:
    """Return the settings that can change scores and differ from those of a fresh process, with their values."""
    found = {name: get() for name, (get, _) in STATED.items()}
    return {name: str(value) for name, value in found.items() if value != STATED[name][1]}


def sentence(who: str, when: str, changed: Sequence[str]) -> str:
    """Return a sentence that says which settings of the process a plugin changed.

    Args:
        when: words that say when the settings changed, such as ``when it was imported``.
    """
    return f"{who} changed settings of the whole process {when}; they were put back: {', '.join(changed)}"


def _read(part: Part) -> Any:
    try:
        return part.get()
    except Exception:  # such as a working directory that was deleted
        return _UNREAD


def _put_back(part: Part, before: Any) -> bool:
    """Restore a part if it differs. Return True if it did."""
    now = _read(part)
    with suppress(Exception):  # values of a plugin may compare as they like
        if before is _UNREAD or (now is not _UNREAD and part.same(before, now)):
            return False
    with suppress(Exception):  # such as a handler of signals in a thread; the part is named all the same
        part.put(before)
    return True

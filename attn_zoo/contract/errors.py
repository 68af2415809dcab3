"""Error classes of the zoo, with which a caller can tell a refusal from a mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnsupportedError(ValueError):
    """The request is well formed, but needs a capability that this entry does not claim."""


class MissingDataError(FileNotFoundError):
    """Data that cannot be generated are missing; the message says what to put where."""


class DamagedDataError(ValueError):
    """A file of data cannot be read, is cut short, or holds something other than its name says; the message names it."""


class UnknownNameError(LookupError):
    """No entry has this name; the message lists the known names and the nearest one.

    A ``LookupError`` and not a ``KeyError``, because a ``KeyError`` prints its message in quotes.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        super().__init__(f"no {kind} is called {name!r}{hint} Known: {', '.join(names) or 'none'}")
        self.kind, self.name, self.known = kind, name, tuple(names)

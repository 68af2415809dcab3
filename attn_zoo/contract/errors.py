"""Error classes of attn-zoo. With them a caller can distinguish an unsupported request from a mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnsupportedError(ValueError):
    """Error for a correct request that needs a capability which the mechanism or task does not declare."""


class MissingDataError(FileNotFoundError):
    """Error for missing data that cannot be generated. The message says which files to put where."""


class DamagedDataError(ValueError):
    """Error for a data file that cannot be read, is cut short, or does not hold what its name says. The message names the file."""


class UnknownNameError(LookupError):  # not a KeyError, which would print its message in quotes
    """Error for an unknown name. The message lists the known names and suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], advice: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = (f"; did you mean {near[0]!r}?" if near else ".") + (f" {advice}" if advice else "")
        super().__init__(f"no {kind} is called {name!r}{hint} Known: {', '.join(names) or 'none'}")
        self.kind, self.name, self.known = kind, name, tuple(names)

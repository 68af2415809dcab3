"""Options that an entry gained after its first records."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

_LATER = "added_later"


def added_later(default: Any) -> Any:
    """Field of an options dataclass for an option that is younger than committed records of the entry.

    At its default, which must leave everything as it was, a spec does not mention it, so that the ids of older records hold.
    """
    return field(default=default, metadata={_LATER: True})


def left_out(option: Field[Any], value: object) -> bool:
    """Whether a spec does not mention an option of this value."""
    return bool(option.metadata.get(_LATER)) and value == option.default

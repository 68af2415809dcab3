"""Shipped results: packed records that come with the package, for tables without the user's own runs."""

from __future__ import annotations

from pathlib import Path

SETS = ("profile", "quickstart")
"""Names of result sets that may be in the package; the first one present is the default."""
TRANSPLANT = Path(__file__).parent / "transplant.json"
"""Path of the committed results of ``attn-zoo transplant``."""


def packed_file(name: str) -> Path:
    """Return the path of the packed file of a set. The file may not exist."""
    return Path(__file__).parent / f"{name}.jsonl.xz"


def shipped() -> list[str]:
    """Return the names of the sets that this installation has."""
    return [name for name in SETS if packed_file(name).is_file()]


def default() -> Path:
    """Return the path of the packed file of the first set that this installation has.

    Raises:
        ValueError: the installation has none.
    """
    there = shipped()
    if not there:
        raise ValueError("this installation has no records of its own; give --records FOLDER")
    return packed_file(there[0])

"""Reference records in the package, taken from the committed results, for tables without the user's own runs."""

from __future__ import annotations

from pathlib import Path

SETS = ("profile", "quickstart")
"""Names of result sets that may be in the package; the first one present is the default."""
TRANSPLANT = Path(__file__).parent / "transplant.json"
"""Path of the committed results of ``attn-zoo transplant``."""


def packed_file(name: str) -> Path:
    """Return the path of the packed file of a set, which need not exist."""
    return Path(__file__).parent / f"{name}.jsonl.xz"


def shipped() -> list[str]:
    """Return the names of the sets in this installation."""
    return [name for name in SETS if packed_file(name).is_file()]


def default() -> Path:
    """Return the path of the packed file of the first set in this installation.

    Raises:
        ValueError: the installation has none.
    """
    there = shipped()
    if not there:
        raise ValueError("this installation came without reference records; give --records FOLDER")
    return packed_file(there[0])

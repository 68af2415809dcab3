"""Shipped results: packed records of our own runs that come with the package."""

from __future__ import annotations

from pathlib import Path

SETS = ("profile", "quickstart")
"""Names of result sets that may be in the package; the first one present is the default."""
TRANSPLANT = Path(__file__).parent / "transplant.json"
"""Path of the committed results of ``attn-zoo transplant``."""


def packed_file(name: str) -> Path:
    """Return the path of the packed file with the shipped results called ``name``. The file may not exist."""
    return Path(__file__).parent / f"{name}.jsonl.xz"


def shipped() -> list[str]:
    """Return the names of the sets of shipped results that this installation has."""
    return [name for name in SETS if packed_file(name).is_file()]


def default() -> Path:
    """Return the path of the packed file of the first set in ``SETS`` that this installation has.

    Raises:
        ValueError: this installation has no shipped results.
    """
    there = shipped()
    if not there:
        raise ValueError("this installation has no shipped results. Name a folder of records with --records FOLDER")
    return packed_file(there[0])

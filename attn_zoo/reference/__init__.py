"""Reference records that come with the package: those of the committed results, so that tables need no run of one's own."""

from __future__ import annotations

from pathlib import Path

SETS = ("profile", "quickstart")
"""Folders of results that may be shipped; the first that is shipped is shown where none is named."""
TRANSPLANT = Path(__file__).parent / "transplant.json"
"""The committed file of ``attn-zoo transplant``."""


def packed_file(name: str) -> Path:
    """The packed file of a set, whether it is there or not."""
    return Path(__file__).parent / f"{name}.jsonl.xz"


def shipped() -> list[str]:
    """Names of the sets that this installation has."""
    return [name for name in SETS if packed_file(name).is_file()]

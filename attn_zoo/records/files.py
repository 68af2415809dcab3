"""Files of records, written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

HALF = ".half"
"""Suffix of incomplete files."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file to a temporary name, flush it to the disk, then rename it.

    Raises:
        OSError: the file cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}{HALF}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):  # a folder that cannot be written may refuse removal, too
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a file renamed in it keeps its name when the machine loses power."""
    with suppress(OSError):  # Windows and some network file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""What the files of a data set are, by content, found without parsing them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from attn_zoo.contract import DataSet
from attn_zoo.data.files import sha256


def dataset_digests(dataset: DataSet[Any], root: Path) -> list[str]:
    """The layout that would be read, and a digest of each file or folder of it: what a cache may go by.

    Raises:
        MissingDataError: no layout is there whole.
    """
    layout = dataset.layout(root)
    if layout is None:
        dataset.load(root)  # says what is missing
        raise AssertionError("a data set without a layout was read")
    return [layout.title, *(folder_digest(path) if path.is_dir() else sha256(path) for path in layout.paths(root))]


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files below a folder, in the order of their names."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder).as_posix()}\n{sha256(path)}\n".encode())
    return found.hexdigest()

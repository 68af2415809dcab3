"""Digests of the files of a data set. They are computed without parsing the files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from attn_zoo.contract import DataSet
from attn_zoo.data.files import sha256


def dataset_digests(dataset: DataSet[Any], root: Path) -> list[str]:
    """Return strings that identify the files of a data set below ``root``: the title of the file layout that was found, and one
    SHA-256 digest for each file or folder of this layout.

    Raises:
        MissingDataError: no layout has all its files and folders.
    """
    layout = dataset.layout(root)
    if layout is None:
        dataset.load(root)  # raises MissingDataError
        raise AssertionError("a data set without a layout was read")
    return [layout.title, *(folder_digest(path) if path.is_dir() else sha256(path) for path in layout.paths(root))]


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of all files below a folder, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{sha256(path)}\n".encode())
    return digest.hexdigest()

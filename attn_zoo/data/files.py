"""Files of data sets: the data folder, reading of files that may be compressed, digests, and replacement of whole files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from attn_zoo.contract import DamagedDataError, DataSet

VARIABLE = "ATTN_ZOO_DATA"
"""Environment variable that names the data folder."""


def data_root(given: str = "") -> Path:
    """Return the data folder. It is ``given`` or, if ``given`` is empty, $ATTN_ZOO_DATA. If this variable is not set, it is
    ``data`` in the current folder."""
    return Path(given or os.environ.get(VARIABLE) or "data").expanduser()


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Return a context in which errors of reading a file are replaced by ``DamagedDataError``. The message names the file and what
    it should contain (``what``). ``FileNotFoundError`` and ``PermissionError`` are not replaced.

    Raises:
        DamagedDataError: decompression, decoding or parsing failed.
    """
    try:
        yield
    except DamagedDataError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        text = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DamagedDataError(f"{path} is not {what}, or is damaged or cut short ({text})") from error


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. The file is decompressed if its name ends in .gz or .xz.

    Raises:
        DamagedDataError: the file cannot be decompressed, or is truncated.
    """
    with reading(path, "a whole file"), _open(path) as file:
        return file.read()


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Return a context with a UTF-8 text file that is open for reading. The file is decompressed if its name ends in .gz or .xz.
    Only the line feed counts as a line break.

    Raises:
        DamagedDataError: the file cannot be decompressed, is truncated, or is not UTF-8.
    """
    with reading(path, "whole UTF-8 text"), _open(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
        yield text


def read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines. Each object must have all ``fields``, and may have more.

    Raises:
        DamagedDataError: a line is not an object, or lacks a field.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DamagedDataError(
                    f"{path}, line {number} must be JSON, but cannot be read ({error.msg}). Fetch the file again, because it is "
                    "damaged"
                ) from error
            lacking = set(fields) - set(row) if isinstance(row, dict) else set(fields)
            if lacking:
                raise DamagedDataError(
                    f"{path}, line {number} must be an object with {', '.join(fields)}; it lacks {', '.join(sorted(lacking))}"
                )
            yield row


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Return a context with a new file that is open for writing. The new file replaces the file at ``path`` if the context ends
    without an error.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file. A compressed file is not decompressed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]  # GzipFile has the methods of IO[bytes]
    return path.open("rb")

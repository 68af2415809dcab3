"""Functions that read files, compressed or not, and functions that replace whole files. Their errors name the file."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from attn_zoo.contract import DamagedDataError


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


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]  # GzipFile has the methods of IO[bytes]
    return path.open("rb")

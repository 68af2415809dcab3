"""Files, packed or not, and errors that name them."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from attn_zoo.contract import DamagedDataError


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever goes wrong inside while a file is read names that file, and what it should have been.

    Raises:
        DamagedDataError: in place of every error of unpacking, decoding or parsing.
    """
    try:
        yield
    except DamagedDataError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DamagedDataError(f"{path} is not {what}, or not all of it ({said})") from error


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, unpacked if its name ends in .gz or .xz.

    Raises:
        DamagedDataError: it cannot be unpacked, or is cut short.
    """
    with reading(path, "a whole file"), _open(path) as file:
        return file.read()


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A file of UTF-8 text to read line by line, unpacked if its name ends in .gz or .xz; only \\n ends a line.

    Raises:
        DamagedDataError: it cannot be unpacked, is cut short, or is not UTF-8.
    """
    with reading(path, "whole UTF-8 text"), _open(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
        yield text


def sha256(path: Path) -> str:
    """Digest of the bytes of a file as it lies there."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]  # GzipFile is what IO[bytes] asks for
    return path.open("rb")

"""Cache of arrays that are computed from data. The key of an entry is a digest of everything that the arrays depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attn_zoo.data.files import replacing

Arrays = dict[str, NDArray[Any]]

VARIABLE = "ATTN_ZOO_CACHE"
"""Environment variable that names the folder of the cache. The value ``off`` turns the cache off."""


def cache_folder() -> Path | None:
    """Return the folder of the cache. It is $ATTN_ZOO_CACHE or, if this variable is not set, ``attn-zoo`` in the user's cache
    folder. Return None if the variable is ``off``."""
    given = os.environ.get(VARIABLE, "")
    if given == "off":
        return None
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "attn-zoo"


def cached(name: str, recipe: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that ``make`` computes. They are read from the cache if it contains them.

    Each file of the cache contains a digest of its content, so that a damaged file is detected and replaced. If the folder cannot
    be written, the arrays are computed each time.

    Args:
        name: prefix of the name of the file in the cache.
        recipe: everything that the arrays depend on, as plain data: version, options, digests of source files.
        make: function that computes the arrays.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    key = hashlib.sha256(json.dumps([name, recipe], sort_keys=True).encode()).hexdigest()
    path = folder / f"{name}-{key[:24]}.safetensors"
    arrays = _read(path)
    if arrays is None:
        arrays = make()
        _write(path, arrays)
    return arrays


def _read(path: Path) -> Arrays | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            stored = (file.metadata() or {}).get("sha256")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, ValueError):
        return None
    return arrays if stored == _digest(arrays) else None


def _write(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata={"sha256": _digest(arrays)})
    with suppress(OSError), replacing(path) as file:
        file.write(data)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()

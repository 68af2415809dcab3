"""Functions, classes and constants that all runs in a process share, and their restoration after a plugin replaced them.

They belong to PyTorch, attn-zoo, NumPy, accelerate, timm and the standard library. A plugin can replace any of them, so the
attributes of all loaded modules and classes of these packages are copied and compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch

_PACKAGES = (
    *(
        f"torch.{name}"
        for name in ("nn", "optim", "autograd", "functional", "random", "linalg", "fft", "special", "amp", "library")
    ),
    *(f"torch.{name}" for name in ("library", "_tensor", "_C", "_VF", "utils.data", "utils.checkpoint", "backends")),
    *("attn_zoo", "accelerate", "timm.layers", "timm.models._", "timm.models.vision_transformer", "numpy"),
    *(
        "builtins",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "datetime",
        "functools",
        "hashlib",
        "io",
        "itertools",
        "json",
    ),
    *("json", "logging", "math", "operator", "os", "pathlib", "posixpath", "random", "re", "shutil", "statistics", "struct"),
    *("subprocess", "sys", "tempfile", "threading", "time", "warnings"),
)
_CONSTANT = (classmethod, staticmethod, property, MemberDescriptorType, GetSetDescriptorType, torch.dtype, float)
"""Types of attributes that are compared, besides everything that can be called."""

_LATE = "torch.distributed"
"""Package whose classes get further methods when parts of PyTorch are imported. These methods are not changes by a plugin."""
_SLOTS = "__slotnames__"
"""Attribute in which ``copy`` caches the slots of a class."""

Members = Mapping[str, Any]
Copies = list[tuple[Any, Members]]
"""Modules and classes, each with a copy of its attributes."""

_places: tuple[int, list[Any]] = (0, [])
_latest: dict[int, Members] = {}


def copies() -> Copies:
    """Return the loaded modules that plugins could change, and their classes, each with a copy of its attributes."""
    found = []
    for place in _all_places():
        copied = _latest.get(id(place))
        if copied is None or not _equal(place, copied):
            copied = _latest[id(place)] = dict(vars(place))
        found.append((place, copied))
    return found


def same_functions(before: Copies, now: Copies) -> bool:
    """Return True if no function, class or constant was replaced or removed between two results of ``copies``, and no class got a
    new method that hides an inherited one."""
    copied = {id(place): latest for place, latest in now}
    changed = [(place, old) for place, old in before if copied.get(id(place)) is not old]  # an equal place keeps its copy
    return not any(_replaced(old, vars(place)) or _hiding(place, old) for place, old in changed)


def put_functions(before: Copies) -> None:
    """Restore the functions, classes and constants that were replaced, removed or hidden since the copy ``before`` was made."""
    for place, old in _differing(before):
        for name, value in _replaced(old, vars(place)).items():
            setattr(place, name, value)
        for name in _hiding(place, old):
            delattr(place, name)


def modules() -> dict[str, ModuleType]:
    """Return, by name, the loaded modules whose attributes ``copies`` copies."""
    return {name: module for name, module in list(sys.modules.items()) if module is not None and _belongs(name)}


def loaded() -> dict[str, ModuleType]:
    """Return, by name, the loaded packages whose functions ``copies`` saves, and the loaded submodules of these packages."""
    roots = {package.partition(".")[0] for package in _PACKAGES}
    return {name: module for name, module in list(sys.modules.items()) if module is not None and name.partition(".")[0] in roots}


@cache
def _belongs(name: str) -> bool:
    return name == "torch" or any(name == package or name.startswith((f"{package}.", f"{package}_")) for package in _PACKAGES)


def _all_places() -> list[Any]:
    global _places
    if _places[0] != len(sys.modules):
        _places = (len(sys.modules), [place for name, module in modules().items() for place in _with_classes(name, module)])
    return _places[1]


def _with_classes(name: str, module: ModuleType) -> Iterator[Any]:
    yield module
    yield from (one for one in list(vars(module).values()) if isinstance(one, type) and getattr(one, "__module__", None) == name)


def _equal(place: Any, copied: Members) -> bool:
    try:
        return bool(vars(place) == copied)
    except Exception:  # values such as arrays compare as they like
        return False


def _differing(before: Copies) -> Copies:
    return [(place, old) for place, old in before if not _equal(place, old)]


def _replaced(before: Members, now: Members) -> dict[str, Any]:
    """Return by name the attributes that were replaced. Those that PyTorch wraps for its compiler or optimisers do not count."""
    compared = {name: old for name, old in before.items() if callable(old) or isinstance(old, _CONSTANT)}
    return {name: old for name, old in compared.items() if (new := now.get(name)) is not old and not _is_of_torch(new)}


def _is_of_torch(function: Any) -> bool:
    file = str(getattr(getattr(function, "__code__", None), "co_filename", ""))
    return file.endswith("torch/_compile.py") or "torch/_dynamo/" in file or getattr(function, "hooked", False) is True


def _hiding(place: Any, before: Members) -> list[str]:
    """Return methods that a class inherited before and now defines itself, such as ``torch.Tensor.softmax``."""
    if not isinstance(place, type) or place.__module__.startswith(_LATE):
        return []
    new = [name for name, value in vars(place).items() if name not in before and name != _SLOTS and not _is_of_torch(value)]
    return [name for name in new if any(name in vars(base) for base in place.__mro__[1:])]

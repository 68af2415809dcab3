"""Environment of a run, as records state it: versions and device. Names of persons and machines are left out."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from attn_zoo import plugin_files

_PACKAGES = ("attn-zoo", "torch", "timm", "accelerate", "numpy")


def describe_environment(device: str) -> dict[str, Any]:
    """Return facts about this machine and process: versions, processor, memory, commit, start time in UTC, and the command.

    If ``device`` is ``cuda``, the GPU is included. Plugins are included with the digests of their files.
    """
    import torch  # here, so that reading records needs no tensor library

    commit, dirty = _commit()
    return {
        **{name.replace("-", "_"): _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None,
        "cuda": torch.version.cuda if device == "cuda" else None,
        "commit": commit,
        "dirty": dirty,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv),
        **({"plugins": loaded} if (loaded := plugin_files.digests()) else {}),
    }


def changed_plugins(then: Mapping[str, Any], files: Collection[Path] | None = None) -> list[str]:
    """Return the names of the plugins whose files have changed since an environment was described.

    Args:
        then: the environment, as ``describe_environment`` returned it.
        files: if given, only plugins that contain one of these files count.
    """
    before, now = then.get("plugins") or {}, plugin_files.digests(files)
    return [name for name in now if name in before and before[name] != now[name]]


def command_line(words: Sequence[str]) -> str:
    """Return a command line as records store it, with file names in place of paths."""
    return " ".join([Path(words[0]).name, *(_without_folders(word) for word in words[1:])])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _commit() -> tuple[str | None, bool | None]:
    """Return the commit of the package when this process first asks, and whether there are uncommitted changes outside of
    ``results``, where records are. Without Git, return None.
    """
    folder = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None
    status = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return git("rev-parse", "HEAD"), None if status is None else bool(status)


def _without_folders(word: str) -> str:
    """Shorten ``key=/some/where/file`` to ``key=.../file``, also in lists. A separator inside of a path does not end it."""
    parts = re.split(r"""([=\[{,'":\s]+)(?=/)""", word)
    return "".join(f".../{Path(part).name}" if Path(part).is_absolute() else part for part in parts)

"""Functions that compute the examples of a task a second time, to check that they are reproducible.

The examples are computed in this process after its caches are cleared, and in a subprocess with a different hash seed, which
changes the order of Python sets. Both ignore cached files, because they contain the examples that were computed first.

One subprocess serves all tasks, and forks once per task. On systems without fork, each task gets a new subprocess.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from attn_zoo.contract import SPLITS, Task
from attn_zoo.data.cache import VARIABLE as CACHE

_PROGRAM = """
import os, pickle, sys
import attn_zoo.registry

while True:
    try:
        folder, path, environment, files, sent, splits = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit()
    if (child := os.fork() if hasattr(os, "fork") else 0) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

for descriptor, file in enumerate(files, start=1):
    os.dup2(os.open(file, os.O_WRONLY), descriptor)
os.chdir(folder)
sys.path[:] = path
for name in os.environ.keys() - environment.keys():
    del os.environ[name]
os.environ.update(environment)
try:
    kind, options = pickle.loads(sent)
except (ImportError, AttributeError) as error:
    sys.exit(f"cannot be imported: {error}")
print("digests", *(kind(options).examples(split).digest() for split in splits))
"""


def digests_elsewhere(sent: bytes) -> tuple[int, list[str], str]:
    """Compute a digest (hash) of each split of a task, in a subprocess with a different hash seed of Python.

    Args:
        sent: pickled pair of the task's class and its options.

    Returns:
        The exit status of the subprocess, the digests (empty if the status is not 0), and the last line of its error output.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"} | {CACHE: "off"}
    with tempfile.TemporaryDirectory() as folder:
        out, errors = files = Path(folder, "out"), Path(folder, "errors")
        for file in files:
            file.touch()
        process = _process(os.getpid())
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((os.getcwd(), sys.path, environment, [str(file) for file in files], sent, SPLITS), process.stdin)
            process.stdin.flush()
            told = process.stdout.readline()
        except BrokenPipeError:
            told = b""
        if not told:
            _process.cache_clear()
        status = int(told) if told else process.wait()
        digests = [] if status else out.read_text(errors="replace").splitlines()[-1].split()[1:]
        return status, digests, (errors.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]


@lru_cache(maxsize=1)
def _process(owner: int) -> subprocess.Popen[bytes]:
    """Start the subprocess of the process ``owner``, or return it if it was started before. The subprocess ends when the owner
    ends."""
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


@contextmanager
def forgotten(task: Task) -> Iterator[None]:
    """Return a context in which the examples of a task are computed again. The caches of all functions in the modules that define
    the task are cleared, and cached files are ignored."""
    for kind in type(task).__mro__:
        for value in vars(importlib.import_module(kind.__module__)).values():
            clear: Any = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()
    given = os.environ.get(CACHE)
    os.environ[CACHE] = "off"
    try:
        yield
    finally:
        del os.environ[CACHE]
        if given is not None:
            os.environ[CACHE] = given

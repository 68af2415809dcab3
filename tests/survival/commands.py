"""The command ``attn-zoo`` in subprocesses that may be killed; a fork server starts them."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forked import CONTEXT, run_command
from patience import HANG

_CAPABILITIES_V3 = 0x20080522
_DAC_OVERRIDE = 1


class Command:
    """Subprocess that runs ``attn-zoo WORDS`` in ``folder``.

    Args:
        obedient: respect file permissions, which root otherwise does not.
        longest_file: maximum size of a file in bytes, beyond which writing fails as on a full disk.
        temporary: folder for temporary files; by default one beside ``folder``.
        environment: environment variables to set.
    """

    def __init__(
        self,
        *words: str,
        folder: Path,
        obedient: bool = False,
        longest_file: int | None = None,
        temporary: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        temporary = temporary or folder.with_name(f"{folder.name}-temporary")
        temporary.mkdir(exist_ok=True)
        self._out, out = CONTEXT.Pipe(duplex=False)
        self._errors, errors = CONTEXT.Pipe(duplex=False)
        limits = (obedient, longest_file, temporary, dict(environment or {}))
        self._process = CONTEXT.Process(target=_work, args=(words, folder, *limits, out, errors))
        self._process.start()
        out.close()
        errors.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_to_hear(self) -> None:
        """Wait until it prints something or ends."""
        assert self._out.poll(HANG), "waited in vain"

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds or the process ends."""
        until = time.monotonic() + HANG
        while not condition() and self.alive:
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.005)

    def kill(self) -> tuple[int, str, str]:
        """Send SIGKILL, unless it has ended, and return what ``end`` returns."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        """Wait for its end, and return exit status, output and errors."""
        self._process.join(HANG)
        assert not self.alive, "it does not end"
        assert self._process.exitcode is not None
        return self._process.exitcode, _drained(self._out), _drained(self._errors)


def _drained(pipe: Connection) -> str:
    parts = []
    while part := os.read(pipe.fileno(), 2**16):
        parts.append(part)
    pipe.close()
    return b"".join(parts).decode()


def _work(
    words: tuple[str, ...],
    folder: Path,
    obedient: bool,
    longest_file: int | None,
    temporary: Path,
    environment: Mapping[str, str],
    out: Connection,
    errors: Connection,
) -> None:
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    if obedient and os.geteuid() == 0:
        _give_up_override()
    if longest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest_file, longest_file))
    tempfile.tempdir = str(temporary)
    run_command(words, folder)


def _give_up_override() -> None:
    """Drop the capability by which root ignores file permissions."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = struct.pack("Ii", _CAPABILITIES_V3, 0), ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    words = list(struct.unpack("6I", held.raw))
    words[0] &= ~(1 << _DAC_OVERRIDE)  # word of the effective capabilities
    if libc.capset(header, struct.pack("6I", *words)) != 0:
        raise OSError(ctypes.get_errno(), "capset")

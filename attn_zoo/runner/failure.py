"""Status and reason of a run that ended in an error."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from attn_zoo.contract import UnsupportedError
from attn_zoo.escapes import error_text
from attn_zoo.records import Status
from attn_zoo.runner.state import DivergedError
from attn_zoo.runner.train import TimedOutError

TORCH = Path(torch.__file__).parent
"""Folder of PyTorch. The reason of a failure names the last line outside it, because the fault may be how PyTorch was called."""


def failure(error: BaseException) -> tuple[Status, str]:
    """Return the status and the reason to record for a run that ended in ``error``. The reason is the message of the error. If
    reading the message raises another error, as the code of a plugin may, the reason is a sentence about this error."""
    try:
        return _told(error)
    except BaseException as second:  # also an interrupt, which the caller passes on
        return "failed", f"it raised an error that cannot be read ({type(second).__name__})"


def _told(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, DivergedError):
        return "diverged", str(error)
    if isinstance(error, TimedOutError):
        return "timed_out", str(error)
    if isinstance(error, UnsupportedError):
        return "refused", str(error)
    text = error_text(error).partition(": ")[2]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return "out_of_memory", text.splitlines()[0] if text else "out of memory"
    frames = traceback.extract_tb(error.__traceback__)
    where = ([frame for frame in frames if not Path(frame.filename).is_relative_to(TORCH)] or frames)[-1]
    return "failed", f"{type(error).__name__}: {text} (in {where.name}, {Path(where.filename).name}:{where.lineno})"

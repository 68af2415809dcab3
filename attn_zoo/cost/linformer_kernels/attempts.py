"""What fails without harm, such as a kernel that does not compile, should not cost the process that it failed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attn_zoo.cost.workers import out_of_memory


def attempt(work: Callable[[], dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """What ``work`` found with ``failure`` None, or ``failure`` alone, in words that begin with ``failed:``.

    Raises:
        Exception: as ``work`` did, where memory ran out or the device does not answer any more.
    """
    try:
        return {**work(), "failure": None}
    except Exception as error:  # kernels and compilers raise anything
        if out_of_memory(error):
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where the device is lost
        lines = str(error).splitlines() or [""]
        return {"failure": f"failed: {type(error).__name__}: {lines[0]}"}

"""What the implementation names mean, what each needs, and which one ``auto`` takes."""

from __future__ import annotations

import importlib.util
import os

import torch

IMPLEMENTATIONS = ("eager", "tiled", "sdpa", "flex", "xformers", "triton")
"""``eager`` is plain, vectorised PyTorch, to be read and trusted; the others must agree with it. ``tiled`` computes in tiles that
fit the caches of a CPU. Beside these, ``definition`` is the naive equation, which no ``auto`` takes."""

_AUTO_ORDERS = {"cpu": ("sdpa", "tiled", "eager"), "cuda": ("triton", "flex", "sdpa", "xformers", "eager")}


def auto_order(device: torch.device) -> tuple[str, ...]:
    """``auto`` is the first of these that the card offers, the options allow and the device can run; never an interpreted one."""
    return _AUTO_ORDERS.get(device.type, ("sdpa", "eager"))


def unavailable(implementation: str, device: torch.device) -> str | None:
    """Why this machine cannot run ``implementation`` on tensors of ``device``, or None if it can.

    Under ``TRITON_INTERPRET=1`` Triton's kernels run on a CPU, slowly and exactly, to be tested.
    """
    if implementation in ("auto", "definition", "eager", "sdpa"):
        return None
    if implementation == "tiled":
        return None if device.type in ("cpu", "meta") else f"tiled runs on CPU tensors only, and these are on {device.type!r}"
    interpreted = implementation == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        return f"{implementation} runs on CUDA tensors only, and these are on {device.type!r}"
    if implementation in ("xformers", "triton") and importlib.util.find_spec(implementation) is None:
        return f"the package {implementation!r} is not installed"
    return None


def auto_may_take(implementation: str, device: torch.device) -> bool:
    """Whether ``auto`` may choose it for tensors of ``device``: it is in its order, and runs there."""
    return implementation in auto_order(device) and unavailable(implementation, device) is None

"""What the implementation names mean, what each needs, and which one ``auto`` takes."""

from __future__ import annotations

import importlib.util

import torch

IMPLEMENTATIONS = ("eager", "sdpa", "flex", "xformers", "triton")
"""``eager`` is the plain PyTorch maths to be read and trusted; the others must agree with it."""

AUTO_ORDER = ("triton", "flex", "sdpa", "xformers", "eager")
"""``auto`` is the first of these that the card offers, the options allow and the device can run."""


def unavailable(implementation: str, device: torch.device) -> str | None:
    """Why this machine cannot run ``implementation`` on tensors of ``device``, or None if it can."""
    if implementation in ("eager", "sdpa"):
        return None
    if device.type != "cuda":
        return f"{implementation} runs on CUDA tensors only, and these are on {device.type!r}"
    if implementation in ("xformers", "triton") and importlib.util.find_spec(implementation) is None:
        return f"the package {implementation!r} is not installed"
    return None

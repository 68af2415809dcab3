"""Names of implementations, what an implementation needs, and the order in which ``auto`` tries them."""

from __future__ import annotations

import importlib.util
import os

import torch

IMPLEMENTATIONS = ("eager", "tiled", "sdpa", "flex", "xformers", "triton", "fla")
"""All names of implementations. ``eager`` is plain, vectorised PyTorch, and the others must agree with it. ``tiled`` computes in
tiles that fit the caches of a CPU. ``fla`` calls the kernels of flash-linear-attention. Beside these, ``definition`` is the
equation in simple code, which ``auto`` never chooses.
"""

FLA_DTYPE = torch.bfloat16
"""Dtype in which ``fla`` multiplies matrices; the sums are float32. Other dtypes are unsuitable: the kernels of ``fla`` round
float32 to tf32 or reject it, and sums over many keys exceed the range of float16.
"""

_AUTO_ORDERS = {"cpu": ("sdpa", "tiled", "eager"), "cuda": ("triton", "fla", "flex", "sdpa", "xformers", "eager")}

_MODULES = {"xformers": ("xformers",), "triton": ("triton",), "fla": ("fla", "triton")}
"""Modules that an implementation imports."""
_PACKAGES = {"fla": "'fla-core' (extra gpu)"}
"""Packages whose name differs from that of their module."""


def auto_order(device: torch.device) -> tuple[str, ...]:
    """Return the implementations that ``auto`` tries on a type of device, in this order. ``auto`` never tries an implementation
    that would need Triton's interpreter.
    """
    return _AUTO_ORDERS.get(device.type, ("sdpa", "eager"))


def unavailable(implementation: str, device: torch.device, dtype: torch.dtype | None = None) -> str | None:
    """Return the reason why this machine cannot run ``implementation`` on tensors of ``device``, or None if it can.

    With ``TRITON_INTERPRET=1`` Triton's kernels run on a CPU, slowly and exactly, for tests.

    Args:
        dtype: dtype of the matrix products, which under autocast may differ from that of the tensors. None checks the device alone.
    """
    if implementation in ("auto", "definition", "eager", "sdpa"):
        return None
    if implementation == "tiled":
        return (
            None
            if device.type in ("cpu", "meta")
            else f"the implementation tiled runs only on a CPU, but the tensors are on {device.type!r}"
        )
    interpreted = implementation == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        return f"the implementation {implementation} runs only on a CUDA GPU, but the tensors are on {device.type!r}"
    for module in _MODULES.get(implementation, ()):
        if importlib.util.find_spec(module) is None:
            return f"the package {_PACKAGES.get(module, repr(module))} is not installed"
    if implementation == "fla" and dtype not in (None, FLA_DTYPE):
        return f"the implementation fla needs tensors of {FLA_DTYPE}, but these are {dtype} (autocast converts them)"
    return None


def auto_may_take(implementation: str, device: torch.device, dtype: torch.dtype | None = None) -> bool:
    """Return True if ``auto`` may choose ``implementation`` for tensors of ``device``: it must be in ``auto_order``, and this
    machine must be able to run it.

    Args:
        dtype: dtype of the matrix products; None is torch's default.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return implementation in auto_order(device) and unavailable(implementation, device, dtype) is None

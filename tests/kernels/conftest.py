"""Kernels run in Triton's interpreter where there is no GPU, and on the GPU where there is one."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads and torch's fight over the same cores

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, which decides then

import interpreter

from kernels.memory import Memory

interpreter.repair()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Everything kernels write starts as NaN and lies between NaN, which must still be there afterwards."""
    from attn_zoo.kernels.linformer import launch  # after TRITON_INTERPRET was set

    guard = Memory()
    monkeypatch.setattr(launch, "_empty", guard.empty)
    yield guard
    guard.check_margins()

"""Fixtures of the kernel tests, which run on a GPU or, without one, in Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads and torch's fight over the same cores

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first import of triton, which reads it then

import interpreter

from kernels.memory import Memory

interpreter.repair()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Fill outputs of kernels, and margins around them, with NaN, and assert after the test that the margins still hold NaN."""
    from attn_zoo.kernels.linformer import launch  # after TRITON_INTERPRET was set

    guard = Memory()
    monkeypatch.setattr(launch, "_empty", guard.empty)
    yield guard
    guard.check_margins()

"""Denormal numbers are flushed to zero while a network is trained, in every thread, and the thread's setting returns."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from run_helpers import Quiet

from attn_zoo.process_state import flushed_denormals, flushes_denormals
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.runner import resolve_spec, run

TINY = 2.0**-140

IN_THREADS = f"""
import torch
from attn_zoo.process_state import flushed_denormals

torch.set_num_threads(2)
with flushed_denormals():
    many = torch.full((1 << 20,), {TINY})  # in parallel from 32,768 elements
    print(int((many * 0.5).count_nonzero()))
"""


@pytest.fixture
def restored():
    before = flushes_denormals()
    yield
    torch.set_flush_denormal(before)


@pytest.mark.parametrize("before", [False, True])
def test_the_setting_before_returns_after_an_error_too(before, restored):
    torch.set_flush_denormal(before)

    @flushed_denormals()
    def fail() -> None:
        assert flushes_denormals() and float(torch.tensor([TINY]) * 0.5) == 0
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert flushes_denormals() is before and float(torch.tensor([TINY]) * 0.5 > 0) == (not before)


def test_threads_that_start_within_flush_as_well():
    done = subprocess.run([sys.executable, "-P", "-c", IN_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


def test_a_run_flushes_and_its_record_tells(monkeypatch):
    seen = []
    monkeypatch.setattr("attn_zoo.runner.execute.train", lambda *given: seen.append(flushes_denormals()))
    budget = Budget(steps=2, batch_size=32, evaluate_every=1, warmup_steps=1)
    wanted = resolve_spec(RunSpec("linear", "digits", model=ModelSpec(dim=16, heads=2), budget=budget))
    record = run(wanted, Quiet())
    assert seen == [True] and record.environment["denormals_flushed"] is True and not flushes_denormals()

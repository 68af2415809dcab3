"""Processes that may run out of memory or time, or die, and are there again at the next request."""

from __future__ import annotations

import importlib
import sys

import pytest

from attn_zoo.bench import session
from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.bench.experiments.models import ModelsExperiment
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.workers import Worker, WorkerError


@pytest.fixture(scope="module")
def python():
    """A process that evaluates Python: what it serves is the module ``builtins``."""
    worker = Worker(importlib.import_module, "builtins")
    yield worker
    worker.stop()


WRONG = [
    ("__import__('os')._exit(3)", "failed", "status 3"),
    ("__import__('torch').empty(2**45)", "OOM", "memory"),
    ("[].pop()", "failed", "IndexError: pop from empty list"),
    ("__import__('os').kill(__import__('os').getpid(), 9)", "OOM", "status -9"),
    ("__import__('time').sleep(600)", "time limit", "0.2 s"),
]
"""Code that goes wrong, with the kind and the message of the error."""


@pytest.mark.parametrize(("code", "kind", "message"), WRONG)
def test_what_goes_wrong_is_named_and_the_next_request_is_served(python, code, kind, message):
    assert python.ask("eval", "6 * 7") == 42
    with pytest.raises(WorkerError, match=message) as caught:
        python.ask("eval", code, limit=0.2 if kind == "time limit" else 600.0)
    assert caught.value.kind == kind


LIBRARIES = "sorted({line for line in open('/proc/self/maps') if 'libtorch_cpu' in line})"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the map of a process is Linux's")
def test_code_lies_alike_in_all_processes():
    """Where it does not, of two that do the same one may be slower for as long as both live."""
    workers = [Worker(importlib.import_module, "builtins") for _ in range(3)]
    try:
        first, *others = [worker.ask("eval", LIBRARIES) for worker in workers]
        assert first
        assert all(other == first for other in others)
    finally:
        for worker in workers:
            worker.stop()


@pytest.mark.parametrize("name", [name for name, kind in EXPERIMENTS.items() if kind.preloaded])
def test_what_an_experiment_preloads_can_be_imported(name):
    for module in EXPERIMENTS[name].preloaded:  # the fork server passes over modules that are not there
        importlib.import_module(module)


def test_a_session_preloads_what_its_experiment_names(monkeypatch):
    preloaded = ["torch"]
    monkeypatch.setattr(session, "PRELOADED", preloaded)
    for _ in range(2):
        session.Session(ModelsExperiment(device="cpu"), Measurement("models", {}, None, {}))
    assert preloaded == ["torch", *ModelsExperiment.preloaded]

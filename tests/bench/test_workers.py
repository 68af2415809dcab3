"""Processes that may run out of memory or time, or die, and are there again at the next request."""

from __future__ import annotations

import importlib
import sys

import pytest

from attn_zoo.bench import session
from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.bench.experiments.models import WholeModels
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.workers import Worker, WorkerError

ENVIRONMENT = {"ATTN_ZOO_TEST": "kept"}


@pytest.fixture(scope="module")
def python(request):
    """A process that evaluates Python: what it serves is the module ``builtins``."""
    worker = Worker(importlib.import_module, "builtins", environment=request.param)
    yield worker
    worker.stop()


WRONG = [
    ("__import__('os')._exit(3)", "failed", "status 3"),
    ("__import__('torch').empty(2**45)", "OOM", "memory"),
    ("[].pop()", "failed", "IndexError: pop from empty list"),
    ("__import__('os').kill(__import__('os').getpid(), 9)", "OOM", "status -9"),
    ("__import__('time').sleep(600)", "time limit", "0.2 s"),
]
"""Code that goes wrong, with the kind and the message of the error. Starting a process from nothing again takes seconds."""


@pytest.mark.parametrize(
    ("python", "code", "kind", "message"),
    [
        pytest.param(environment, *wrong, marks=pytest.mark.exhaustive if environment and at else (), id=f"{start}-{wrong[0]}")
        for start, environment in (("forked", None), ("from nothing", ENVIRONMENT))
        for at, wrong in enumerate(WRONG)
    ],
    indirect=["python"],
    scope="module",
)
def test_what_goes_wrong_is_named_and_the_next_request_is_served(python, code, kind, message):
    assert python.ask("eval", "6 * 7") == 42
    with pytest.raises(WorkerError, match=message) as caught:
        python.ask("eval", code, limit=0.2 if kind == "time limit" else 600.0)
    assert caught.value.kind == kind


def test_environment_is_that_of_the_process_alone():
    worker = Worker(importlib.import_module, "builtins", environment=ENVIRONMENT)
    assert worker.ask("eval", "__import__('os').environ['ATTN_ZOO_TEST']") == "kept"
    assert "ATTN_ZOO_TEST" not in importlib.import_module("os").environ
    worker.stop()


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


@pytest.mark.parametrize("name", [name for name, grid in EXPERIMENTS.items() if grid.preloaded])
def test_what_an_experiment_preloads_can_be_imported(name):
    for module in EXPERIMENTS[name].preloaded:  # the fork server passes over modules that are not there
        importlib.import_module(module)


def test_a_session_preloads_what_its_experiment_names(monkeypatch):
    preloaded = ["torch"]
    monkeypatch.setattr(session, "PRELOADED", preloaded)
    for _ in range(2):
        session.Session(WholeModels(device="cpu"), Measurement("models", {}, None, {}))
    assert preloaded == ["torch", *WholeModels.preloaded]

"""Helpers of tests of runs: progress displays, a clock, a call in a process of its own, a short kit, and a command."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import CONTEXT
from patience import HANG

from attn_zoo.cli import main
from attn_zoo.conformance import ATTENTION_CHECKS


class Quiet:
    """Progress display that shows nothing."""

    def start(self, label: str, steps: int) -> None: ...
    def advance(self, step: int, loss: float, valid: float | None) -> None: ...
    def stop(self) -> None: ...


class CutShort(Quiet):
    """Progress display that ends the run after a step, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        if step == self.after:
            raise KeyboardInterrupt


class StepClock:
    """Substitute for the module ``time`` in the training loop: a step reads the clock before and after and so takes ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._reading = seconds, 0

    def perf_counter(self) -> float:
        self._reading += 1
        return self._seconds * self._reading


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of ``function``, which must be importable from a module, in a process of its own."""
    end, told = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(function, arguments, told))
    process.start()
    told.close()
    assert end.poll(HANG), "the process hangs"
    failed, result = end.recv()
    process.join(60)
    assert not failed, result
    return result


def _work(function: Callable[..., Any], arguments: Sequence[Any], told: Connection) -> None:
    torch.set_num_threads(1)
    try:
        told.send((False, function(*arguments)))
    except BaseException:
        told.send((True, traceback.format_exc()))


def record_watching_pickle(spec: Any, folder: Path, also: str = "") -> tuple[str, list[int], list[str]]:
    """Status and resumed steps of a run that was interrupted, resumed, recorded and read, and all classes unpickled since."""
    from attn_zoo.records import Store
    from attn_zoo.runner import run
    from attn_zoo.runner.checkpoint import Checkpoint

    folder.mkdir(exist_ok=True)
    begun = Checkpoint(folder, "known", every=2, minutes=0)
    with suppress(KeyboardInterrupt):
        run(spec, CutShort(3), None, begun)
    seen: list[str] = []
    sys.addaudithook(lambda event, found: seen.append(str(found)) if event == "pickle.find_class" else None)
    again = Checkpoint(folder, "known")
    again.open()
    Store(folder).add(run(spec, Quiet(), None, again))
    ((record,), _) = Store(folder).load()
    if also:
        torch.load(also, weights_only=False)
    return record.status, [part["step"] for part in record.environment["resumed"]], seen


def leave_few_checks(patch: pytest.MonkeyPatch) -> None:
    """Leave three checks in the kit, for tests of what commands do with its report; the others take seconds."""
    few = {"card_is_complete", "output_is_like_the_queries", "eager_agrees_with_the_definition"}
    for name in ATTENTION_CHECKS.keys() - few:
        patch.delitem(ATTENTION_CHECKS, name)


def zoo(*words: str, folder: Path) -> tuple[int, str, str]:
    """Exit status, output and errors of a command in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr("sys.argv", ["attn-zoo", *words])
        status = main(words)
    return status, out.getvalue(), err.getvalue()

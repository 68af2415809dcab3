"""Callback of a run, such as an experiment tracker: a class in the user's own file, with the methods ``start``, ``advance``,
``stop`` and ``finish`` of ``Watched``. A callback does not change the results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attn_zoo import plugin_files
from attn_zoo.cli import progress
from attn_zoo.cli.progress import Work
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.metrics import written
from attn_zoo.process_state.torch_parts import TORCH_RANDOM
from attn_zoo.records import RunRecord, RunSpec
from attn_zoo.registry import task_card


def load_callback(name: str) -> Callable[[RunSpec, str], Any]:
    """Return the class or function in a user's file that takes the spec and the id of a run, and makes a callback.

    Args:
        name: path of the file and name of the class or function, in the form ``FILE.py:NAME``.

    Raises:
        ValueError: ``name`` has another form, the file cannot be imported, or the file has no such class or function.
        FileNotFoundError: the file does not exist.
    """
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute:
        raise ValueError(f"callback= must be FILE.py:NAME, a file and the name of a class in it; got {name!r}")
    (module,) = plugin_files.load(Path(file))
    made = getattr(module, attribute, None)
    if not callable(made):
        raise ValueError(f"callback= must name a class in {file}, but this file has no class {attribute!r}. Correct the name")
    return made


class Watched:
    """Observer of a run that shows its progress and also calls the user's callback. If the callback raises an error, the error is
    reported once and the callback is not called again.

    Args:
        callback: name of the callback as ``FILE.py:NAME``, or None.
        bar: True to draw a bar on a terminal; False to print lines instead.

    Raises:
        ValueError: the callback cannot be loaded or created.
    """

    def __init__(self, callback: str | None, spec: RunSpec, run_id: str, *, bar: bool = True) -> None:
        self._name, self._by_time, self._bar = callback, bool(spec.budget.seconds), bar
        self._metric, self._valid = task_card(spec.task).metric, ""
        self._work: Work | None = None
        self._random = TORCH_RANDOM.get()  # numbers of its own for the callback, so that those of the run do not change
        self._callback: Any = None
        if callback:
            make = load_callback(callback)
            try:
                self._callback = make(spec, run_id)
            except Exception as error:  # code of the user may raise anything
                raise ValueError(
                    f"the callback {callback} could not be created: {_text(error)}. Mend the class, or leave callback= out"
                ) from error

    def start(self, label: str, steps: int) -> None:
        """Begin to show the progress of the run. If its budget is a time, the number of steps is unknown."""
        self._work = Work(label, None if self._by_time else steps, bar=self._bar, first=2 * progress.FIRST)
        self._work.__enter__()
        self._tell("start", label, steps)

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Show the number of steps done, the training loss and the last validation score. During pretraining, the number is
        negative and counts up to 0."""
        if valid is not None:
            self._valid = f"valid {written(valid, self._metric)}"
        if self._work is not None:
            self._work.update(step, ", ".join(filter(None, [f"loss {loss:.3f}", self._valid])))
        self._tell("advance", step, loss, valid)

    def stop(self) -> None:
        """Show and tell that the run has ended."""
        if self._work is not None:
            self._work.__exit__()
        self._tell("stop")

    def finish(self, record: RunRecord, path: Path) -> None:
        """Pass the record and the path of its file to the callback."""
        self._tell("finish", record, path)

    def _tell(self, method: str, *given: Any) -> None:
        if self._callback is not None:
            of_the_run = TORCH_RANDOM.get()
            TORCH_RANDOM.put(self._random)
            try:
                getattr(self._callback, method)(*given)
            except Exception as error:  # code of the user may raise anything
                self._callback = None
                print(f"attn-zoo: callback {self._name} failed and is not called again ({_text(error)})", file=sys.stderr)
            finally:
                self._random = TORCH_RANDOM.get()
                TORCH_RANDOM.put(of_the_run)


def _text(error: Exception) -> str:
    return terminal(f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": "))

"""A run's course for TensorBoard, MLflow or Weights & Biases, by accelerate's trackers. None of it is part of a result."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, WandBTracker
from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

from attn_zoo.contract import UnknownNameError
from attn_zoo.records import RunRecord, RunSpec
from attn_zoo.runner.train import Progress

_INSTALLED: Mapping[str, Callable[[], bool]] = {
    "tensorboard": is_tensorboard_available,
    "mlflow": is_mlflow_available,
    "wandb": is_wandb_available,
}
TRACKERS = tuple(_INSTALLED)
"""What ``tracking.to`` can name."""


class TrackerError(ValueError):
    """A tracker is not installed or does not start."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot be used here.

    Raises:
        UnknownNameError: there is none of this name.
        TrackerError: its package is not installed.
    """
    for name in names:
        if name not in _INSTALLED:
            raise UnknownNameError("tracker", name, TRACKERS)
        if not _INSTALLED[name]():
            raise TrackerError(f"tracking.to={name} needs a package that is not installed; pip install 'attn-zoo[trackers]'")


class Tracking:
    """One run, told to several trackers: a ``Progress`` that also takes the record. Only the main process has one.

    A tracker that fails on the way is complained of once and told nothing more; the run goes on.

    Args:
        names: of ``TRACKERS``.
        spec, run_id: the run; they name it and are its hyper-parameters.
        project: what its runs stand under, in MLflow an experiment.
        folder: where trackers write files; MLflow's is a database, unless MLFLOW_TRACKING_URI names a place.
        every: steps between two points of the training loss.

    Raises:
        UnknownNameError: there is no tracker of a name.
        TrackerError: one is not installed.
        ValueError: ``every`` is not positive.
    """

    def __init__(
        self, names: Sequence[str], spec: RunSpec, run_id: str, *, project: str, folder: str | Path, every: int = 10
    ) -> None:
        check_trackers(names)
        if every < 1:
            raise ValueError(f"tracking.every counts steps, so it is at least 1; got {every}")
        self._project, self._every = project, every
        self._folder = Path(folder).absolute()
        self._facts = {"run_id": run_id, **_flat(spec.to_dict())}
        stem = f"{spec.attention}-{spec.task}-s{spec.seed}-{run_id}"
        self.name = re.sub(r"[^A-Za-z0-9_.-]", "_", stem)
        self._trackers = {name: self._make(name) for name in dict.fromkeys(names)}

    def __enter__(self) -> Tracking:
        """Start every tracker, and tell it the spec.

        Raises:
            TrackerError: one does not start: no login, say, or no such server.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        begun: dict[str, GeneralTracker] = {}
        for name, tracker in self._trackers.items():
            try:
                if name == "mlflow":
                    _say_where_mlflow_keeps(self._folder)
                tracker.start()
                if name != "wandb":  # which has them from the start: older trackers of accelerate begin a second run with them
                    tracker.store_init_configuration(self._facts)
                begun[name] = tracker
            except Exception as error:  # theirs, and of any kind
                self._trackers = begun
                self.__exit__()
                raise TrackerError(f"tracking.to={name} does not start ({_words(error)}); leave it out, or set it up") from error
        return self

    def __exit__(self, *error: object) -> None:
        self._tell(lambda name, tracker: tracker.finish())

    def start(self, label: str, steps: int) -> None:
        """A run begins."""

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """The training loss, every so many steps and at each look; the validation score at each look. Nothing of pretraining."""
        if step < 1:
            return
        values = {"train_loss": loss} if valid is None else {"train_loss": loss, "valid": valid}
        if valid is not None or step % self._every == 0:
            self._tell(lambda name, tracker: tracker.log(values, step=step))

    def stop(self) -> None:
        """The run is over; its record may come."""

    def finish(self, record: RunRecord, path: Path) -> None:
        """The record: what it scored, how it ended and where it lies."""
        step = int(record.curve[-1]["step"]) if record.curve else record.spec.budget.steps
        scores = {f"best_{name}" if name == "valid" else name.replace(": ", "/"): value for name, value in record.scores.items()}
        words = {"status": record.status, "record": str(path), **({"reason": record.reason} if record.reason else {})}

        def tell(name: str, tracker: GeneralTracker) -> None:
            if scores:
                tracker.log(scores, step=step)
            if name == "tensorboard":
                tracker.log(words, step=step)
            elif name == "mlflow":
                tracker.store_init_configuration(words)  # it logs no words
            else:
                tracker.tracker.summary.update(words)

        self._tell(tell)

    def _make(self, name: str) -> GeneralTracker:
        if name == "tensorboard":
            return TensorBoardTracker(self.name, self._folder / self._project)
        if name == "mlflow":
            return MLflowTracker(self._project, run_name=self.name)
        return WandBTracker(self._project, name=self.name, dir=str(self._folder), config=self._facts)

    def _tell(self, say: Callable[[str, GeneralTracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                say(name, tracker)
            except Exception as error:  # theirs, and of any kind
                del self._trackers[name]
                print(f"attn-zoo: tracker {name} failed and is told no more ({_words(error)})", file=sys.stderr)


class Watchers:
    """Several that watch a run as one."""

    def __init__(self, *watchers: Progress) -> None:
        self._watchers = watchers

    def start(self, label: str, steps: int) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.start(label, steps)

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.advance(step, loss, valid)

    def stop(self) -> None:
        """Tell all."""
        for watcher in self._watchers:
            watcher.stop()


def _say_where_mlflow_keeps(folder: Path) -> None:
    """Where the user has it keep, else a database in the folder: it takes no plain files any more."""
    import mlflow

    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as ``model.dim`` and the like; what is no plain value as text."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

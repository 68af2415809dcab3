"""Logging of a run to TensorBoard, MLflow or Weights & Biases through accelerate's trackers; results do not depend on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, WandBTracker
from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

from attn_zoo.contract import UnknownNameError
from attn_zoo.escapes import terminal
from attn_zoo.records import RunRecord, RunSpec, file_stem
from attn_zoo.runner.train import Progress

_INSTALLED: Mapping[str, Callable[[], bool]] = {
    "tensorboard": is_tensorboard_available,
    "mlflow": is_mlflow_available,
    "wandb": is_wandb_available,
}
TRACKERS = tuple(_INSTALLED)
"""Values of ``tracking.to``."""


class TrackerError(ValueError):
    """Tracker that is not installed or does not start."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot be used here.

    Raises:
        UnknownNameError: no tracker has this name.
        TrackerError: the package of a tracker is not installed.
    """
    for name in names:
        if name not in _INSTALLED:
            raise UnknownNameError("tracker", name, TRACKERS)
        if not _INSTALLED[name]():
            raise TrackerError(f"tracking.to={name} needs a package that is not installed; pip install 'attn-zoo[trackers]'")


class Tracking:
    """``Progress`` observer that logs one run and its record to several trackers, in the main process only.

    A tracker that fails during the run is reported once and not called again; the run continues.

    Args:
        names: names of trackers, from ``TRACKERS``.
        spec, run_id: name and hyperparameters of the run.
        project: project of the run, in MLflow its experiment.
        folder: folder of the trackers' files; MLflow's database is in it, unless MLFLOW_TRACKING_URI is set.
        every: steps between two points of the training loss.

    Raises:
        UnknownNameError: no tracker has this name.
        TrackerError: a tracker is not installed.
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
        self.name = file_stem(spec, run_id)
        self._trackers = {name: self._make(name) for name in dict.fromkeys(names)}

    def __enter__(self) -> Tracking:
        """Start every tracker and log the spec to it.

        Raises:
            TrackerError: a tracker does not start, for lack of a login or a server, for instance.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        begun: dict[str, GeneralTracker] = {}
        for name, tracker in self._trackers.items():
            try:
                if name == "mlflow":
                    _set_mlflow_store(self._folder)
                tracker.start()
                if name != "wandb":  # wandb's constructor got them: older versions of accelerate would start a second run
                    tracker.store_init_configuration(self._facts)
                begun[name] = tracker
            except Exception as error:  # trackers raise errors of any type
                self._trackers = begun
                self.__exit__()
                text = f"tracking.to={name} could not be started ({_error_text(error)}); leave it out, or set it up"
                raise TrackerError(text) from error
        return self

    def __exit__(self, *error: object) -> None:
        self._each(lambda name, tracker: tracker.finish())

    def start(self, label: str, steps: int) -> None:
        """Do nothing at the start of a run."""

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Log the training loss every ``every`` steps, and loss and score at each validation; nothing during pretraining."""
        if step < 1:
            return
        values = {"train_loss": loss} if valid is None else {"train_loss": loss, "valid": valid}
        if valid is not None or step % self._every == 0:
            self._each(lambda name, tracker: tracker.log(values, step=step))

    def stop(self) -> None:
        """Do nothing at the end of a run; ``finish`` may follow."""

    def finish(self, record: RunRecord, path: Path) -> None:
        """Log the scores, status and path of the record."""
        step = int(record.curve[-1]["step"]) if record.curve else record.spec.budget.steps
        scores = {f"best_{name}" if name == "valid" else name.replace(": ", "/"): value for name, value in record.scores.items()}
        words = {"status": record.status, "record": str(path), **({"reason": record.reason} if record.reason else {})}

        def tell(name: str, tracker: GeneralTracker) -> None:
            if scores:
                tracker.log(scores, step=step)
            if name == "tensorboard":
                tracker.log(words, step=step)
            elif name == "mlflow":
                tracker.store_init_configuration(words)  # MLflow's ``log`` takes numbers only
            else:
                tracker.tracker.summary.update(words)

        self._each(tell)

    def _make(self, name: str) -> GeneralTracker:
        if name == "tensorboard":
            return TensorBoardTracker(self.name, self._folder / self._project)
        if name == "mlflow":
            return MLflowTracker(self._project, run_name=self.name)
        return WandBTracker(self._project, name=self.name, dir=str(self._folder), config=self._facts)

    def _each(self, say: Callable[[str, GeneralTracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                say(name, tracker)
            except Exception as error:  # trackers raise errors of any type
                del self._trackers[name]
                said = f"attn-zoo: tracker {name} failed and gets no more values ({_error_text(error)})"
                print(terminal(said), file=sys.stderr)


class Watchers:
    """``Progress`` observer that forwards every call to several others."""

    def __init__(self, *watchers: Progress) -> None:
        self._watchers = watchers

    def start(self, label: str, steps: int) -> None:
        """Start all of them."""
        for watcher in self._watchers:
            watcher.start(label, steps)

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        """Advance all of them."""
        for watcher in self._watchers:
            watcher.advance(step, loss, valid)

    def stop(self) -> None:
        """Stop all of them."""
        for watcher in self._watchers:
            watcher.stop()


def _set_mlflow_store(folder: Path) -> None:
    """Set MLflow's store: MLFLOW_TRACKING_URI, else a database in the folder, because MLflow no longer accepts plain files."""
    import mlflow

    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested settings to keys such as ``model.dim``; values that are not plain become text."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def _error_text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

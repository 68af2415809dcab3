"""Files with a network's weights after chosen steps of its training, for analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from attn_zoo.encoder.weights import SUFFIX, save_weights
from attn_zoo.records import RunSpec, file_stem


class KeptWeights:
    """Writer of the weights of one run to files, one for each chosen step.

    Args:
        folder: folder of the files, which is created if missing.
        after: chosen steps, after which the weights are written; 0 means before training.
        task_version: version of the task; equal versions mean equal inputs.

    Raises:
        ValueError: a step is negative, or larger than the number of steps of the run.
    """

    def __init__(self, folder: str | Path, after: Sequence[int], spec: RunSpec, task_version: str) -> None:
        if beyond := [step for step in after if not 0 <= step <= spec.budget.steps]:
            raise ValueError(
                f"weights.after must list steps from 0 to budget.steps={spec.budget.steps}, because weights are written after "
                f"these steps; got {beyond[0]}"
            )
        self.after = frozenset(after)
        self._folder = Path(folder)
        self._stem = file_stem(spec, spec.run_id(task_version))
        self._facts = {"spec": spec.to_dict(), "task_version": task_version}

    @property
    def missing(self) -> list[int]:
        """Steps after which weights are to be saved, and whose file of weights does not exist yet."""
        return sorted(step for step in self.after if not self.path(step).exists())

    def path(self, step: int) -> Path:
        """Return the path of the file with the weights after ``step``."""
        return self._folder / f"{self._stem}-step{step}{SUFFIX}"

    def save(self, model: nn.Module, step: int) -> None:
        """Write the weights of ``model`` if ``step`` is one of the chosen steps.

        Raises:
            OSError: the file cannot be written.
        """
        if step in self.after:
            save_weights(model, self.path(step), {**self._facts, "step": step})

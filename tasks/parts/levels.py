"""Network sizes, a training budget and a preset that several tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_zoo.contract import Level

SMALL = {"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
"""Network of the preset ``cpu`` of most synthetic tasks."""
ENCODER = {**SMALL, "short_convolution": 4}
"""Network of the ability profile (12 tasks, each testing one ability): ``SMALL`` with a short convolution."""
DECODER = {**ENCODER, "positions": "none"}
"""Network of most causal tasks of the ability profile: ``ENCODER`` without position embeddings."""
LARGE = {"dim": 128, "depth": 4, "heads": 4, "mlp_ratio": 4.0, "dropout": 0.1}
"""Network of the preset ``lra`` of most synthetic tasks. It is similar to the network of Long Range Arena's smaller tasks."""
LARGE_BUDGET = {
    "steps": 10_000,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "warmup_steps": 500,
    "evaluate_every": 500,
}
"""Training budget of the preset ``lra`` of most synthetic tasks."""


def small(options: Mapping[str, Any], steps: int, batch_size: int = 32, learning_rate: float = 3e-3) -> Level:
    """Return the preset ``cpu`` of a synthetic task for which nothing was published: training of a network with the sizes
    ``SMALL``."""
    budget = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "warmup_steps": 50, "evaluate_every": 100}
    return Level(SMALL, budget, options, differs="nothing was published at this size")


def large(options: Mapping[str, Any], differs: str = "nothing was published at this size", **model: Any) -> Level:
    """Return the preset ``lra`` of a synthetic task: training of a network with the sizes ``LARGE``."""
    near = "the model is near that of Long Range Arena's smaller tasks"
    return Level({**LARGE, **model}, LARGE_BUDGET, options, differs=f"{differs}; {near}")


def smoke(options: Mapping[str, Any], learning_rate: float = 3e-3, steps: int = 20, **model: Any) -> Level:
    """Return the preset ``smoke`` of a task: a few training steps of a network with the sizes ``SMALL``, but of width 32.

    Args:
        options: options of the task.
        model: settings of the network, which replace or complete those in ``SMALL``.
    """
    return Level(
        model={**SMALL, "dim": 32, **model},
        budget={"steps": steps, "batch_size": 32, "learning_rate": learning_rate, "evaluate_every": 10},
        options=options,
        differs="shows only that it runs",
    )

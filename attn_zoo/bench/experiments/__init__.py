"""Experiments of ``attn-zoo measure``, each with its keys on the command line, its measurements and a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_zoo.bench.experiment import Experiment
from attn_zoo.bench.experiments.counted import CountedExperiment
from attn_zoo.bench.experiments.crossover import CrossoverExperiment
from attn_zoo.bench.experiments.growth import GrowthExperiment
from attn_zoo.bench.experiments.models import ModelsExperiment
from attn_zoo.bench.measurement import Measurement

EXPERIMENTS: Mapping[str, type[Experiment]] = {
    "growth": GrowthExperiment,
    "counted": CountedExperiment,
    "crossover": CrossoverExperiment,
    "models": ModelsExperiment,
}
"""Experiments by name. The first is the default."""


def report(data: Mapping[str, Any]) -> str:
    """Return a Markdown report of ``data``, the content of a file that ``attn-zoo measure`` wrote."""
    found = Measurement.from_dict(data)
    return EXPERIMENTS[found.experiment].report(found)

"""Experiments of ``attn-zoo measure``, each with its keys on the command line, its measurements and a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_zoo.bench.experiments.counted import CountedCost
from attn_zoo.bench.experiments.crossover import Crossover
from attn_zoo.bench.experiments.growth import Growth
from attn_zoo.bench.experiments.models import WholeModels
from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import Measurement

EXPERIMENTS: Mapping[str, type[Grid]] = {
    "growth": Growth,
    "counted": CountedCost,
    "crossover": Crossover,
    "models": WholeModels,
}
"""Experiments by name. The first is the default."""


def report(data: Mapping[str, Any]) -> str:
    """Return a Markdown report of ``data``, the content of a file that ``attn-zoo measure`` wrote."""
    found = Measurement.from_dict(data)
    return EXPERIMENTS[found.experiment].report(found)

"""Measurement of layers that code has built, by the engine of ``attn-zoo measure``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from attn_zoo.cost.bench import Subject, Tokens
from attn_zoo.cost.levels import Rig
from attn_zoo.cost.measurement import Cell, Measurement
from attn_zoo.cost.probes import SECONDS, Probe
from attn_zoo.cost.session import Session
from attn_zoo.cost.timed import Timed
from attn_zoo.records import describe_environment

Build = Callable[[int], nn.Module]
"""Picklable function from a length to a layer, (batch, length, dim) -> same."""


class _Given(Timed):
    """Grid of the given cells, all in one group."""

    def __init__(self, builds: Mapping[Cell, Build], device: str, dim: int, rounds: int, precision: str) -> None:
        self._builds = builds
        lengths = sorted({cell.length for cell in builds})
        super().__init__(lengths=lengths, dim=dim, heads=1, device=device, precision=precision, rounds=rounds, time_limit=math.inf)

    def _check_subject(self, subject: Subject | None) -> None:
        """Leave what cannot run to its cell."""

    def groups(self) -> list[list[Cell]]:
        return [list(self._builds)]

    def each(self, cell: Cell) -> Sequence[Probe]:
        return (SECONDS,)

    def rig(self, cell: Cell) -> Rig:
        return Rig(self._builds[cell], Tokens(self.dim), False)


def measure_layers(
    builds: Mapping[Cell, Build],
    *,
    device: str,
    dim: int,
    rounds: int,
    precision: str = "fp32",
    tell: Callable[[str], None] = lambda line: None,
) -> Measurement:
    """Measure memory (``peak_bytes``, ``held_bytes``) and, in interleaved rounds, ``seconds`` of a step of each layer.

    Args:
        builds: layers by their cells, which give label, direction, length and batch, and in ``subject`` the SDPA back end.
        device: ``cpu`` or ``cuda``.
        dim: width of the tokens.
        rounds: number of rounds.
        tell: callback with lines of progress.

    Returns:
        Figures by cell, each layer measured in a process of its own; a failure is a figure's reason.

    Raises:
        ValueError: no cell, rounds below 1, or a device or precision that there is not.
    """
    grid = _Given(builds, device, dim, rounds, precision)
    found = Measurement("given", grid.identity(), grid.protocol, describe_environment(grid.device), grid.facts())
    Session(grid, found, tell=tell).run()
    found.complete = True
    return found

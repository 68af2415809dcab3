"""Measurements of layers from all experiments in one format, with interpolation between lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.timing import quartiles

EXPERIMENTS = ("growth", "crossover", "cost")
"""Experiments of ``attn-zoo measure`` that time layers."""

Quartiles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine and precision of a measurement; times are comparable only if both are equal."""

    name: str
    """Name of the GPU, or of the processor with its cores and threads."""
    device: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name}, {self.precision}"


@dataclass(frozen=True, slots=True)
class Figure:
    """Measurement of a layer with its projections at one length, in one direction."""

    attention: str
    options: Mapping[str, Any]
    """Options that the measurement names; others had their defaults."""
    implementation: str
    backend: str | None
    direction: str
    length: int
    batch: int
    width: int
    heads: int
    seconds: Quartiles | None
    """Quartiles of the seconds of a step; None if it could not be timed."""
    bytes: int | None
    """Peak memory of a step, including memory allocated before it if the experiment reports that."""
    failure: str | None
    machine: Machine
    file: str
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Time and memory of one layer at a length and batch size, measured or interpolated."""

    seconds: Quartiles
    bytes: float | None
    basis: str
    """Basis: ``measured``, or the lengths of an interpolation or extrapolation."""
    doubts: tuple[str, ...]
    files: tuple[str, ...]
    causal: bool
    """True for the causal form."""

    @property
    def middle(self) -> float:
        """Median of the seconds."""
        return self.seconds[1]


def machine_of(environment: Mapping[str, Any], precision: str) -> Machine:
    """Machine of an environment as described by ``describe_environment``."""
    together = f", {environment['processes']} processes" if environment.get("processes", 1) > 1 else ""
    if environment.get("gpu"):
        return Machine(f"{environment['gpu']}{together}", "cuda", precision)
    words = f"{environment.get('cpu')}, {environment.get('cores')} cores, {environment.get('threads')} threads"
    return Machine(f"{words}{together}", "cpu", precision)


def read_figures(data: Any, file: str) -> list[Figure]:
    """Figures of a file of ``attn-zoo measure``.

    Args:
        data: content of the file, parsed from JSON.
        file: name of the file.

    Raises:
        ValueError: the content is no measurement of layers, or is incomplete.
    """
    experiment = data.get("experiment") if isinstance(data, dict) else None
    if experiment not in EXPERIMENTS:
        held = f"holds experiment {experiment!r}" if experiment else "is no measurement of attn-zoo"
        *names, last = EXPERIMENTS
        names_in_words = f"{', '.join(names)} or {last}"
        raise ValueError(f"{file} {held}; give what 'attn-zoo measure experiment=NAME output=FILE' wrote, NAME {names_in_words}")
    try:
        found = Measurement.from_dict(data)
        if (level := found.grid.get("level", "layer")) != "layer":
            raise ValueError(f"{file} was measured at level={level}; figures of layers are needed, level=layer")
        machine = machine_of(found.environment, str(found.grid["precision"]))
        sizes = {"width": int(found.grid["dim"]), "heads": int(found.grid["heads"])}
        return [_figure(figures, machine=machine, file=file, **sizes) for figures in found.cells.values()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a whole measurement: {type(error).__name__}: {error}; measure it again") from error


def _figure(figures: Figures, **common: Any) -> Figure:
    cell, seconds, peak = figures.cell, figures.all("seconds"), figures.one("peak_bytes")
    if cell.subject is None:
        raise TypeError(f"{cell.label} is no layer of the zoo")
    return Figure(
        attention=cell.subject.attention,
        options=cell.subject.options,
        implementation=cell.subject.implementation,
        backend=cell.subject.backend,
        direction=cell.kind,
        length=cell.length,
        batch=cell.batch,
        seconds=quartiles(seconds) if seconds else None,
        bytes=None if peak is None else int(peak + (figures.one("held_bytes") or 0)),
        failure=figures.failures.get("seconds"),
        **common,
    )


def read_at(figures: Sequence[Figure], length: int, batch: int) -> Reading | None:
    """Reading of one layer in one direction on one machine; None without enough figures for this length.

    Log seconds are interpolated linearly in log length, and extrapolated from the first or last two lengths. Time is taken as
    proportional to the batch size, from the nearest batch size that was timed.
    """
    timed = [figure for figure in figures if figure.seconds is not None]
    if not timed:
        return None
    nearest = min({figure.batch for figure in timed}, key=lambda b: abs(math.log(b / batch)))
    same_batch = sorted((figure for figure in timed if figure.batch == nearest), key=lambda figure: figure.length)
    by_length = {figure.length: figure for figure in same_batch}  # the later file's figure if a length was measured twice
    pair = _around(sorted(by_length), length)
    if pair is None:
        return None
    low, high = by_length[pair[0]], by_length[pair[1]]
    share = 0.0 if low is high else math.log(length / low.length) / math.log(high.length / low.length)
    assert low.seconds is not None and high.seconds is not None
    ordered = sorted(_between(a, b, share) * batch / nearest for a, b in zip(low.seconds, high.seconds, strict=True))
    doubts = []
    if not 0.0 <= share <= 1.0:
        doubts.append(f"extrapolated in log-log from {low.length:,} and {high.length:,} tokens")
    if nearest != batch:
        doubts.append(f"scaled from a batch of {nearest} to {batch}")
    if low is high:
        basis = "measured"
    else:
        basis = f"{'interpolated' if 0.0 <= share <= 1.0 else 'extrapolated'} from {low.length:,} and {high.length:,}"
    return Reading(
        seconds=(ordered[0], ordered[1], ordered[2]),
        bytes=_bytes(figures, length, batch),
        basis=basis,
        doubts=tuple(doubts),
        files=tuple(dict.fromkeys((low.file, high.file))),
        causal=low.causal and high.causal,
    )


def _bytes(figures: Sequence[Figure], length: int, batch: int) -> float | None:
    """Memory, interpolated like seconds, from batches of one."""
    known = {figure.length: figure.bytes for figure in figures if figure.bytes and figure.batch == 1}
    pair = _around(sorted(known), length)
    if pair is None:
        return None
    low, high = pair
    share = 0.0 if low == high else math.log(length / low) / math.log(high / low)
    return _between(known[low], known[high], share) * batch


def _around(lengths: Sequence[int], length: int) -> tuple[int, int] | None:
    """Two measured lengths for the interpolation or extrapolation; twice ``length`` if it was measured."""
    if length in lengths:
        return length, length
    if len(lengths) < 2:
        return None
    at = min(max(1, sum(known < length for known in lengths)), len(lengths) - 1)
    return lengths[at - 1], lengths[at]


def _between(low: float, high: float, share: float) -> float:
    return math.exp((1 - share) * math.log(low) + share * math.log(high))

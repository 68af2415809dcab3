"""What was measured of layers, whichever experiment wrote it: one shape for all, and a reading at a length between its points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.cost.measurement import Figures
from attn_zoo.cost.old_files import read_measurement
from attn_zoo.cost.timing import quartiles

EXPERIMENTS = ("growth", "crossover", "cost")
"""Experiments of ``attn-zoo measure`` that time layers."""

Quartiles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Machine:
    """What times of different files must share to stand beside each other."""

    name: str
    """GPU, or processor with its cores and threads."""
    device: str
    precision: str

    def __str__(self) -> str:
        return f"{self.name}, {self.precision}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A layer with its projections at one length, in one direction."""

    attention: str
    options: Mapping[str, Any]
    """Those that the measurement names; others had their defaults."""
    implementation: str
    backend: str | None
    direction: str
    length: int
    batch: int
    width: int
    heads: int
    seconds: Quartiles | None
    """Of a step; None where it could not be timed."""
    bytes: int | None
    """Held at most during a step, and where the experiment tells it also before."""
    failure: str | None
    machine: Machine
    file: str
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What the figures of one layer say at a length and batch."""

    seconds: Quartiles
    bytes: float | None
    basis: str
    """``measured``, or between or beyond which lengths it was read."""
    doubts: tuple[str, ...]
    files: tuple[str, ...]
    causal: bool
    """Whether it is of the causal form."""

    @property
    def middle(self) -> float:
        """Median of the seconds."""
        return self.seconds[1]


def machine_of(environment: Mapping[str, Any], precision: str) -> Machine:
    """The machine that ``describe_environment`` describes."""
    together = f", {environment['processes']} processes" if environment.get("processes", 1) > 1 else ""
    if environment.get("gpu"):
        return Machine(f"{environment['gpu']}{together}", "cuda", precision)
    words = f"{environment.get('cpu')}, {environment.get('cores')} cores, {environment.get('threads')} threads"
    return Machine(f"{words}{together}", "cpu", precision)


def read_figures(data: Any, file: str) -> list[Figure]:
    """The figures of what ``attn-zoo measure`` wrote to ``file``.

    Raises:
        ValueError: it is no measurement of layers, or not a whole one.
    """
    experiment = data.get("experiment") if isinstance(data, dict) else None
    if experiment not in EXPERIMENTS:
        held = f"holds experiment {experiment!r}" if experiment else "is no measurement of attn-zoo"
        *names, last = EXPERIMENTS
        names_in_words = f"{', '.join(names)} or {last}"
        raise ValueError(f"{file} {held}; give what 'attn-zoo measure experiment=NAME output=FILE' wrote, NAME {names_in_words}")
    try:
        found = read_measurement(data)
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
    """What figures of one layer in one direction on one machine say; None where they cannot say anything at this length.

    Between two lengths log seconds is taken as linear in log length, beyond the last or first two as going on so. Batches are
    taken as of equal cost each, from the nearest that was timed.
    """
    timed = [figure for figure in figures if figure.seconds is not None]
    if not timed:
        return None
    nearest = min({figure.batch for figure in timed}, key=lambda b: abs(math.log(b / batch)))
    here = sorted((figure for figure in timed if figure.batch == nearest), key=lambda figure: figure.length)
    by_length = {figure.length: figure for figure in here}  # of a length that was measured twice, the later file's
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
    """Memory, read as seconds are, from batches of one."""
    known = {figure.length: figure.bytes for figure in figures if figure.bytes and figure.batch == 1}
    pair = _around(sorted(known), length)
    if pair is None:
        return None
    low, high = pair
    share = 0.0 if low == high else math.log(length / low) / math.log(high / low)
    return _between(known[low], known[high], share) * batch


def _around(lengths: Sequence[int], length: int) -> tuple[int, int] | None:
    """The two measured lengths to read between, or to go on from; the same twice where it was measured itself."""
    if length in lengths:
        return length, length
    if len(lengths) < 2:
        return None
    at = min(max(1, sum(known < length for known in lengths)), len(lengths) - 1)
    return lengths[at - 1], lengths[at]


def _between(low: float, high: float, share: float) -> float:
    return math.exp((1 - share) * math.log(low) + share * math.log(high))

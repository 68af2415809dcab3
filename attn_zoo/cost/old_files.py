"""Files of measurements from before there were rows, read as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attn_zoo.cost.bench import Subject
from attn_zoo.cost.measurement import NO_TIME, Cell, Figures, Measurement
from attn_zoo.cost.protocol import TimingProtocol

Point = Mapping[str, Any]


def read_measurement(data: Any) -> Measurement:
    """The measurement that a file of ``attn-zoo measure`` holds, of whichever version.

    Raises:
        KeyError, TypeError: it holds no whole one.
    """
    if "rows" in data:
        return Measurement.from_dict(data)
    protocol = TimingProtocol.from_dict(data["protocol"]) if "protocol" in data else None
    name = {"honesty": "aa_test"}.get(data["experiment"], data["experiment"])
    found = Measurement(name, _grid(data["setting"]), protocol, data.get("environment", {}), complete=data["complete"])
    energy = data.get("energy", {})
    found.facts = {key: data[key] for key in ("peer", "missing") if key in data}
    found.facts |= {"energy": {"meter": energy.get("meter", energy.get("by")), "reason": energy.get("reason")}}
    for point in data["points"]:
        for figures in _READERS[name](point):
            found.cells[figures.cell] = figures
    return found


def _grid(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting under the keys of today's command line."""
    sizes = {"precision": "fp32"} | dict(setting.get("sizes", {}))
    memory = {"memory_gib": setting["memory_bytes"] / 2**30} if "memory_bytes" in setting else {}
    return {**setting, **sizes, **memory}


def _subject(point: Point) -> Subject:
    return Subject(**point["subject"])


def _growth(point: Point) -> Iterator[Figures]:
    for kind, name in (("forward", "forward"), ("training", "backward")):
        made = Figures(Cell(point["label"], kind, point["length"], subject=_subject(point)))
        if (spread := point[f"{name}_seconds"]) is not None:  # three values that have the quartiles that were kept
            low, middle, high = spread
            made.values["seconds"] = [2 * low - middle, middle, 2 * high - middle]
        if (peak := point[f"{name}_peak_bytes"]) is not None:
            made.values["peak_bytes"] = [peak]
        if whys := [why for why in (point["failure"] or "").split("; ") if why.startswith(f"{name}: ")]:
            made.failures["seconds"] = whys[0].removeprefix(f"{name}: ")
        yield made


def _crossover(point: Point) -> Iterator[Figures]:
    made = Figures(Cell(point["label"], point["kind"], point["length"], role=point["role"], subject=_subject(point)))
    kept = {"seconds": point["seconds"], "joules": point["joules"], "peak_bytes": [point["bytes"]] if point["bytes"] else []}
    made.values = {quantity: values for quantity, values in kept.items() if values}
    if "peak_bytes" in made.values:
        made.values["held_bytes"] = [0]  # they were kept as one
    for what, why in point["failures"].items():
        stopped = why.startswith("time limit: a step takes")
        quantity = {"time": "seconds", "memory": "peak_bytes", "energy": "joules"}[what]
        made.failures[quantity] = f"{NO_TIME}: {why.partition(': ')[2]}" if stopped else why
    yield made


_READERS: dict[str, Callable[[Point], Iterator[Figures]]] = {"growth": _growth, "crossover": _crossover}

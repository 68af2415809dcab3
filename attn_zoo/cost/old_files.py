"""Files of measurements from before there were rows, read as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    sizes = setting["sizes"] if "level" in setting else {}
    layer = {"layer": f"{setting['subject']['attention']} ({setting['subject']['implementation']})"} if "subject" in setting else {}
    memory = {"memory_gib": setting["memory_bytes"] / 2**30} if "memory_bytes" in setting else {}
    return {"precision": "fp32", **setting, **sizes, **memory, **layer}


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


def _cost(point: Point) -> Iterator[Figures]:
    for kind in ("forward", "training"):
        memory, cell = point["memory"].get(kind, {}), Cell(point["label"], kind, point["length"], subject=_subject(point))
        once = {f"{what}_bytes": memory.get(what) for what in ("peak", "held", "resident")}
        once |= {"largest_batch": memory.get("largest_batch"), "best_batch": point["best_batch"].get(kind)}
        seconds, joules = (point[name].get(kind, {}) for name in ("seconds", "joules"))
        for batch in dict.fromkeys(("1", *seconds)):
            made = Figures(replace(cell, batch=int(batch)), _parts(seconds.get(batch, [])))
            if batch in joules:
                made.values["joules"] = joules[batch]
            what = f"{kind} batch {batch}"
            found = {what: "seconds", f"energy {what}": "joules"}
            if batch == "1":
                made.values |= {quantity: [value] for quantity, value in once.items() if value is not None}
                found |= {kind: "seconds", f"memory {kind}": "peak_bytes", f"largest batch {kind}": "largest_batch"}
            made.failures = {found[name]: why for name, why in point["failures"].items() if name in found}
            yield made


def _parts(rounds: Sequence[Sequence[float]]) -> dict[str, list[float | None]]:
    """Seconds of each round by the parts of its step."""
    names = ("backward_seconds", "update_seconds")[: len(rounds[0]) - 1] if rounds else ()
    parts: dict[str, list[float | None]] = {name: [parts[at] for parts in rounds] for at, name in enumerate(names, 1)}
    return parts | {"seconds": [sum(parts) for parts in rounds]} if rounds else {}


def _table3(point: Point) -> Iterator[Figures]:
    subject, k = _subject(point), point["projected_length"]
    label = f"linformer k={k} ({subject.implementation})" if k else f"softmax ({subject.backend or point['role']})"
    for kind in ("forward", "training"):
        cell = Cell(label, kind, point["length"], point["batch"][kind], role=point["role"], subject=subject)
        made, seconds = Figures(cell), {"seconds": point["seconds"][kind]}
        seconds |= {"backward_seconds": point["seconds"]["backward"]} if kind == "training" else {}
        made.values = {quantity: list(values) for quantity, values in seconds.items() if values}
        if kind in point["memory"]:
            made.values["largest_batch"] = [point["memory"][kind]["largest_batch"]]
        names = {kind: "seconds", f"memory {kind}": "largest_batch"}
        made.failures = {names[what]: why for what, why in point["failures"].items() if what in names}
        yield made


def _peers(point: Point) -> Iterator[Figures]:
    length = point["length"]
    yield Figures(Cell("matrix product", "forward", length, role="matrix product"), {"seconds": point["product_seconds"]})
    for name, sides in point["seconds"].items():
        for side, taken in sides.items():
            for kind, seconds in taken.items():
                made = Figures(Cell(f"{name}, {side}", kind, length, point["batch"][name], side, name))
                memory = point["memory"].get(name, {}).get(side, {}).get(kind, {})
                flops = [point["flops"][name][kind]] if side == "ours" else []
                kept = {"resident_bytes": [memory.get("resident")], "peak_bytes": [memory.get("allocated")], "floor_flops": flops}
                made.values = {quantity: values for quantity, values in kept.items() if values and None not in values}
                if seconds:
                    made.values["seconds"] = seconds
                names = {f"{name}, {side}: {kind}": "seconds", f"{name}, {side}: memory, {kind}": "peak_bytes"}
                made.failures = {quantity: point["failures"][what] for what, quantity in names.items() if what in point["failures"]}
                yield made


def _aa_test(point: Point) -> Iterator[Figures]:
    for name, seconds in point["seconds"].items():
        compared = {quantity: [point[name][quantity]] for quantity in ("quotient", "low", "high")} if name in point else {}
        yield Figures(Cell(name, "forward", 0, group=str(point["repeat"])), {"seconds": list(seconds), **compared})


_READERS: dict[str, Callable[[Point], Iterator[Figures]]] = {
    "growth": _growth,
    "crossover": _crossover,
    "cost": _cost,
    "linformer_table3": _table3,
    "peers": _peers,
    "aa_test": _aa_test,
}

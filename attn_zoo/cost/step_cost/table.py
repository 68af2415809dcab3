"""Measured steps as Markdown: a table of time and throughput, one of memory, one of energy where there is a meter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.protocol import TimingProtocol

Point = Mapping[str, Any]

WORDS = {
    "mechanism": "The mechanism alone on random (batch, heads, n, head_dim) tensors; training is forward and backward",
    "layer": "One layer with its projections on random tokens; training is forward and backward",
    "block": "One pre-norm transformer block (layer, MLP, norms) on random tokens; training ends with a step of AdamW",
    "model": "The whole network of a task on random ids, none padded; training has cross-entropy, backward, a step of AdamW",
}

PARTS = ("forward with graph", "backward", "update")


def step_cost_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=cost``, as ``output=`` writes them."""
    points: Sequence[Point] = found["points"]
    protocol = TimingProtocol.from_dict(found["protocol"])
    tables = [_times(points, protocol, found["setting"]["level"]), _memory(points)]
    tables += [_energy(points, protocol)] if found["energy"]["meter"] else []
    failures = [line for point in points for line in _failures(point)]
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    return "\n\n".join([*partial, *tables, *(["\n".join(failures)] if failures else []), _setting_in_words(found)])


def _failures(point: Point) -> list[str]:
    """A line for each reason, with all that it stopped."""
    stopped: dict[str, list[str]] = {}
    for what, why in point["failures"].items():
        stopped.setdefault(why, []).append(what)
    return [f"- {point['label']} at {point['length']}, {', '.join(whats)}: {why}" for why, whats in stopped.items()]


def figure(values: Sequence[float], protocol: TimingProtocol) -> str:
    """Median to three digits or to the unit, ± half the interquartile range to as many decimals; marked where unstable."""
    low, middle, high = spread = protocol.spread(values)
    mark, decimals = "~" if protocol.is_unstable(spread) else "", _decimals(middle)
    return f"{mark}{middle:,.{decimals}f} ± {(high - low) / 2:,.{decimals}f}"


def _decimals(value: float) -> int:
    """So that three digits are seen, or all of a whole number."""
    return max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0


def _times(points: Sequence[Point], protocol: TimingProtocol, level: str) -> str:
    parts = PARTS if level in ("block", "model") else PARTS[:2]
    head = ["attention", "n", "forward (ms)", *(f"{part} (ms)" for part in parts[1:]), "training step (ms)"]
    head += ["forward (tokens/s)", "at batch", "training (tokens/s)", "at batch"]
    rows = []
    for point in points:
        forward, training = (_seconds(point, kind, 1) for kind in ("forward", "training"))
        of_parts = [[taken[at] for taken in training] for at in range(1, len(parts))]
        totals = [[sum(taken) for taken in timings] for timings in (forward, training)]
        cells = [_cell(totals[0], point, "forward", protocol), *(_cell(part, point, "training", protocol) for part in of_parts)]
        cells += [_cell(totals[1], point, "training", protocol)]
        for kind in ("forward", "training"):
            cells += _throughput(point, kind, protocol)
        rows.append([point["label"], str(point["length"]), *cells])
    return "**Time and throughput: times of one sequence, throughput at the best batch**\n\n" + _markdown(head, rows)


def _throughput(point: Point, kind: str, protocol: TimingProtocol) -> list[str]:
    """Tokens a second at the best batch, and that batch."""
    best = point["best_batch"].get(kind)
    taken = [] if best is None else _seconds(point, kind, best)
    if not taken:
        return [_failure(point, kind, f"{kind} batch {best}"), "-"]
    return [figure([best * point["length"] / sum(parts) for parts in taken], protocol), str(best)]


def _memory(points: Sequence[Point]) -> str:
    kinds = ("forward", "training")
    resident = any(memory["resident"] is not None for point in points for memory in point["memory"].values())
    columns = [("peak", "held at once"), *([("resident", "resident")] if resident else [])]
    head = ["attention", "n", *(f"{kind}, {words} (MiB)" for _, words in columns for kind in kinds)]
    head += [f"{kind}, largest batch" for kind in kinds]
    rows = []
    for point in points:
        cells = [_mebibytes(point, kind, what) for what, _ in columns for kind in kinds]
        rows.append([point["label"], str(point["length"]), *cells, *(_largest(point, kind) for kind in kinds)])
    return "**Memory: peaks of a step of one sequence above what was there before it**\n\n" + _markdown(head, rows)


def _energy(points: Sequence[Point], protocol: TimingProtocol) -> str:
    kinds, rows = ("forward", "training"), []
    for point in points:
        cells = []
        for kind in kinds:
            best = point["best_batch"].get(kind)
            one, many = (point["joules"].get(kind, {}).get(str(batch), []) for batch in (1, best))
            per_token = [joules / (best * point["length"]) * 1e6 for joules in many] if best else []
            what = (f"energy {kind} batch 1", f"energy {kind} batch {best}")
            cells += [
                figure(values, protocol) if values else _failure(point, kind, name)
                for values, name in zip((one, per_token), what, strict=True)
            ]
        rows.append([point["label"], str(point["length"]), *cells])
    head = ["attention", "n", *(words for kind in kinds for words in (f"{kind} (J/step)", f"{kind}, best batch (µJ/token)"))]
    return "**Energy: a step of one sequence, and a token at the best batch**\n\n" + _markdown(head, rows)


def _seconds(point: Point, kind: str, batch: int) -> list[list[float]]:
    found: list[list[float]] = point["seconds"].get(kind, {}).get(str(batch), [])
    return found


def _cell(values: Sequence[float], point: Point, kind: str, protocol: TimingProtocol) -> str:
    if not values:
        return _failure(point, kind, f"{kind} batch 1")
    return figure([1e3 * value for value in values], protocol)


def _mebibytes(point: Point, kind: str, what: str) -> str:
    if kind not in point["memory"]:
        return _failure(point, f"memory {kind}")
    found = point["memory"][kind][what]
    return "-" if found is None else f"{found / 2**20:,.{_decimals(found / 2**20)}f}"


def _largest(point: Point, kind: str) -> str:
    found = point["memory"].get(kind, {}).get("largest_batch")
    return f"{found:,}" if found is not None else _failure(point, f"largest batch {kind}", f"memory {kind}")


def _failure(point: Point, *names: str) -> str:
    """``OOM``, ``time limit``, ``failed`` or ``refused``, of the first that is there; ``-`` where it has not been measured yet."""
    reasons = [point["failures"][name] for name in names if name in point["failures"]]
    return str(reasons[0]).partition(":")[0] if reasons else "-"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)


def _setting_in_words(found: Mapping[str, Any]) -> str:
    """What was measured, where and how."""
    setting, machine, protocol = found["setting"], found["environment"], TimingProtocol.from_dict(found["protocol"])
    sizes, cuda = setting["sizes"], protocol.device == "cuda"
    shape = f"width {sizes['dim']}, {sizes['heads']} heads"
    shape += f", MLP ratio {sizes['mlp_ratio']:g}" if setting["level"] in ("block", "model") else ""
    shape += f", {sizes['depth']} blocks, task {setting['task']}" if setting["level"] == "model" else ""
    budget = f"{setting['memory_bytes'] / 2**30:g} GiB"
    largest = (
        f"The largest batch is the most that {budget} of PyTorch's CUDA memory hold, found by doubling and bisection"
        if cuda
        else f"The largest batch is for {budget}, by the line through what PyTorch held at two batches, with weights and inputs"
    )
    meter = found["energy"]["meter"]
    energy = f"of all that ran, and at rest ({meter})" if meter else f"not measured ({found['energy']['reason']})"
    said = [
        f"{WORDS[setting['level']]}. {shape[0].upper()}{shape[1:]}, {setting['precision']}, eager unless said",
        "Each point lives in processes of its own; a failure is a cell with its reason; ~ marks what is unstable",
        "The best batch is that of the highest throughput among powers of two, sought until memory, two doublings without a gain "
        f"or a step of {setting['batch_seconds']:g} s, and timed anew in the rounds",
        "Held at once: by PyTorch's allocations" + ("" if cuda else "; resident: of the whole process, which did nothing before"),
        largest,
        f"Energy: {energy}",
    ]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    return f"{'. '.join(said)}. {protocol.describe()} Measured on {where}, torch {machine['torch']}."

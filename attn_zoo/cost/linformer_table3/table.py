"""The measured Table 3 beside the paper's, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.linformer_table3.paper import MEMORY_SAVED, TIME_SAVED
from attn_zoo.cost.protocol import TimingProtocol, protocol_of
from attn_zoo.cost.timing import quartiles, quotients

Point = Mapping[str, Any]

QUANTITIES: Mapping[str, tuple[str, str, str]] = {
    "forward time": ("time", "forward", "Time saved, forward (inference)"),
    "training time": ("time", "training", "Time saved, forward + backward"),
    "backward time": ("time", "backward", "Time saved, backward alone"),
    "forward memory": ("memory", "forward", "Memory saved, forward (inference): quotient of largest batches"),
    "training memory": ("memory", "training", "Memory saved, forward + backward: quotient of largest batches"),
}


def linformer_table3_table(found: Mapping[str, Any], quantities: Sequence[str] = tuple(QUANTITIES)) -> str:
    """The figures of one ``experiment=linformer_table3``, as ``output=`` writes them.

    Args:
        quantities: keys of ``QUANTITIES``, the tables to print.
    """
    points: Sequence[Point] = found["points"]
    protocol = protocol_of(found) or TimingProtocol()
    tables = [_table(points, found["setting"]["projected_lengths"], protocol, *QUANTITIES[name]) for name in quantities]
    failures = [f"- {_name(p)} at {p['length']}, {what}: {why}" for p in points for what, why in p["failures"].items()]
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    return "\n\n".join([*partial, *tables, *(["\n".join(failures)] if failures else []), _protocol(found)])


def _table(points: Sequence[Point], projected: Sequence[int], protocol: TimingProtocol, what: str, kind: str, title: str) -> str:
    rows = []
    for n in sorted({p["length"] for p in points}):
        here = [p for p in points if p["length"] == n]
        by_k = {p["projected_length"]: p for p in here if p["role"] == "linformer"}
        for role in ("materialised", "sdpa"):
            own = [p for p in here if p["role"] == role]
            base = min(own, key=lambda p: _cost(p, what, kind))
            cell = partial(_time_cell, protocol) if what == "time" else _memory_cell
            cells = [cell(base, by_k[k], kind, n, k) if k in by_k else "-" for k in projected]
            rows.append([str(n), _name(base), _absolute(base, what, kind), *cells])
    unit = "ms a sequence" if what == "time" else "largest batch"
    head = ["n", "against", unit, *(f"k={k}" for k in projected)]
    align = ("right", "left", *["right"] * (1 + len(projected)))
    return f"**{title}**\n\n" + tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)


def _cost(point: Point, what: str, kind: str) -> float:
    """What the better of two baselines has less of; those without a figure come last."""
    if what == "time":
        return quartiles(taken)[1] if (taken := _seconds(point, kind)) else float("inf")
    return -float(point["memory"][kind]["largest_batch"]) if kind in point["memory"] else float("inf")


def _seconds(point: Point, kind: str) -> list[float]:
    """Seconds a sequence, one figure a round."""
    batch = point["batch"]["forward" if kind == "forward" else "training"]
    return [taken / batch for taken in point["seconds"][kind]]


def _absolute(point: Point, what: str, kind: str) -> str:
    if what == "memory":
        memory = point["memory"].get(kind)
        return _failure(point, f"memory {kind}") if memory is None else str(memory["largest_batch"] or "OOM")
    taken = _seconds(point, kind)
    if not taken:
        return _failure(point, "forward" if kind == "forward" else "training")
    milliseconds = 1e3 * quartiles(taken)[1]
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _time_cell(protocol: TimingProtocol, base: Point, ours: Point, kind: str, n: int, k: int) -> str:
    paper = _paper(TIME_SAVED, kind, n, k)
    direction = "forward" if kind == "forward" else "training"
    if not _seconds(ours, kind):
        return _failure(ours, direction) + paper
    if not _seconds(base, kind):
        return f"baseline {_failure(base, direction)}{paper}"
    spread = protocol.spread(quotients(_seconds(base, kind), _seconds(ours, kind)))
    mark = " unstable" if protocol.is_unstable(spread) else ""
    digits = _digits(spread[1])
    return f"{spread[1]:.{digits}f} ± {(spread[2] - spread[0]) / 2:.{digits}f}{mark}{paper}"


def _memory_cell(base: Point, ours: Point, kind: str, n: int, k: int) -> str:
    paper = _paper(MEMORY_SAVED, kind, n, k)
    for point, words in ((ours, ""), (base, "baseline ")):
        if kind not in point["memory"]:
            return f"{words}{_failure(point, f'memory {kind}')}{paper}"
    most, theirs = ours["memory"][kind]["largest_batch"], base["memory"][kind]["largest_batch"]
    if most == 0:
        return f"OOM{paper}"
    if theirs == 0:  # less than one sequence fits, so the quotient exceeds our batch
        return f"> {most}{paper}"
    return f"{most / theirs:.{_digits(most / theirs)}f}{paper}"


def _paper(cells: Mapping[tuple[int, int], str], kind: str, n: int, k: int) -> str:
    return f" (paper {cells[n, k]})" if kind == "forward" and (n, k) in cells else ""


def _failure(point: Point, what: str) -> str:
    """``OOM``, ``time limit`` or ``failed``."""
    return str(point["failures"].get(what, "not measured")).partition(":")[0]


def _digits(value: float) -> int:
    return 2 if value < 1 else 1 if value < 100 else 0


def _name(point: Point) -> str:
    if point["role"] == "linformer":
        return f"linformer k={point['projected_length']} ({point['subject']['implementation']})"
    if point["role"] == "materialised":
        return "materialised"
    backend = point["subject"]["backend"]
    return f"SDPA ({backend})" if backend else "SDPA"


def _protocol(found: Mapping[str, Any]) -> str:
    """What was measured, where and how, in words."""
    setting, machine = found["setting"], found["environment"]
    used = sorted({p["subject"]["implementation"] for p in found["points"] if p["role"] == "linformer"})
    reduced = setting["reduced"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    budget = f"{setting['memory_bytes'] / 2**30:g} GiB"
    found_by = (
        "found by doubling and bisection within that much of PyTorch's CUDA memory"
        if setting["device"] == "cuda"
        else "derived from the line through the allocator's peaks at the timed batch and at twice of it, with parameters and tokens"
    )
    said = [
        f"One attention layer with its projections, width {setting['dim']}, {setting['heads']} heads, {setting['precision']}, "
        f"Linformer with {setting['sharing']} sharing ({', '.join(used)}); the paper's figures are of its whole model, inference, "
        "against materialised softmax on a 16 GB V100 (arXiv:2006.04768, Table 3).",
        f"Reduced against the paper: {'; '.join(reduced)}." if reduced else "",
        f"Time is of a batch of max(1, {setting['tokens']} // n) sequences, halved where it runs out of memory, and compared a "
        f"sequence: median ± half the interquartile range of the quotients of {setting['rounds']} interleaved rounds, each layer "
        "and length in a process of its own; backward starts at the output's gradient; unstable where that range exceeds a fifth "
        "of the median. SDPA is the best of its back ends in each row.",
        f"The largest batch is for a budget of {budget}, {found_by}. Materialised softmax is not tried where its arithmetic "
        "exceeds the memory: 2 (forward) or 3 (with backward) matrices of n × n a head at once; then OOM, and > B says that "
        "Linformer fits B sequences where the baseline fits none.",
        described.describe() if (described := protocol_of(found)) else "",
        f"Measured on {where}, torch {machine['torch']}.",
    ]
    return " ".join(sentence for sentence in said if sentence)

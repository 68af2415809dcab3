"""The comparison with the peer as a Markdown table with its protocol beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.peers.experiment import KINDS, PRODUCT_SIZE, SIDES, floor_flops
from attn_zoo.cost.protocol import TimingProtocol, protocol_of
from attn_zoo.cost.timing import quartiles, quotients

WORDS = {"forward": "forward", "training": "forward + backward"}


def peers_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=peers``, as ``output=`` writes them."""
    points, setting = found["points"], found["setting"]
    protocol = protocol_of(found) or TimingProtocol()
    rows = [_row(point, setting, kind, protocol) for point in points for kind in KINDS]
    head = ["allocator", "n", "batch", "direction", "ours / theirs", "ours (ms)", "theirs (ms)", "ours (µs/token)"]
    head += ["floor (ms)", "ours / floor", "theirs / floor", "ours, theirs RSS (MiB)", "ours, theirs allocated (MiB)"]
    align = ["left", "right", "right", "left", *["right"] * (len(head) - 4)]
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
    failures = [
        f"- n={p['length']}, allocator {p['allocator']}, {what}: {why}" for p in points for what, why in p["failures"].items()
    ]
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    return "\n\n".join([*partial, table, *(["\n".join(failures)] if failures else []), _protocol(found)])


def floor_seconds(point: Mapping[str, Any], setting: Mapping[str, Any], kind: str) -> float | None:
    """Time of the layer's matrix products at the rate measured in the point's rounds."""
    if not point["product_seconds"]:
        return None
    flops = floor_flops(kind, point["batch"], point["length"], setting["dim"], setting["projected_length"])
    return flops / rate(point)


def rate(point: Mapping[str, Any]) -> float:
    """FLOP/s of the matrix product, by its median time."""
    return float(2 * PRODUCT_SIZE**3 / quartiles(point["product_seconds"])[1])


def _row(point: Mapping[str, Any], setting: Mapping[str, Any], kind: str, protocol: TimingProtocol) -> list[str]:
    ours, theirs = (point["seconds"][side][kind] for side in SIDES)
    floor, tokens = floor_seconds(point, setting, kind), point["batch"] * point["length"]
    to_floor = [_spread([t / floor for t in taken], 2, protocol) if floor else "-" for taken in (ours, theirs)]
    return [
        point["allocator"],
        str(point["length"]),
        str(point["batch"]),
        WORDS[kind],
        _spread(quotients(ours, theirs), 2, protocol),
        _spread([1e3 * t for t in ours], 1, protocol),
        _spread([1e3 * t for t in theirs], 1, protocol),
        _spread([1e6 * t / tokens for t in ours], 2, protocol),
        f"{1e3 * floor:.1f}" if floor else "-",
        *to_floor,
        *(", ".join(_mebibytes(point["memory"][side].get(kind), what) for side in SIDES) for what in ("resident", "allocated")),
    ]


def _spread(values: Sequence[float], digits: int, protocol: TimingProtocol) -> str:
    if not values:
        return "failed"
    spread = protocol.spread(values)
    text = f"{spread[1]:.{digits}f} ± {(spread[2] - spread[0]) / 2:.{digits}f}"
    return f"{text} unstable" if protocol.is_unstable(spread) else text


def _mebibytes(memory: Mapping[str, int] | None, what: str) -> str:
    return "failed" if memory is None else f"{memory[what] / 2**20:.0f}"


def _protocol(found: Mapping[str, Any]) -> str:
    """What was measured, where and how, in words."""
    setting, machine = found["setting"], found["environment"]
    rates = [rate(point) / 1e9 for point in found["points"] if point["product_seconds"]]
    between = f"{min(rates):.0f} to {max(rates):.0f}" if rates else "no"
    return (
        f"Whole layers with their projections: ours with implementation={setting['implementation']} (biases on all projections), "
        f"theirs LinformerSelfAttention of linformer {found['peer']} (a bias on the output only); width {setting['dim']}, "
        f"{setting['heads']} heads, k={setting['projected_length']}, fp32, no dropout. Forward is evaluation in inference mode; "
        "forward + backward includes all gradients, the tokens' too. Median ± half the interquartile range of "
        f"{setting['rounds']} rounds, each side in a process of its own, in shuffled order; ours / theirs is of the quotients "
        "within a round; unstable where that range exceeds a fifth of the median. Allocator: default is glibc's, keep raises its "
        "mmap, trim and pad thresholds. The floor is the time of the layer's matrix products, length projected first, at the rate "
        f"of an fp32 product of {PRODUCT_SIZE} × {PRODUCT_SIZE} matrices in the same rounds ({between} GFLOP/s). Memory is above "
        "what was there before the step, in fresh processes: of the process (RSS), and of PyTorch's allocations. "
        + (f"{described.describe()} " if (described := protocol_of(found)) else "")
        + f"Measured on {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}."
    )

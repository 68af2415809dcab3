"""The comparison with the peers as a Markdown table, with what differs, what is missing and the protocol beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.peers.experiment import KINDS, LEAST_ROUNDS, PRODUCT_SIZE, SLOW
from attn_zoo.cost.peers.rivals import OURS, RIVALS, YARDSTICK
from attn_zoo.cost.protocol import TimingProtocol, protocol_of
from attn_zoo.cost.timing import quartiles, quotients

WORDS = {"forward": "forward", "training": "forward + backward"}

HEAD = (
    "mechanism",
    "peer",
    "n",
    "direction",
    "ours / theirs",
    "target",
    "verdict",
    "ours (ms)",
    "theirs (ms)",
    "floor (ms)",
    "ours / floor",
    "theirs / floor",
    "ours / full",
    "ours, theirs RSS (MiB)",
    "ours, theirs allocated (MiB)",
)


def peers_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=peers``, as ``output=`` writes them."""
    protocol = protocol_of(found) or TimingProtocol()
    several = len(found["setting"]["allocators"]) > 1
    rows = [
        [*([point["allocator"]] if several else []), *_row(point, name, peer, kind, protocol)]
        for point in found["points"]
        for name, sides in point["seconds"].items()
        if name != YARDSTICK
        for peer in sides
        if peer != OURS
        for kind in KINDS
    ]
    head = [*(["allocator"] if several else []), *HEAD]
    words = {"allocator", "mechanism", "peer", "direction", "verdict"}
    align = ["left" if name in words else "right" for name in head]
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align if rows else None)
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    notes = [*_failures(found), *_left_out(found), *_differences(found)]
    return "\n\n".join([*partial, table, *(["\n".join(notes)] if notes else []), _protocol(found)])


def floor_seconds(point: Mapping[str, Any], name: str, kind: str) -> float | None:
    """Time of a rival's matrix products at the rate measured in the point's rounds."""
    if not point["product_seconds"]:
        return None
    return float(point["batch"][name] * point["flops"][name][kind] / rate(point))


def rate(point: Mapping[str, Any]) -> float:
    """FLOP/s of the matrix product, by its median time."""
    return float(2 * PRODUCT_SIZE**3 / quartiles(point["product_seconds"])[1])


def verdict(point: Mapping[str, Any], name: str, peer: str, kind: str) -> str:
    """Whether the target is met against the fastest peer; against the others, which one that is."""
    sides = {side: taken[kind] for side, taken in point["seconds"][name].items() if taken[kind]}
    targets = RIVALS[name].targets.get(point["allocator"])
    if targets is None or OURS not in sides or peer not in sides:
        return "-"
    fastest = min((side for side in sides if side != OURS), key=lambda side: quartiles(sides[side])[1])
    if fastest != peer:
        return f"{fastest} is faster"
    ratio, target = quartiles(quotients(sides[OURS], sides[peer]))[1], targets[KINDS.index(kind)]
    return "met" if ratio <= target else f"missed by {100 * (ratio / target - 1):.0f} %"


def _row(point: Mapping[str, Any], name: str, peer: str, kind: str, protocol: TimingProtocol) -> list[str]:
    sides, memory = point["seconds"][name], point["memory"][name]
    ours, theirs, floor = sides[OURS][kind], sides[peer][kind], floor_seconds(point, name, kind)
    targets = RIVALS[name].targets.get(point["allocator"])
    to_floor = [_spread([t / floor for t in taken], 2, protocol) if floor else "-" for taken in (ours, theirs)]
    pairs = (", ".join(_mebibytes(memory[side].get(kind), what) for side in (OURS, peer)) for what in ("resident", "allocated"))
    return [
        name,
        peer,
        str(point["length"]),
        WORDS[kind],
        _spread(quotients(ours, theirs), 2, protocol),
        f"{targets[KINDS.index(kind)]:g}" if targets else "-",
        verdict(point, name, peer, kind),
        _spread([1e3 * t for t in ours], 1, protocol),
        _spread([1e3 * t for t in theirs], 1, protocol),
        f"{1e3 * floor:.1f}" if floor else "-",
        *to_floor,
        _to_full(point, name, kind, protocol),
        *pairs,
    ]


def _to_full(point: Mapping[str, Any], name: str, kind: str, protocol: TimingProtocol) -> str:
    """Our time over that of full attention, by sequence: batches may differ."""
    full = point["seconds"][YARDSTICK]["causal" if RIVALS[name].causal else "full"][kind]
    share = point["batch"][YARDSTICK] / point["batch"][name]
    return _spread([share * q for q in quotients(point["seconds"][name][OURS][kind], full)], 2, protocol)


def _spread(values: Sequence[float], digits: int, protocol: TimingProtocol) -> str:
    if not values:
        return "failed"
    spread = protocol.spread(values)
    text = f"{spread[1]:.{digits}f} ± {(spread[2] - spread[0]) / 2:.{digits}f}"
    return f"{text} unstable" if protocol.is_unstable(spread) else text


def _mebibytes(memory: Mapping[str, int] | None, what: str) -> str:
    return "failed" if memory is None else f"{memory[what] / 2**20:.0f}"


def _failures(found: Mapping[str, Any]) -> list[str]:
    return [
        f"- n={p['length']}, allocator {p['allocator']}, {what}: {why}"
        for p in found["points"]
        for what, why in p["failures"].items()
    ]


def _left_out(found: Mapping[str, Any]) -> list[str]:
    """Peers that are not here, and lengths that are too long."""
    setting = found["setting"]
    long = [
        f"- {name} at n={length} is left out: {RIVALS[name].reason}."
        for name in setting["mechanisms"]
        for length in setting["lengths"]
        if length > (RIVALS[name].longest or length)
    ]
    return [*(f"- Left out: {reason} (extra: peers)." for reason in found["missing"]), *long]


def _differences(found: Mapping[str, Any]) -> list[str]:
    """For each rival what is set, and how its peers differ."""
    setting, lines = found["setting"], []
    for name in setting["mechanisms"]:
        rival = RIVALS[name]
        peers = {side: peer for side, peer in rival.peers.items() if peer.package in found["peer"]}
        size = setting["sizes"].get(name, rival.size)
        options = ", ".join(f"{key}={value}" for key, value in rival.options(size).items())
        own = f"{rival.attention}, " + ", ".join([*([options] if options else []), f"implementation={rival.implementation}"])
        against = "; ".join(
            f"{side} ({peer.what} of {peer.package} {found['peer'][peer.package]}): {peer.differs}" for side, peer in peers.items()
        )
        lines += [f"- {name}: {own}{', causal' if rival.causal else ''}; {against}."] if peers else []
    return lines


def _protocol(found: Mapping[str, Any]) -> str:
    """What was measured, where and how, in words."""
    setting, machine = found["setting"], found["environment"]
    rates = [rate(point) / 1e9 for point in found["points"] if point["product_seconds"]]
    between = f"{min(rates):.0f} to {max(rates):.0f}" if rates else "no"
    return (
        f"Whole layers with their projections, ours with biases on all of them; width {setting['dim']}, {setting['heads']} heads, "
        f"{setting['tokens']} tokens a step or one sequence (entmax: one), fp32, no dropout. Forward is evaluation in inference "
        "mode; forward + backward includes all gradients, the tokens' too. Median ± half the interquartile range of "
        f"{setting['rounds']} rounds ({LEAST_ROUNDS} for steps over {SLOW:g} s), each side in a process of its own; ours / theirs "
        "is of the quotients within a round; unstable where that range exceeds a fifth of the median. Targets are ours over the "
        "fastest peer's. Allocator: default is glibc's, keep raises its mmap, trim and pad thresholds. The floor is the time of "
        f"our layer's matrix products at the rate of an fp32 product of {PRODUCT_SIZE} × {PRODUCT_SIZE} matrices in the same "
        f"rounds ({between} GFLOP/s). Full is softmax with implementation=sdpa in the same rounds, causal where the rival is. "
        "Memory is above what was there before the step, in fresh processes: of the process (RSS), and of PyTorch's allocations. "
        + (f"{described.describe()} " if (described := protocol_of(found)) else "")
        + f"Measured on {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}."
    )

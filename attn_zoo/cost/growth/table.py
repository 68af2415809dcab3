"""The measured growth as a Markdown table with its protocol beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.growth.experiment import fit_exponent
from attn_zoo.cost.protocol import TimingProtocol, protocol_of


def growth_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=growth``, as ``output=`` writes them."""
    points: Sequence[Mapping[str, Any]] = found["points"]
    lengths = sorted({p["length"] for p in points})
    head = ["attention", "direction", *(f"{n} (ms)" for n in lengths), "exponent", f"peak at {lengths[-1]} (MiB)"]
    protocol, rows = protocol_of(found), []
    for label in dict.fromkeys(p["label"] for p in points):
        own = sorted((p for p in points if p["label"] == label), key=lambda p: p["length"])
        directions = (("forward", "forward"), ("backward", "forward + backward"))
        rows += [_row(label, own, kind, words, protocol) for kind, words in directions]
    setting, machine = found["setting"], found["environment"]
    timed = (
        f"Median ± half the interquartile range of {setting['rounds']} interleaved rounds, each subject in a process of its own"
        if protocol is None
        else "Each subject in a process of its own; ~ marks what is unstable"
    )
    failures = "".join(f"\n- {p['label']} at {p['length']}: {p['failure']}" for p in points if p["failure"])
    return (
        tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=("left", "left", *["right"] * (len(head) - 2)))
        + (f"\n{failures}" if failures else "")
        + f"\n\nOne layer with its projections, width {setting['dim']}, {setting['heads']} heads, one sequence, fp32, eager "
        f"unless said. {timed}; exponents by least squares in log-log; memory is the most that PyTorch held at once in a step. "
        + (f"{protocol.describe()} " if protocol else "")
        + f"Measured on {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}."
    )


def _row(label: str, own: Sequence[Mapping[str, Any]], kind: str, words: str, protocol: TimingProtocol | None) -> list[str]:
    cells = [p[f"{kind}_seconds"] for p in own]
    whole = len(own) > 1 and all(cells)
    peak = own[-1][f"{kind}_peak_bytes"]
    return [
        label,
        words,
        *(_failed(p) if c is None else _milliseconds(c, protocol) for p, c in zip(own, cells, strict=True)),
        f"{fit_exponent([p['length'] for p in own], [c[1] for c in cells]):.2f}" if whole else "-",
        "-" if peak is None else f"{peak / 2**20:.0f}",
    ]


def _milliseconds(spread: tuple[float, float, float], protocol: TimingProtocol | None) -> str:
    mark = "~" if protocol is not None and protocol.is_unstable(spread) else ""
    return f"{mark}{1e3 * spread[1]:.1f} ± {500 * (spread[2] - spread[0]):.1f}"


def _failed(point: Mapping[str, Any]) -> str:
    return "OOM" if "OOM: " in (point["failure"] or "") else "failed"

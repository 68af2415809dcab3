"""Counted cost as Markdown: a table for each of the five counts, attentions by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

TITLES = {
    "flops": "FLOPs, forward",
    "backward_flops": "FLOPs, backward",
    "parameters": "Parameters",
    "activation_bytes": "Activations kept for the backward pass",
    "state_bytes": "State, token by token",
}

NOTES = (
    "One sequence, float32, in evaluation, without padding. In brackets: times the figure of eager softmax.",
    "FLOPs are two per multiply-add of the matrix products of what a CPU takes, whatever the implementation. Activations are what "
    "autograd keeps, each storage once, without inputs and parameters; their number is PyTorch's choice. Fused attention is "
    "counted as on a CPU.",
    "Formulas were held against PyTorch's own counters at these sizes: ≠ marks where the two disagree, - what is unknown.",
)


def counted_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=counted``, as ``output=`` writes them."""
    points, setting = found["points"], found["setting"]
    shown = [name for name in TITLES if name != "state_bytes" or setting["causal"]]
    parts = [f"**{TITLES[name]}**\n\n{_table(points, name)}" for name in shown]
    kind = {"mechanism": "Mechanisms alone", "layer": "Layers with their projections"}.get(setting["level"], "Blocks")
    mlp = f", MLP of {setting['mlp_ratio']:g} times the width" if setting["level"] == "block" else ""
    where = f"{kind}: width {setting['dim']}, {setting['heads']} heads{mlp}{', causal' if setting['causal'] else ''}. "
    notes = [where + NOTES[0], *NOTES[1:]]
    notes += [] if setting["level"] == "mechanism" else ["Activations of layers and blocks are PyTorch's count."]
    notes += [] if setting["causal"] else ["No state: nothing is read in an order; see causal=true."]
    parts.append("\n".join(f"- {line}" for line in [*notes, *_remarks(points)]))
    return "\n\n".join(parts)


def _table(points: Sequence[Mapping[str, Any]], name: str) -> str:
    lengths = sorted({p["length"] for p in points})
    cells = {(p["label"], p["length"]): _cell(p, name) for p in points}
    rows = [[label, *(cells[label, length] for length in lengths)] for label in dict.fromkeys(p["label"] for p in points)]
    head = ["attention", *(f"{length:,}" for length in lengths)]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * len(lengths)))


def _cell(point: Mapping[str, Any], name: str) -> str:
    if point["refused"]:
        return "refused"
    if point[name] is None:
        return "-"
    text = binary(point[name]) if name.endswith("bytes") else decimal(point[name])
    times = point["of_softmax"][name]
    quotient = "" if times is None else f" ({times:.2g}×)" if times < 10 else f" ({times:,.0f}×)"
    return text + quotient + (" ≠" if name in point["disagreements"] else "")


def _remarks(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Disagreements, warnings and refusals, each once with the lengths it concerns."""
    lengths: dict[str, list[int]] = {}
    for point in points:
        label = point["label"]
        told = [f"{label} is refused: {point['refused']}"] if point["refused"] else []
        for name, (stated, counted) in point.get("disagreements", {}).items():
            told.append(f"≠ {label}, {TITLES[name]}: the formula says {stated:,}, PyTorch counts {counted:,}")
        for line in [*told, *point.get("warnings", ())]:
            lengths.setdefault(line, []).append(point["length"])
    every = len({point["length"] for point in points})
    where = {line: "every length" if len(at) == every else ", ".join(f"{n:,}" for n in at) for line, at in lengths.items()}
    return [f"{line} (at {at})" for line, at in where.items()]


def decimal(count: int) -> str:
    """Three digits and k, M, G, T or P."""
    return _scaled(count, 1000, ("", " k", " M", " G", " T", " P"))


def binary(count: int) -> str:
    """Three digits and B, KiB, MiB, GiB or TiB."""
    return _scaled(count, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def _scaled(count: int, base: int, units: Sequence[str]) -> str:
    value, at = float(count), 0
    while value >= 999.5 and at < len(units) - 1:
        value, at = value / base, at + 1
    return f"{value:#.3g}".rstrip(".") + units[at] if at else f"{count}{units[0]}"

"""Crossovers as a Markdown table with its protocol beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.compare import METHOD, fewest_rounds
from attn_zoo.cost.crossover.analysis import BASELINES, Point, baseline, crossover, labels, value
from attn_zoo.cost.crossover.setting import KINDS
from attn_zoo.cost.protocol import TimingProtocol

COLUMNS = [(quantity, kind) for quantity in ("time", "memory", "energy") for kind in KINDS]


def crossover_table(found: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=crossover``, as ``output=`` writes them: lengths from which a mechanism costs less."""
    points: Sequence[Point] = found["points"]
    columns = [column for column in COLUMNS if column[0] != "energy" or found["energy"]["measured"]]
    head = ["attention", "costs less than", *(f"{quantity}, {KINDS[kind]}" for quantity, kind in columns)]
    rows = [
        [label, BASELINES[role], *(_cell(points, label, role, kind, quantity) for quantity, kind in columns)]
        for label in labels(points, "mechanism")
        for role in BASELINES
    ]
    align = ("left", "left", *["right"] * len(columns)) if rows else None
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
    partial = [] if found["complete"] else ["**Not complete: the measurement was cut short.**"]
    failures = _failures(points)
    return "\n\n".join([*partial, table, *(["\n".join(failures)] if failures else []), _said(found)])


def _cell(points: Sequence[Point], label: str, role: str, kind: str, quantity: str) -> str:
    found = crossover(points, label, role, kind, quantity)
    return "not measured" if found is None else found.describe()


def _failures(points: Sequence[Point]) -> list[str]:
    """What has no figure and why, a line for each layer and reason; all that there was no time for in one line a layer."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for point in points:
        for what, why in point["failures"].items():
            reason = "no time left" if why.startswith("time limit") else why
            lengths = lines.setdefault((point["label"], reason), {}).setdefault(f"{what}, {KINDS[point['kind']]}", [])
            lengths.append(f"{point['length']:,}")

    def said(kinds: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{what} at {', '.join(lengths)}" for what, lengths in kinds.items())

    return [f"- {label}: {reason} ({said(kinds)})" for (label, reason), kinds in lines.items()]


def _said(found: Mapping[str, Any]) -> str:
    """What was measured, where and how, in words."""
    setting, machine, points = found["setting"], found["environment"], found["points"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    lengths = ", ".join(f"{n:,}" for n in sorted({p["length"] for p in points}))
    rounds = sorted({len(p["seconds"]) for p in points if p["seconds"]})
    taken = " to ".join(str(count) for count in dict.fromkeys((rounds[0], rounds[-1]))) if rounds else "No"
    protocol = TimingProtocol.from_dict(found["protocol"])
    energy = "" if found["energy"]["measured"] else f"Energy: not measured, {found['energy']['reason']}. "
    return (
        "Length from which one layer with its projections costs less than softmax attention, there and at every greater length "
        f"compared; width {setting['dim']}, {setting['heads']} heads, one sequence, {setting['precision']}; lengths {lengths}. In "
        f"brackets a 95 % interval: at each length the {METHOD}, and between lengths by interpolation in log-log, of the median "
        "and of either bound; it does not hold what a process is slower than another by for where it lies in memory. "
        f"{taken} rounds were taken; a length with fewer than {fewest_rounds()} is not compared. Memory is "
        "what is held before a step (parameters, tokens) with the most that PyTorch allocates at once in it, and has no noise. "
        f"Where only one of the two runs out of memory, it has lost. {_backends(points)}{energy}{protocol.describe()} "
        f"Measured on {where}, torch {machine['torch']}."
    )


def _backends(points: Sequence[Point]) -> str:
    """Which back end of SDPA was best where there is more than one."""
    if len(labels(points, "sdpa")) < 2:
        return ""
    said = []
    for kind, words in KINDS.items():
        best = [p for p in baseline(points, "sdpa", kind, "time") if value(p, "time") is not None]
        said.append(f"{words}: " + ", ".join(f"{p['subject']['backend']} at {p['length']:,}" for p in best))
    return f"SDPA is the fastest of its back ends ({'; '.join(said)}). "

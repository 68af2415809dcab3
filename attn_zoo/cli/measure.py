"""``attn-zoo measure``: growth of time and memory with length, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.growth import Subject, fit_exponent, measure_growth
from attn_zoo.records import describe_environment
from attn_zoo.registry import card, make_options
from attn_zoo.runner import plain_options


def measure(parsed: argparse.Namespace) -> int:
    """Measure, print, and write where asked.

    Raises:
        UnknownNameError: no such attention or option.
        ValueError: a length or option is not one.
    """
    lengths = [_count(text, "length") for text in parsed.lengths.split(",")]
    subjects = [_subject(text, parsed.set or []) for text in parsed.attention.split(",")]
    if parsed.heads < 1 or parsed.dim % parsed.heads:
        raise ValueError(f"--dim must be divisible by --heads; got {parsed.dim} and {parsed.heads}")
    environment = describe_environment("cpu")
    points = measure_growth(
        subjects, lengths, dim=parsed.dim, heads=parsed.heads, rounds=parsed.rounds, tell=lambda line: print(line, file=sys.stderr)
    )
    setting = {"dim": parsed.dim, "heads": parsed.heads, "rounds": parsed.rounds, "batch": 1, "precision": "fp32"}
    labels = {at: _label(subject) for at, subject in enumerate(subjects)}
    found = {
        "setting": setting,
        "environment": environment,
        "points": [{"label": labels[subjects.index(p.subject)], **p.to_dict()} for p in points],
    }
    if parsed.output:
        Path(parsed.output).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(growth_table(found))
    return 0


def growth_table(found: Mapping[str, Any]) -> str:
    """The figures of one measurement, as ``--output`` writes them, as a Markdown table with its protocol beneath."""
    points: Sequence[Mapping[str, Any]] = found["points"]
    lengths = sorted({p["length"] for p in points})
    head = ["attention", "direction", *(f"{n} (ms)" for n in lengths), "exponent", f"peak at {lengths[-1]} (MiB)"]
    rows = []
    for label in dict.fromkeys(p["label"] for p in points):
        own = sorted((p for p in points if p["label"] == label), key=lambda p: p["length"])
        rows += [_row(label, own, kind, words) for kind, words in (("forward", "forward"), ("backward", "forward + backward"))]
    setting, machine = found["setting"], found["environment"]
    return (
        tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=("left", "left", *["right"] * (len(head) - 2)))
        + f"\n\nOne layer with its projections, width {setting['dim']}, {setting['heads']} heads, one sequence, fp32, eager "
        f"unless said. Median ± half the interquartile range of {setting['rounds']} interleaved rounds, each subject in a process "
        f"of its own; exponents by least squares in log-log; memory is the most that PyTorch held at once in a step. "
        f"Measured on {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}."
    )


def _row(label: str, own: Sequence[Mapping[str, Any]], kind: str, words: str) -> list[str]:
    cells = [p[f"{kind}_seconds"] for p in own]
    whole = len(own) > 1 and all(cells)
    peak = own[-1][f"{kind}_peak_bytes"]
    return [
        label,
        words,
        *("out of memory" if c is None else f"{1e3 * c[1]:.1f} ± {500 * (c[2] - c[0]):.1f}" for c in cells),
        f"{fit_exponent([p['length'] for p in own], [c[1] for c in cells]):.2f}" if whole else "-",
        "-" if peak is None else f"{peak / 2**20:.0f}",
    ]


def _label(subject: Subject) -> str:
    defaults = plain_options(card(subject.attention).options())
    changed = [f"{key}={value}" for key, value in subject.options.items() if defaults[key] != value]
    kernel = [] if subject.implementation == "eager" else [f"({subject.implementation})"]
    return " ".join([subject.attention, *kernel, *changed])


def _subject(text: str, settings: Sequence[str]) -> Subject:
    """``name`` or ``name:implementation``, with those of the settings ``name.option=value`` that are its own."""
    name, _, implementation = text.partition(":")
    entry = card(name)
    given = {}
    for setting in settings:
        target, _, value = setting.partition("=")
        owner, _, option = target.partition(".")
        if not option or not value:
            raise ValueError(f"--set takes ATTENTION.OPTION=VALUE, got {setting!r}")
        if owner == name:
            given[option] = _value(value)
    options = plain_options(make_options(f"attention {name}", entry.options, given))
    return Subject(name, options, implementation or "eager")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _count(text: str, what: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"a {what} is a whole number of at least 1, got {text!r}")
    return int(text)

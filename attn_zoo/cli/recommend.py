"""``attn-zoo recommend``: which attention to take for a length, a device and what must be held, with evidence and doubt."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_ROUNDS = 5


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.description = (
        "Rank every attention that holds what is needed: accuracy not below softmax first, then by time measured on "
        "this machine. What was not measured is placed by counted FLOPs and says so. Softmax is recommended where it wins."
    )
    parser.add_argument("--length", type=int, required=True, help="tokens")
    parser.add_argument("--width", type=int, default=256, help="of the layer (default: 256)")
    parser.add_argument("--heads", type=int, default=4, help="(default: 4)")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto is cuda where there is one")
    parser.add_argument("--direction", default="forward", choices=("forward", "training"), help="training: forward and backward")
    parser.add_argument("--memory", metavar="SIZE", help="a step may hold, such as 4GiB")
    parser.add_argument("--causal", action="store_true", help="positions see only those before them")
    parser.add_argument("--padding", action="store_true", help="inputs of a batch have different lengths")
    parser.add_argument("--cross", action="store_true", help="keys of other tokens than the queries")
    parser.add_argument(
        "--accept", type=float, default=0.0, metavar="POINTS", help="accuracy that may be lost to softmax (default: 0)"
    )
    row = "choose among these alone: NAME, NAME:IMPLEMENTATION, NAME[OPTION=VALUE,...] (default: every contender, at its defaults)"
    parser.add_argument("--attention", nargs="+", action="extend", default=[], metavar="ROW", help=row)
    parser.add_argument("--task", help="judge accuracy by this task alone (default: that of the nearest length)")
    parser.add_argument("--records", metavar="FOLDER", help="folder of records to judge accuracy by")
    parser.add_argument(
        "--measured",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="JSON of attn-zoo measure: growth, crossover, cost",
    )
    parser.add_argument("--measure", action="store_true", help="also measure the candidates now, few rounds")
    parser.add_argument("--format", default="terminal", choices=("terminal", "json"))
    parser.set_defaults(handler=_recommend)


def memory_bytes(words: str) -> int:
    """``4GiB`` as bytes.

    Raises:
        ValueError: no number of bytes.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", words.strip().lower())
    if not match or match[2] not in _UNITS or not float(match[1]) * _UNITS[match[2]] >= 1:
        raise ValueError(f"--memory takes a size such as 4GiB or 512MiB; got {words!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def _recommend(parsed: argparse.Namespace) -> int:
    from attn_zoo.cost.grid import resolve_device
    from attn_zoo.recommend import Need, recommend
    from attn_zoo.recommend.candidates import refusal, unmeasured_candidates
    from attn_zoo.recommend.evidence import machine_of, read_figures
    from attn_zoo.recommend.measuring import measure_now
    from attn_zoo.recommend.text import as_json, as_text
    from attn_zoo.records import describe_environment
    from attn_zoo.registry import card
    from attn_zoo.rows import rows_of

    need = Need(
        length=parsed.length,
        width=parsed.width,
        heads=parsed.heads,
        device=resolve_device("auto") if parsed.device == "auto" else parsed.device,
        batch=parsed.batch,
        direction=parsed.direction,
        memory=None if parsed.memory is None else memory_bytes(parsed.memory),
        causal=parsed.causal,
        padding=parsed.padding,
        cross=parsed.cross,
        accept=parsed.accept / 100,
    )
    rows = rows_of(parsed.attention) if parsed.attention else []
    if controls := [str(row) for row in rows if card(row.attention).control]:
        raise ValueError(f"controls are never recommended; leave {', '.join(controls)} out of --attention")
    figures = [figure for path in parsed.measured for figure in read_figures(_json(Path(path)), Path(path).name)]
    tables = _tables(parsed.records, parsed.task)
    if parsed.measure:
        resolve_device(need.device)
        layers = [layer for layer in unmeasured_candidates(need, [], rows) if refusal(need, layer) is None]
        figures += measure_now(need, layers, rounds=_ROUNDS, tell=_tell)
    here = machine_of(describe_environment(need.device), "").name
    found = recommend(need, figures, tables, here=here, rows=rows)
    print(as_json(found) if parsed.format == "json" else as_text(found))
    return 0 if found.ranked else 1


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); give what 'attn-zoo measure ... output=FILE' wrote") from error


def _tables(folder: str | None, task: str | None) -> Sequence[Any]:
    """Tables of the records.

    Raises:
        ValueError: no folder for a task, no such folder, nothing in it, or nothing of the task.
    """
    from attn_zoo.leaderboard import tables
    from attn_zoo.records import Store

    if folder is None:
        if task is not None:
            raise ValueError("--task says which records to judge accuracy by; give --records FOLDER as well")
        return []
    if not Path(folder).is_dir():
        raise ValueError(f"there is no folder of records {folder!r}; leave --records out to do without accuracy")
    made = tables(Store(folder).load()[0])
    names = sorted({str(table.task["name"]) for table in made})
    if not made:
        raise ValueError(f"{folder!r} holds no records; leave --records out to do without accuracy")
    if task is not None and task not in names:
        raise ValueError(f"{folder!r} holds no records of task {task!r}, only of {', '.join(names)}")
    return [table for table in made if task in (None, table.task["name"])]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

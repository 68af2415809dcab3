"""``attn-zoo measure``: an experiment on time and memory, as a table and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attn_zoo.cli.preparations_old import PREPARE, Points, tell
from attn_zoo.cost.linformer_kernels.experiment import TimeIsUpError
from attn_zoo.cost.workers import WorkerError


def measure_old(name: str, given: dict[str, Any]) -> int:
    """Measure what ``words`` ask for, print its table, and write its figures where asked.

    Where ``output`` holds a measurement of the same setting that was cut short, it is finished.

    Returns:
        0; 1 when its time was over before the end or a result was wrong; 130 when it was interrupted. What was written until
        then stays.

    Raises:
        UnknownNameError: no such experiment, key, attention or option.
        ValueError: a value is wrong, or what the experiment needs is not here.
    """
    facts, work, table = PREPARE[name](given)
    found: dict[str, Any] = {"experiment": name, "complete": False, **facts, "points": []}
    output = None if given["output"] is None else Path(given["output"])
    done = [] if output is None else _done(output, found)
    if output is not None:
        _check_writable(output)

    def save(points: Points) -> None:
        found["points"] = points
        if output is not None:
            beside = output.with_name(f"{output.name}.part")
            beside.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            beside.replace(output)

    try:
        points = work(save, done)
        found["complete"] = True
        save(points)
    except KeyboardInterrupt:
        kept = f"; what was found is in {output}, and the same command goes on from there" if output and found["points"] else ""
        print(f"attn-zoo: interrupted{kept}", file=sys.stderr)
        return 130
    except TimeIsUpError:
        goes_on = "; the same command goes on from there" if output else ""
        print(f"attn-zoo: the time was over before the end{goes_on}", file=sys.stderr)
    except WorkerError as error:
        print(f"attn-zoo: {error}; there is nothing to compare without it", file=sys.stderr)
    print(table(found))
    return 0 if found["complete"] and not any(map(_bad, found["points"])) else 1


def _bad(point: Mapping[str, Any]) -> bool:
    """Whether a result was held against a reference and is not right, or could not be."""
    return point.get("part") == "check" and point.get("verdict") != "right"


def _done(output: Path, wanted: Mapping[str, Any]) -> Points:
    """Points of a measurement in ``output`` that is not complete and of the same setting, code and kind of machine."""
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(earlier, dict) or earlier.get("complete") is not False or _identity(earlier) != _identity(wanted):
        return []
    tell(f"{output} holds {len(earlier['points'])} points of this measurement; going on from there")
    return list(earlier["points"])


def _identity(found: Mapping[str, Any]) -> str:
    machine = {name: found["environment"].get(name) for name in ("cpu", "cores", "threads", "gpu", "torch", "commit")}
    how = [found.get(name) for name in ("peer", "kernels", "protocol")]
    return json.dumps([found["experiment"], found["setting"], *how, machine], sort_keys=True)


def _check_writable(output: Path) -> None:
    """Find out before the work whether its result can be written."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ValueError(f"output must be a file in a folder that exists; got {str(output)!r}")
    existed = output.exists()
    with output.open("a", encoding="utf-8"):
        pass
    if not existed:
        output.unlink()

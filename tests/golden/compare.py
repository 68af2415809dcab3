"""Compare every figure of every generated table with the golden file: ``python tests/golden/compare.py``.

The golden file holds what the code of commit daa05647 makes of its ``results/``. This program wrote it in an environment in which a
worktree of that commit is installed, with ``tests/golden`` copied into it and ``--write`` as the argument.
"""

from __future__ import annotations

import json
import lzma
import math
import re
import sys
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS)]

from golden.collect import Golden, collect  # noqa: E402  (a program puts its folder on the path first)

GOLDEN = Path(__file__).with_name("tables.json.xz")
GONE: dict[str, str] = {
    "pages / export": "the survey of what can be exported is gone",
    "pages / findings": "advice is one table of use cases",
    "pages / recommend": "advice is one table of use cases",
    **dict.fromkeys(("pages / advice", "pages / place"), "README shows one command of each kind, without its output"),
    "results/quickstart / task=mqar, alpha=0.01, causal=False, data_seed=0, fillers=1, length=32, pairs=4, test=2000, train=20000, "
    "valid=1000, vocabulary=32": "each seed draws its own data, by protocol 3",
}
"""Tables that left with their feature, as ``experiment / table``, and why."""
UNSTEADY = (
    "curves",
    "linformer_figure3",
    "linformer_figure3_start",
    "linformer_limits",
    "linformer_table2_pretrained",
    "linformer_text",
    "profile",
    "profile_bare",
    "profile_left",
    "tasks_cpu",
)
"""Folders with a table whose times are unsteady."""
CHANGED: dict[str, str] = {
    "pages / error* / *": "measured anew: default sizes follow the length since, and mega and routing have a second version",
    "pages / models / *": "measured anew, GPT-2 also beside softmax with cached keys",
    "pages / launches / : gated_linear*": "the code applies SiLU to queries and keys, which launches two kernels more",
    **dict.fromkeys(
        ("pages / launches / : linear, *", "pages / launches / : cosformer, *"), "the state is a copy, which does not keep all sums"
    ),
    **dict.fromkeys(
        ("pages / launches / : entmax*", "pages / launches / : sparse_linformer *"), "scores of NaN do not end in an index error"
    ),
    "pages / launches / : delta_rule*": "gates are one number per head, and the norm of outputs sums squares",
    "pages / launches / : mega*": "version 2 adds the averages to the output",
    "pages / launches / : routing*": "version 2 has keys of its own",
    **dict.fromkeys(("* / rank", "* / ties", "* / unranked"), "a verdict stands in place of ranks and letters"),
    "results/quickstart / *": "runs end when they have learned the task, by protocol 3",
    "pages / quickstart*": "runs end when they have learned the task, by protocol 3",
    "* / average*": "averages are interquartile means",
    "results/* / (table) / reason": "no verdicts, in place of no ranks",
    "results/* / (table) / seeds": "Welch's test needs no common seeds",
    "results/profile / task=flip_flop, *": "mechanisms are compared by the part of the test that depends on distant tokens",
    **dict.fromkeys(
        (
            f"results/profile / task={task}, * / {column}"
            for task in ("needle", "mqar", "state_words")
            for column in ("training_flops_per_example", "training_flops_counted", "equal FLOPs, *", "curve end, flops")
        ),
        "training is counted at the length of training inputs, not of the longest test inputs",
    ),
    "results/* against *": "Welch's test and Holm's correction stand in place of a test of our own, and rows are compared with the "
    "best, softmax and the best control, not each with each",
    "results/* / dominated_by": "a row that is significantly better is the best one or softmax",
    **dict.fromkeys(
        (
            *(f"results/{folder} / * / {column}" for folder in UNSTEADY for column in ("equal time, *", "fronts")),
            *("pages / tasks_cpu / *, costs: *", "pages / tasks_cpu / *, at equal budgets: * / valid at equal time (%)"),
        ),
        "times are not compared if they are unsteady",
    ),
    **dict.fromkeys(
        ("results/* / margin *", "* / over control"), "margins over the best control have Welch's interval, over all seeds of both"
    ),
    **dict.fromkeys(
        (
            f"pages / {page} / Separation: *{column}"
            for page in ("separation", "left")
            for column in ("groups", "separates", "differ")
        ),
        "pairs differ by Welch's test with Holm's correction",
    ),
    **dict.fromkeys(
        ("pages / separation / Separation: text: *", "pages / left / Separation: text: *"),
        "reasons and counts follow from these pairs and margins",
    ),
    **dict.fromkeys(
        ("pages / separation / Separation: * / rows", "pages / separation / Separation: * / seeds"),
        "tasks that were trained until the criterion have the rows and seeds of these runs",
    ),
    "pages / separation / Separation: *, causal / task": "the name of a task has no comma",
    **dict.fromkeys(
        (
            f"pages / {page} / *: text: *"
            for page in (
                *("aa_test", "crossover", "figure3", "growth", "launches", "linformer_table3", "peers", "projections", "spectrum"),
                *("table2*", "transplant"),
            )
        ),
        "two short notes stand below a measured table, and what every such table needs stands once on a page; the evidence of "
        "figure3 is a column",
    ),
    **dict.fromkeys((f"pages / figure3 / : {panel}*" for panel in "acd"), "a claim has a row for each initialisation"),
    "pages / aa_test / : one pass in 10 more / B against A": "it is called 11 passes against 10",
    "pages / published / *: text: *": "settings that differ and sources are tables",
}
"""Cells that changed with the zoo or its statistics, by a pattern of their address (``*`` for any text), and why."""
RENAMED: dict[str, str] = {
    r", (causal|no convolution|rate [\d.]+)(?=$| \(%\)$)": r" (\1)",
    r"^usual start": "default initialisation",
    r", repeated$": " (repeated)",
    r"^ms a sequence$": "ms per sequence",
    r"one pass in 10 more$": "11 passes against 10",
}
"""Words of rows and columns that have other words since, as regular expressions with their replacements."""
SIGNED_ZERO = r"[+-](?=0\.0+(?!\d))"
"""Sign of a number that was rounded to zero. Fewer tables have such signs than the golden file."""
_ROUNDED = 0.11
"""Greatest difference of an end of an interval from the sum of a mean and a half width that are rounded to a decimal each."""
CLOSE = 1e-6
"""Relative difference of figures that count as equal: the golden file has 8 digits, and sums may be taken in another order."""


def read() -> Golden:
    """Return the golden figures."""
    return json.loads(lzma.decompress(GOLDEN.read_bytes()))


def write(found: Golden) -> None:
    """Write the golden file."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def differences(golden: Golden, found: Golden) -> Iterator[str]:
    """Yield a line for every golden cell that is absent or different; cells that the golden file lacks are new, and allowed."""
    for experiment, tables in golden.items():
        for table, rows in tables.items():
            where = f"{experiment} / {table}"
            if where in GONE:
                continue
            there = found.get(experiment, {}).get(table)
            if there is None:
                yield f"{where}: the table is absent"
                continue
            for row, cells in rows.items():
                found_row = _renamed(row, there)
                if found_row not in there:
                    if not _is_changed(f"{where} / {row}"):
                        yield f"{where} / {row}: the row is absent"
                    continue
                for column, value in cells.items():
                    now = there[found_row].get(_renamed(column, there[found_row]))
                    address = f"{where} / {row} / {column}"
                    if not (same(value, now) or is_cut(value, now) or _is_changed(address)):
                        yield f"{address}: {value!r} became {now!r}"


def _renamed(name: str, known: Collection[str]) -> str:
    """Return the name of a row or column in the new tables: the old one if they have it."""
    if name in known:
        return name
    for old, new in RENAMED.items():
        name = re.sub(old, new, name)
    return name


def _is_changed(address: str) -> bool:
    return any(fnmatchcase(address, pattern) for pattern in CHANGED)


def is_cut(one: Any, other: Any) -> bool:
    """Return True if ``mean ± half`` became ``mean (low to high)`` with the same mean and an end moved to a bound of the metric."""
    old = re.fullmatch(r"([+-]?[\d.]+) ± ([\d.]+)", one) if isinstance(one, str) else None
    new = re.fullmatch(r"([+-]?[\d.]+) \(([+-]?[\d.]+) to ([+-]?[\d.]+)\)", other) if isinstance(other, str) else None
    if not old or not new or old[1] != new[1]:
        return False
    mean, half, low, high = (float(text) for text in (*old.groups(), new[2], new[3]))
    ends = {-1: (mean - half, low), 1: (mean + half, high)}
    moved = [side for side, (was, now) in ends.items() if abs(was - now) > _ROUNDED]
    cut = all(abs(ends[side][1]) in (0.0, 100.0) and side * (ends[side][0] - ends[side][1]) > 0 for side in moved)
    return cut and (bool(moved) or high == 100.0 or low == 0.0)


def same(one: Any, other: Any) -> bool:
    """Return True if two values of a cell are equal: numbers up to ``CLOSE``, texts but for the sign of zeros, all else exactly."""
    if isinstance(one, str) and isinstance(other, str):
        return re.sub(SIGNED_ZERO, "", one) == re.sub(SIGNED_ZERO, "", other)
    numbers = [value for value in (one, other) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2:
        return one == other and type(one) is type(other)
    return math.isclose(one, other, rel_tol=CLOSE) or (math.isnan(one) and math.isnan(other))


def main() -> int:
    """Print all differences; return 1 if there are any."""
    if sys.argv[1:] == ["--write"]:
        write(collect())
        return 0
    lines = list(differences(read(), collect()))
    print("\n".join(lines) or "every figure is equal")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())

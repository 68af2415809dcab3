"""The measurement of Linformer's kernels as Markdown: results, times against floors and PyTorch, and the targets last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.linformer_kernels.found import Found, bad
from attn_zoo.cost.linformer_kernels.setting import Cell, projection_rows
from attn_zoo.cost.linformer_kernels.targets import (
    FASTER_THAN_SDPA,
    LESS_MEMORY_THAN_SDPA,
    SAME_AT_ALL_LENGTHS,
    Verdict,
    judge,
    share_target,
)
from attn_zoo.cost.timing import unstable

Row = list[str]


def linformer_kernels_table(written: Mapping[str, Any]) -> str:
    """The figures of one ``experiment=linformer_kernels``, as ``output=`` writes them."""
    found = Found(written)
    verdicts: list[Verdict] = []
    parts = [
        "" if written["complete"] else "**Not complete: the measurement was cut short.**",
        _results(found),
        _kernels(found, "projection", verdicts),
        _kernels(found, "core", verdicts),
        _lengths(found, verdicts),
        _layers(found, verdicts),
        "\n".join(f"- {line}" for line in [*found.failures(), *found.mistakes()]),
        _protocol(found, written["environment"]),
        _targets(verdicts),
    ]
    return "\n\n".join(part for part in parts if part)


def _results(found: Found) -> str:
    rows = []
    for check in sorted(found.checks, key=lambda check: check["key"]):
        case = check["case"]
        shape = " × ".join(str(case[name]) for name in ("batch", "heads", "length", "width") if case[name])
        special = [case["layout"]] if case["layout"] != "heads last" else []
        special += ["padded"] if case["padded"] else []
        special += [f"dropout {case['dropout']:g}"] if case["dropout"] else []
        row = [case["part"], case["precision"], shape, str(case["rows"]), ", ".join(special)]
        if check["failure"]:
            rows.append([*row, "-", "-", "-", check["failure"].partition(":")[0]])
            continue
        worst = max((name for name in check["errors"] if name != "out"), key=lambda name: _excess(check, name))
        errors = [_error(check, "out"), f"{_error(check, worst)} ({worst})"]
        rows.append([*row, *errors, "yes" if check["same"] else "no", check["verdict"]])
    head = ["results", "type", "tokens", "r", "special", "output / bound", "worst gradient / bound", "equal on two runs", "verdict"]
    return _table(head, rows, left=(0, 1, 2, 4, 6, 8)) if rows else ""


def _excess(check: Mapping[str, Any], name: str) -> float:
    error = check["errors"][name]
    return float("inf") if error is None else error / check["bounds"][name]


def _error(check: Mapping[str, Any], name: str) -> str:
    error = check["errors"][name]
    return f"{'NaN' if error is None else f'{error:.1e}'} / {check['bounds'][name]:.1e}"


def _kernels(found: Found, part: str, verdicts: list[Verdict]) -> str:
    """Times of a core or a projection beside its floor and PyTorch's best."""
    s = found.setting
    rows = [
        _kernel_row(found, Cell(part, kind, n, r, precision, "triton"), verdicts)
        for precision in (s.precision, *s.spot_precisions)
        for r in (s.projected_lengths if part == "core" else projection_rows(s, precision))
        for n in (s.lengths if precision == s.precision else (s.spot_length,))
        for kind in ("forward", "backward")
    ]
    against = "best SDPA" if part == "core" else "matmul"
    head = [part, "type", "r", "n", "time (µs)", "loop", "floor", "floor / time", "verdict", "TF/s", "GB/s"]
    return _table([*head, f"{against} (µs)", "ratio"], rows, left=(0, 1, 8, 11))


def _kernel_row(found: Found, cell: Cell, verdicts: list[Verdict]) -> Row:
    floor, seconds = found.floor(cell), found.seconds(cell)
    share = seconds if isinstance(seconds, str) else floor / seconds
    target = share_target(cell.part, cell.kind, cell.rows) if cell.precision == found.setting.precision else None
    word = "wrong" if found.wrong(cell) else "-"
    if target is not None:
        what = f"{cell.part} {cell.kind} r={cell.rows} n={cell.length}"
        verdicts.append(judge(what, share, target, wrong=found.wrong(cell)))
        word = verdicts[-1].word
    flops, moved = found.work(cell)
    other = replace(cell, who="matmul")
    if cell.part == "core":
        other = found.best("core", cell.kind, cell.length, cell.rows, cell.precision)
    return [
        cell.kind,
        cell.precision,
        str(cell.rows),
        str(cell.length),
        _microseconds(found, cell),
        _loop(found, cell),
        f"{1e6 * floor:.1f}",
        _against("-" if isinstance(share, str) else f"{share:.0%}", None if target is None else f"{target:.0%}"),
        f"{word}{_doubt(found, cell)}",
        *("-" if isinstance(seconds, str) else f"{work / seconds:.0f}" for work in (flops / 1e12, moved / 1e9)),
        _named(found, other) if cell.part == "core" else _microseconds(found, other),
        _quotient(found.seconds(other), seconds),
    ]


def _lengths(found: Found, verdicts: list[Verdict]) -> str:
    """The longest sequences against those of 4,096, of equally many tokens."""
    s, rows = found.setting, []
    longest, base = max(s.lengths), 4096
    if longest <= base or base not in s.lengths:
        return ""
    parts = [("core", kind, r) for r in s.projected_lengths for kind in ("forward", "backward")]
    for part, kind, r in [*parts, *(("projection", "forward", r) for r in projection_rows(s, s.precision))]:
        long, short = (Cell(part, kind, n, r, s.precision, "triton") for n in (longest, base))
        value = _ratio(found.seconds(long), found.seconds(short))
        wrong = found.wrong(long) or found.wrong(short)
        verdicts.append(judge(f"{part} {kind} r={r} n={longest} over n={base}", value, SAME_AT_ALL_LENGTHS, most=True, wrong=wrong))
        floors = _ratio(found.floor(long), found.floor(short))
        figures = [value if isinstance(value, str) else f"{value:.2f}", floors if isinstance(floors, str) else f"{floors:.2f}"]
        rows.append([part, kind, str(r), *figures, f"{SAME_AT_ALL_LENGTHS}", verdicts[-1].word])
    return _table([f"n={longest} over n={base}", "kind", "r", "time", "floor", "at most", "verdict"], rows, left=(0, 1, 6))


def _layers(found: Found, verdicts: list[Verdict]) -> str:
    rows = [
        _layer_row(found, kind, n, k, verdicts)
        for kind in ("forward", "training")
        for k in found.setting.projected_lengths
        for n in found.setting.lengths
    ]
    head = ["layer", "k", "n", "time (µs)", "loop", "floor / time", "best SDPA (µs)", "ratio", "verdict", "ratio in loop"]
    return _table([*head, "ours by SDPA (µs)", "peak (MiB)", "SDPA's", "ratio", "verdict"], rows, left=(0, 6, 8, 14))


def _layer_row(found: Found, kind: str, n: int, k: int, verdicts: list[Verdict]) -> Row:
    precision = found.setting.precision
    ours, pytorchs = (Cell("layer", kind, n, k, precision, who) for who in ("triton", "sdpa"))
    best, lean = found.best("layer", kind, n, 0, precision), found.leanest(kind, n, precision)
    wrong, seconds = found.wrong(ours), found.seconds(ours)
    faster = _ratio(found.seconds(best), seconds)
    target = FASTER_THAN_SDPA.get(n) if found.standard and kind == "forward" and k == 128 else None
    word = "wrong" if wrong else "-"
    if target is not None:
        verdicts.append(judge(f"layer {kind} k={k} n={n} over SDPA", faster, target, wrong=wrong))
        word = verdicts[-1].word
    loops = [found.other(cell, "loop_seconds") for cell in (best, ours)]
    return [
        kind,
        str(k),
        str(n),
        _microseconds(found, ours),
        _loop(found, ours),
        "-" if isinstance(seconds, str) else f"{found.floor(ours) / seconds:.0%}",
        _named(found, best),
        _against("-" if isinstance(faster, str) else f"{faster:.2f}", None if target is None else f"{target:g}"),
        f"{word}{_doubt(found, ours)}",
        f"{loops[0] / loops[1]:.2f}" if loops[0] and loops[1] else "-",
        _microseconds(found, pytorchs),
        *_memory_cells(found, ours, lean, verdicts),
    ]


def _memory_cells(found: Found, ours: Cell, theirs: Cell, verdicts: list[Verdict]) -> Row:
    peaks = [found.other(cell, "peak_bytes") for cell in (ours, theirs)]
    less = peaks[1] / peaks[0] if peaks[0] and peaks[1] else "not measured"
    least, word = None, "-"
    if found.standard and ours.kind == "training" and ours.rows == 256 and ours.length >= 8192:
        least = LESS_MEMORY_THAN_SDPA
        what = f"layer {ours.kind} k={ours.rows} n={ours.length} memory"
        verdicts.append(judge(what, less, least, wrong=found.wrong(ours)))
        word = verdicts[-1].word
    ratio = _against("-" if isinstance(less, str) else f"{less:.2f}", None if least is None else f"{least:g}")
    return [*("-" if peak is None else f"{peak / 2**20:.0f}" for peak in peaks), ratio, word]


def _targets(verdicts: Sequence[Verdict]) -> str:
    """The sum of all verdicts, and which are not what they should be."""
    reached = sum(verdict.word == "reached" for verdict in verdicts)
    said = f"**Targets: {reached} of {len(verdicts)} reached.**"
    for word in dict.fromkeys(verdict.word for verdict in verdicts):
        if word != "reached":
            said += f"\n- {word}: {'; '.join(verdict.what for verdict in verdicts if verdict.word == word)}"
    return said if verdicts else ""


def _microseconds(found: Found, cell: Cell) -> str:
    spread = found.spread(cell)
    if isinstance(spread, str):
        return spread
    low, middle, high = (1e6 * seconds for seconds in spread)
    digits = 1 if middle < 1000 else 0
    return f"{middle:.{digits}f} ± {(high - low) / 2:.{digits}f}{' unstable' if unstable(spread) else ''}"


def _against(figure: str, target: str | None) -> str:
    return figure if target is None else f"{figure} (≥ {target})"


def _named(found: Found, cell: Cell) -> str:
    """A time with who took it."""
    return _microseconds(found, cell) + (f" ({cell.who})" if isinstance(found.seconds(cell), float) else "")


def _loop(found: Found, cell: Cell) -> str:
    seconds = found.other(cell, "loop_seconds")
    return "-" if seconds is None else f"{1e6 * seconds:.0f}"


def _doubt(found: Found, cell: Cell) -> str:
    return ", unchecked" if isinstance(found.seconds(cell), float) and found.unchecked(cell) else ""


def _ratio(above: float | str, below: float | str) -> float | str:
    for value in (below, above):
        if isinstance(value, str):
            return value
    assert isinstance(above, float) and isinstance(below, float)
    return above / below


def _quotient(above: float | str, below: float | str) -> str:
    value = _ratio(above, below)
    return "-" if isinstance(value, str) else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Row], left: Sequence[int]) -> str:
    align = ["left" if at in left else "right" for at in range(len(head))]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)


def _protocol(found: Found, machine: Mapping[str, Any]) -> str:
    """What was measured, where and how, in words."""
    s = found.setting
    wrong = sum(bad(check) for check in found.checks)
    said = [
        f"Results: {len(found.checks)} cases, {wrong} wrong. Errors are norms of the difference from float64 over norms of the "
        "reference, on memory that held NaN before, twice; a bound in 16 bits is at most twice the error of PyTorch's own kernels."
    ]
    if s.device == "interpreter":
        return f"{said[0]} In Triton's interpreter on a CPU, without times, and without bf16, which it cannot compute in."
    said += [
        f"Times: width {s.dim}, {s.heads} heads, {s.tokens} tokens in all, sharing={s.sharing}; median ± half the interquartile "
        f"range of {s.rounds} rounds, events around each step on a cold cache with its kernels in the queue; unstable where that "
        "range exceeds a fifth of the median; in a loop, launching counts. Backward is alone, training is forward and backward.",
        *(_ceiling_words(point) for point in found.ceiling_points),
        f"Measured on {machine['gpu']}, {machine['cpu']}, torch {machine['torch']}, CUDA {machine['cuda']}.",
    ]
    return " ".join(said)


def _ceiling_words(point: Mapping[str, Any]) -> str:
    if point["failure"]:
        return f"Ceilings of call {point['call']} failed ({point['failure']}), so floors are those stated for an H200."
    asked = ", ".join(f"{name} {value}" for name, value in point["smi"].items())
    return (
        f"Ceilings of call {point['call']}: copy {point['bytes'] / 1e12:.2f} TB/s, bf16 product {point['half_flops'] / 1e12:.0f} "
        f"TFLOP/s, tf32 {point['tf32_flops'] / 1e12:.0f}, exponentials {point['exponentials'] / 1e12:.2f} T/s (by formula"
        f"{'' if point['clock_measured'] else ', clock stated'}); Triton {point['triton']}; {asked or 'nvidia-smi said nothing'}."
    )

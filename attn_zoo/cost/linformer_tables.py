"""The measured Table 3 beside the paper's, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_zoo.cost.linformer_paper import LENGTHS, MEMORY_SAVED, PROJECTED_LENGTHS, TIME_SAVED
from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.tables import failures, joined, machine, markdown, reason, spread
from attn_zoo.cost.timed import KINDS
from attn_zoo.cost.timing import quartiles, quotients

TABLES: Mapping[str, tuple[str, str, str]] = {
    "forward time": ("seconds", "forward", "Time saved, forward (inference)"),
    "training time": ("seconds", "training", "Time saved, forward + backward"),
    "backward time": ("backward_seconds", "training", "Time saved, backward alone"),
    "forward memory": ("largest_batch", "forward", "Memory saved, forward (inference): quotient of largest batches"),
    "training memory": ("largest_batch", "training", "Memory saved, forward + backward: quotient of largest batches"),
}
"""Quantity, direction and title of each."""

PAPER_WIDTH, PAPER_HEADS = 768, 12


def table3_report(found: Measurement, tables: Sequence[str] = tuple(TABLES)) -> str:
    """The figures of one ``experiment=linformer_table3``.

    Args:
        tables: keys of ``TABLES``, those to print.
    """
    printed = [_table(found, *TABLES[name]) for name in tables]
    return joined(found, *printed, failures(found.cells.values(), KINDS), _said(found))


def _table(found: Measurement, quantity: str, kind: str, title: str) -> str:
    projected, rows = found.grid["projected_lengths"], []
    for n in sorted({cell.length for cell in found.cells}):
        by_layer = _by_layer(found, quantity, kind, n)
        by_k = {each.cell.subject.options["projected_length"]: each for each in by_layer if each.cell.subject and _is_ours(each)}
        for role in ("materialised", "sdpa"):
            base = min((each for each in by_layer if each.cell.role == role), key=lambda each: _cost(each, quantity))
            compared = [_quotient(found, base, by_k[k], quantity, (n, k)) if k in by_k else "-" for k in projected]
            rows.append([str(n), _name(base), _absolute(base, quantity), *compared])
    unit = "largest batch" if quantity == "largest_batch" else "ms a sequence"
    table = markdown(["n", "against", unit, *(f"k={k}" for k in projected)], rows, words=(1,))
    return f"**{title}**\n\n{table}"


def _by_layer(found: Measurement, quantity: str, kind: str, length: int) -> list[Figures]:
    """Figures of each layer at a length, at the batch that has the quantity; that which failed where none has."""
    here = [each for cell, each in found.cells.items() if (cell.kind, cell.length) == (kind, length)]
    here.sort(key=lambda each: quantity in each.values)
    return list({each.cell.label: each for each in here}.values())


def _is_ours(found: Figures) -> bool:
    return found.cell.role == "linformer"


def _seconds(found: Figures, quantity: str) -> list[float]:
    """Seconds a sequence, one figure a round."""
    return [taken / found.cell.batch for taken in found.all(quantity)]


def _cost(found: Figures, quantity: str) -> float:
    """What the better of two baselines has less of; those without a figure come last."""
    if quantity not in found.values:
        return float("inf")
    return -(found.one(quantity) or 0) if quantity == "largest_batch" else quartiles(_seconds(found, quantity))[1]


def _absolute(found: Figures, quantity: str) -> str:
    if quantity not in found.values:
        return _failure(found, quantity)
    if quantity == "largest_batch":
        return f"{found.one(quantity):.0f}" if found.one(quantity) else "OOM"
    milliseconds = 1e3 * quartiles(_seconds(found, quantity))[1]
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _quotient(found: Measurement, base: Figures, ours: Figures, quantity: str, at: tuple[int, int]) -> str:
    """Times that ours saves against the baseline, with the paper's figure of the forward pass."""
    printed = TIME_SAVED if quantity == "seconds" else MEMORY_SAVED
    paper = f" (paper {printed[at]})" if ours.cell.kind == "forward" and at in printed else ""
    for figures, words in ((ours, ""), (base, "baseline ")):
        if quantity not in figures.values:
            return f"{words}{_failure(figures, quantity)}{paper}"
    if quantity == "largest_batch":
        most, theirs = ours.one(quantity), base.one(quantity)
        if not most or not theirs:  # where less than one sequence of theirs fits, the quotient exceeds our batch
            return (f"> {most:.0f}" if most else "OOM") + paper
        return f"{most / theirs:.{_digits(most / theirs)}f}{paper}"
    saved = quotients(_seconds(base, quantity), _seconds(ours, quantity))
    return spread(saved, _digits(quartiles(saved)[1]), found.protocol or TimingProtocol()) + paper


def _failure(found: Figures, quantity: str) -> str:
    word = reason(found, quantity, "seconds" if quantity == "backward_seconds" else quantity)
    return "not measured" if word == "-" else word


def _digits(value: float) -> int:
    return 2 if value < 1 else 1 if value < 100 else 0


def _name(found: Figures) -> str:
    subject = found.cell.subject
    if found.cell.role == "materialised" or subject is None:
        return "materialised"
    return f"SDPA ({subject.backend})" if subject.backend else "SDPA"


def reduced(grid: Mapping[str, object]) -> list[str]:
    """What a grid has less of than the paper's grid and width."""
    said = []
    for name, words, most in (("lengths", "lengths", LENGTHS), ("projected_lengths", "k", PROJECTED_LENGTHS)):
        values = grid[name]
        assert isinstance(values, list)
        said += [f"{words} up to {max(values)} of {max(most)}"] if max(values) < max(most) else []
    if int(str(grid["dim"])) < PAPER_WIDTH:
        said.append(f"width {grid['dim']} of {PAPER_WIDTH}, {grid['heads']} heads of {PAPER_HEADS}")
    return said


def _said(found: Measurement) -> str:
    """What was measured, where and how, in words."""
    grid = found.grid
    used = sorted({cell.subject.implementation for cell in found.cells if cell.role == "linformer" and cell.subject})
    less, budget = reduced(grid), f"{grid['memory_gib']:g} GiB"
    found_by = (
        "found by doubling and bisection within that much of PyTorch's CUDA memory"
        if grid["device"] == "cuda"
        else "derived from the line through the allocator's peaks at the timed batch and at twice of it, with parameters and tokens"
    )
    said = [
        f"One attention layer with its projections, width {grid['dim']}, {grid['heads']} heads, {grid['precision']}, "
        f"Linformer with {grid['sharing']} sharing ({', '.join(used)}); the paper's figures are of its whole model, inference, "
        "against materialised softmax on a 16 GB V100 (arXiv:2006.04768, Table 3).",
        f"Reduced against the paper: {'; '.join(less)}." if less else "",
        f"Time is of a batch of max(1, {grid['tokens']} // n) sequences, halved where it runs out of memory, and compared a "
        f"sequence: median ± half the interquartile range of the quotients of {grid['rounds']} interleaved rounds, each layer "
        "and length in a process of its own; backward starts at the output's gradient; unstable where that range exceeds a fifth "
        "of the median. SDPA is the best of its back ends in each row.",
        f"The largest batch is for a budget of {budget}, {found_by}. Materialised softmax is not tried where its arithmetic "
        "exceeds the memory: 2 (forward) or 3 (with backward) matrices of n × n a head at once; then OOM, and > B says that "
        "Linformer fits B sequences where the baseline fits none.",
        found.protocol.describe() if found.protocol else "",
        f"Measured on {machine(found)}.",
    ]
    return " ".join(sentence for sentence in said if sentence)

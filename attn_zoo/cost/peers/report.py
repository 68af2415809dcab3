"""The comparison with public packages as a Markdown table, with differences, missing packages and the protocol beneath."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.cost.bench import MatrixProducts
from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.peers.comparisons import BASELINE, COMPARISONS, OURS, compared_rows
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.tables import conditions, failures, joined, markdown, spread
from attn_zoo.cost.timed import KINDS
from attn_zoo.cost.timing import quartiles, quotients

PRODUCT = "matrix product"
"""Label of the matrix product that measures the machine's rate."""

HEAD = (
    *("mechanism", "peer", "n", "direction", "ours / theirs", "ours (ms)", "theirs (ms)", "floor (ms)"),
    *("ours / floor", "theirs / floor", "ours / full", "ours, theirs memory (MiB)"),
)


def peers_report(found: Measurement) -> str:
    """Report of ``experiment=peers``."""
    by = {(cell.role, cell.group, cell.kind, cell.length): figures for cell, figures in found.cells.items()}
    rates = _rates(found)
    rows = []
    for name, side, length in dict.fromkeys((cell.role, cell.group, cell.length) for cell in found.cells):
        for kind in KINDS if name in COMPARISONS and side != OURS else ():
            ours, theirs = (by[name, each, kind, length] for each in (OURS, side))
            full = by[BASELINE, "causal" if COMPARISONS[name].causal else "full", kind, length]
            figures = _row(ours, theirs, full, rates.get(length), found.protocol)
            rows.append([name, side, str(length), KINDS[kind], *figures])
    notes = [failures(found.cells.values(), KINDS), *_left_out(found), *_differences(found)]
    table = markdown(HEAD, rows, words=(0, 1, 3))
    return joined(found, table, "\n".join(note for note in notes if note), _method(found, rates))


def _rates(found: Measurement) -> dict[int, float]:
    """FLOP/s of the matrix product by length, by its median time in the rounds of that length."""
    taken = {cell.length: figures.all("seconds") for cell, figures in found.cells.items() if cell.role == PRODUCT}
    return {length: MatrixProducts.flops / quartiles(seconds)[1] for length, seconds in taken.items() if seconds}


def _row(ours: Figures, theirs: Figures, full: Figures, rate: float | None, protocol: TimingProtocol | None) -> list[str]:
    def cell(values: Sequence[float], decimals: int = 2) -> str:
        return spread(values, decimals, protocol) if values else "failed"

    seconds, flops = [figures.all("seconds") for figures in (ours, theirs)], ours.one("floor_flops")
    floor = None if rate is None or flops is None else ours.cell.batch * flops / rate
    share = full.cell.batch / ours.cell.batch  # by sequence: batches may differ
    return [
        cell(quotients(*seconds)),
        *(cell([1e3 * each for each in taken], 1) for taken in seconds),
        f"{1e3 * floor:.1f}" if floor else "-",
        *(cell([each / floor for each in taken]) if floor else "-" for taken in seconds),
        cell([share * quotient for quotient in quotients(seconds[0], full.all("seconds"))]),
        ", ".join(_mebibytes(side) for side in (ours, theirs)),
    ]


def _mebibytes(found: Figures) -> str:
    held = found.one("peak_bytes")
    return "failed" if held is None else f"{held / 2**20:.0f}"


def _left_out(found: Measurement) -> list[str]:
    """Packages that are missing, and lengths above a comparison's limit."""
    long = [
        f"- {name} at n={length} is left out: {COMPARISONS[name].reason}."
        for name in compared_rows(found.grid["mechanisms"])
        for length in found.grid["lengths"]
        if length > (COMPARISONS[name].longest or length)
    ]
    return [*(f"- Left out: {reason} (extra: peers)." for reason in found.facts["missing"]), *long]


def _differences(found: Measurement) -> list[str]:
    """A line for each comparison: its row, its peers with their versions, and their differences."""
    lines, versions = [], found.facts["peer"]
    for name, row in compared_rows(found.grid["mechanisms"]).items():
        against = [
            f"{side} ({peer.what} of {peer.package} {versions[peer.package]}): {peer.differs}"
            for side, peer in COMPARISONS[name].peers.items()
            if peer.package in versions
        ]
        causal = ", causal" if COMPARISONS[name].causal else ""
        lines += [f"- {name}: {row}{causal}; {'; '.join(against)}."] if against else []
    return lines


def _method(found: Measurement, rates: dict[int, float]) -> str:
    grid, known = found.grid, [rate / 1e9 for rate in rates.values()]
    between = f"{min(known):.0f} to {max(known):.0f}" if known else "no"
    return (
        f"Whole layers with their projections, ours with biases on all of them; width {grid['dim']}, {grid['heads']} heads, "
        f"{grid['tokens']} tokens a step or one sequence (entmax: one), {grid['precision']}, no dropout. Forward is evaluation in "
        "inference mode; forward + backward includes all gradients, the tokens' too. Median ± half the interquartile range of "
        f"{grid['rounds']} rounds (3 for steps over 3 s), each side in a process of its own; ours / theirs "
        "is of the quotients within a round; unstable where that range exceeds a fifth of the median. The floor is the time of "
        f"our layer's matrix products at the rate of an fp32 product of {MatrixProducts.size} × {MatrixProducts.size} matrices in "
        f"the same rounds ({between} GFLOP/s). Full is softmax with implementation=sdpa in the same rounds, causal where the "
        "mechanism is. Memory is the most that PyTorch held at once in a step, above what was there before it. "
        f"{conditions(found)}"
    )

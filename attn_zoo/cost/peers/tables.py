"""The comparison with public packages as a Markdown table, with what differs, what is missing and the protocol beneath."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.cost.bench import MatrixProducts
from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.peers.rivals import OURS, RIVALS, YARDSTICK
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.tables import failures, joined, machine, markdown, spread
from attn_zoo.cost.timed import KINDS
from attn_zoo.cost.timing import quartiles, quotients

PRODUCT = "matrix product"
"""Label of the product that gives the machine's rate."""

HEAD = (
    *("mechanism", "peer", "n", "direction", "ours / theirs", "ours (ms)", "theirs (ms)", "floor (ms)"),
    *("ours / floor", "theirs / floor", "ours / full", "ours, theirs RSS (MiB)", "ours, theirs allocated (MiB)"),
)


class Compared:
    """Figures of a comparison by its name, side, direction and length."""

    def __init__(self, found: Measurement) -> None:
        self.protocol = found.protocol or TimingProtocol()
        self.by = {(cell.role, cell.group, cell.kind, cell.length): figures for cell, figures in found.cells.items()}
        cells = [cell for cell in found.cells if cell.group not in ("", OURS) and cell.role != YARDSTICK]
        self.rows = list(dict.fromkeys((cell.role, cell.group, cell.length) for cell in cells))

    def rate(self, length: int) -> float | None:
        """FLOP/s of the matrix product in the rounds of a length, by its median time."""
        found = self.by.get((PRODUCT, "", "forward", length))
        taken = found.all("seconds") if found else []
        return MatrixProducts.flops / quartiles(taken)[1] if taken else None

    def cell(self, values: Sequence[float], decimals: int) -> str:
        """Median and spread of the rounds, or ``failed``."""
        return spread(values, decimals, self.protocol) if values else "failed"

    def row(self, name: str, peer: str, length: int, kind: str) -> list[str]:
        """Ours against one peer."""
        ours, theirs = (self.by[name, side, kind, length] for side in (OURS, peer))
        mine, others, rate = ours.all("seconds"), theirs.all("seconds"), self.rate(length)
        flops = ours.one("floor_flops")
        floor = None if rate is None or flops is None else ours.cell.batch * flops / rate
        full = self.by[YARDSTICK, "causal" if RIVALS[name].causal else "full", kind, length]
        share = full.cell.batch / ours.cell.batch  # by sequence: batches may differ
        pairs = (", ".join(_mebibytes(side, what) for side in (ours, theirs)) for what in ("resident_bytes", "peak_bytes"))
        return [
            name,
            peer,
            str(length),
            KINDS[kind],
            self.cell(quotients(mine, others), 2),
            *(self.cell([1e3 * seconds for seconds in taken], 1) for taken in (mine, others)),
            f"{1e3 * floor:.1f}" if floor else "-",
            *(self.cell([seconds / floor for seconds in taken], 2) if floor else "-" for taken in (mine, others)),
            self.cell([share * quotient for quotient in quotients(mine, full.all("seconds"))], 2),
            *pairs,
        ]


def peers_report(found: Measurement) -> str:
    """The figures of one ``experiment=peers``."""
    compared = Compared(found)
    rows = [compared.row(*row, kind) for row in compared.rows for kind in KINDS]
    table = markdown(HEAD, rows, words=(0, 1, 3))
    notes = [failures(found.cells.values(), KINDS), *_left_out(found), *_differences(found)]
    return joined(found, table, "\n".join(note for note in notes if note), _said(found, compared))


def _mebibytes(found: Figures, what: str) -> str:
    held = found.one(what)
    return "failed" if held is None else f"{held / 2**20:.0f}"


def _left_out(found: Measurement) -> list[str]:
    """Packages that are not here, and lengths that are too long."""
    long = [
        f"- {name} at n={length} is left out: {RIVALS[name].reason}."
        for name in found.grid["mechanisms"]
        for length in found.grid["lengths"]
        if length > (RIVALS[name].longest or length)
    ]
    return [*(f"- Left out: {reason} (extra: peers)." for reason in found.facts["missing"]), *long]


def _differences(found: Measurement) -> list[str]:
    """For each comparison what is set, and how the packages differ."""
    lines = []
    for name in found.grid["mechanisms"]:
        rival = RIVALS[name]
        peers = {side: peer for side, peer in rival.peers.items() if peer.package in found.facts["peer"]}
        options = rival.options(found.grid["sizes"].get(name, rival.size)).items()
        own = ", ".join([rival.attention, *(f"{key}={value}" for key, value in options), f"implementation={rival.implementation}"])
        against = "; ".join(
            f"{side} ({peer.what} of {peer.package} {found.facts['peer'][peer.package]}): {peer.differs}"
            for side, peer in peers.items()
        )
        lines += [f"- {name}: {own}{', causal' if rival.causal else ''}; {against}."] if peers else []
    return lines


def _said(found: Measurement, compared: Compared) -> str:
    """What was measured, where and how, in words."""
    grid = found.grid
    rates = [rate / 1e9 for length in grid["lengths"] if (rate := compared.rate(length))]
    between = f"{min(rates):.0f} to {max(rates):.0f}" if rates else "no"
    return (
        f"Whole layers with their projections, ours with biases on all of them; width {grid['dim']}, {grid['heads']} heads, "
        f"{grid['tokens']} tokens a step or one sequence (entmax: one), {grid['precision']}, no dropout. Forward is evaluation in "
        "inference mode; forward + backward includes all gradients, the tokens' too. Median ± half the interquartile range of "
        f"{grid['rounds']} rounds (3 for steps over 3 s), each side in a process of its own; ours / theirs "
        "is of the quotients within a round; unstable where that range exceeds a fifth of the median. The floor is the time of "
        f"our layer's matrix products at the rate of an fp32 product of {MatrixProducts.size} × {MatrixProducts.size} matrices in "
        f"the same rounds ({between} GFLOP/s). Full is softmax with implementation=sdpa in the same rounds, causal where the "
        "mechanism is. Memory is above what was there before the step, in fresh processes: of the process (RSS), and of PyTorch's "
        f"allocations. {compared.protocol.describe() + ' ' if found.protocol else ''}Measured on {machine(found)}."
    )

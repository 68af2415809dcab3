"""Layers of the zoo against layers of public packages: time, memory, and distance to the arithmetic floor and to full attention.

``python benchmarks/peers.py mechanisms=window,reformer``; ``--help`` lists the keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from peer_comparisons import (
    BASELINE,
    BASELINES,
    COMPARISONS,
    OURS,
    build_side,
    compared_rows,
    floor_flops,
    require_peers,
    side_inputs,
)

from attn_zoo.bench.bench import Bench, MatrixProducts
from attn_zoo.bench.compare import quartiles, quotients
from attn_zoo.bench.experiment import KINDS, Ask, LayerTiming, Values, memory
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import failures, joined, notes, spread
from attn_zoo.cli.measure import run_experiment
from attn_zoo.rows import RowName, option
from attn_zoo.terminal import table

PRODUCT = "matrix product"
"""Label of the matrix product that measures the machine's rate."""

SCOPES = {"layer": "layers with their projections", "mechanism": "mechanisms without projections"}
"""Words for the scopes of comparisons."""

HEAD = (
    *("mechanism", "peer", "n", "direction", "ours / theirs", "ours (ms)", "theirs (ms)", "floor (ms)"),
    *("ours / floor", "theirs / floor", "ours / full", "ours, theirs memory (MiB)"),
)


def _rates(found: Measurement) -> dict[int, float]:
    """FLOP/s of the matrix product by length, by its median time in the rounds of that length."""
    taken = {cell.length: cell.all("seconds") for cell in found.cells if cell.role == PRODUCT}
    return {length: MatrixProducts.flops / quartiles(seconds)[1] for length, seconds in taken.items() if seconds}


def _row(ours: Cell, theirs: Cell, full: Cell, rate: float | None) -> list[str]:
    def cell(values: Sequence[float], decimals: int = 2) -> str:
        return spread(values, decimals) if values else "failed"

    seconds, flops = [side.all("seconds") for side in (ours, theirs)], ours.one("floor_flops")
    floor = None if rate is None or flops is None else ours.batch * flops / rate
    share = full.batch / ours.batch  # by sequence: batches may differ
    return [
        cell(quotients(*seconds)),
        *(cell([1e3 * each for each in taken], 1) for taken in seconds),
        f"{1e3 * floor:.1f}" if floor else "-",
        *(cell([each / floor for each in taken]) if floor else "-" for taken in seconds),
        cell([share * quotient for quotient in quotients(seconds[0], full.all("seconds"))]),
        ", ".join(_mebibytes(side) for side in (ours, theirs)),
    ]


def _mebibytes(cell: Cell) -> str:
    held = cell.one("peak_bytes")
    return "failed" if held is None else f"{held / 2**20:.0f}"


def _left_out(found: Measurement) -> list[str]:
    """Packages that are missing, and lengths above a comparison's limit."""
    long = [
        f"- {name} at n={length} is left out: {COMPARISONS[name].reason}."
        for name in compared_rows(found.settings["mechanisms"])
        for length in found.settings["lengths"]
        if length > (COMPARISONS[name].longest or length)
    ]
    return [*(f"- Left out: {reason} (extra: peers)." for reason in found.facts["missing"]), *long]


def _differences(found: Measurement, format: str) -> str:
    """A table of the peers of each comparison, with their versions and differences."""
    versions = found.facts["peer"]
    rows = [
        [name, f"{row}{' (causal)' if COMPARISONS[name].causal else ''}", f"{peer.what} of {peer.package} {versions[peer.package]}"]
        + [peer.differs]
        for name, row in compared_rows(found.settings["mechanisms"]).items()
        for peer in COMPARISONS[name].peers.values()
        if peer.package in versions
    ]
    return "**Layers compared**\n\n" + table(["mechanism", "ours", "theirs", "difference of theirs"], rows, format, left=range(4))


def _notes(found: Measurement, rates: dict[int, float]) -> str:
    settings, known = found.settings, sorted(rates.values())
    between = " to ".join(dict.fromkeys(f"{rate / 1e9:.0f}" for rate in known[:1] + known[-1:])) or "no"
    levels = {COMPARISONS[name].level for name in compared_rows(settings["mechanisms"])}
    scope = " and ".join(words for level, words in SCOPES.items() if level in levels)
    what = (
        f"{scope.capitalize()}: width {settings['dim']}, {settings['heads']} heads, {settings['tokens']} tokens per step, "
        f"{settings['precision']}; a matrix product runs at {between} GFLOP/s"
    )
    before = [failures(found.cells, KINDS), *_left_out(found)]
    return notes(found, what, "peers", before="\n".join(line for line in before if line))


@dataclass
class Peers(LayerTiming):
    """Layers of the zoo against those of public packages (extra: peers), with the arithmetic floor (the shortest possible time)
    and full attention.

    Packages that are not installed are named and left out. If the program was stopped, the same command with the same output file
    continues.
    """

    mechanisms: list[str] = option(
        list(COMPARISONS),
        "comparisons, with the hyperparameter of both sides where wanted, such as linformer[projected_length=128] ("
        + ", ".join(f"{name}[{each.hyperparameter}={each.value}]" for name, each in COMPARISONS.items() if each.hyperparameter)
        + ")",
    )
    lengths: list[int] = option([4096, 16384], "lengths")
    tokens: int = option(8192, "a batch holds max(1, tokens // length) sequences")
    device: str = option("cpu", "auto, cpu or cuda; auto is cuda where there is one")

    preloaded: ClassVar[Sequence[str]] = ("transformers.modeling_utils",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, row in self.rows.items():
            known = COMPARISONS[name]
            if 2 * known.shared(row) > min(self.lengths):
                raise ValueError(
                    f"lengths= must be at least {2 * known.shared(row)}, because each length must be at least twice the "
                    f"{known.hyperparameter} of {name}; got {list(self.lengths)}. Choose longer lengths, or a smaller "
                    f"{name}[{known.hyperparameter}=...]"
                )

    @cached_property
    def rows(self) -> dict[str, RowName]:
        """Row names (mechanism, options and implementation) of our layers, by the name of the comparison."""
        return compared_rows(self.mechanisms)

    def facts(self) -> dict[str, Any]:
        versions, missing = require_peers(list(self.rows))
        return {**super().facts(), "peer": versions, "missing": missing}

    def batch(self, name: str, length: int) -> int:
        """Return the number of sequences in a step of a comparison, or of full attention."""
        most = COMPARISONS[name].largest_batch if name in COMPARISONS else None
        return min(most or self.tokens, max(1, self.tokens // length))

    def sides(self, length: int) -> dict[str, list[str]]:
        """Return the names of the layers that are measured at a length: for each comparison our layer and those of public
        packages, and those of the baseline (``BASELINES``).

        Packages that are not installed are left out.
        """
        found: dict[str, list[str]] = {}
        for name in self.rows:
            known = COMPARISONS[name]
            if known.longest is None or length <= known.longest:
                sides = [side for side, peer in known.peers.items() if peer.missing() is None]
                found |= {name: [OURS, *sides]} if sides else {}
        baselines = {COMPARISONS[name].baseline for name in found}
        return found | ({BASELINE: [side for side in BASELINES if side in baselines]} if found else {})

    def groups(self) -> list[list[Cell]]:
        return [
            [
                *(
                    Cell(f"{name}, {side}", kind, length, self.batch(name, length), side, name)
                    for name, sides in self.sides(length).items()
                    for side in sides
                    for kind in KINDS
                ),
                Cell(PRODUCT, "forward", length, role=PRODUCT),
            ]
            for length in self.lengths
        ]

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        if cell.role == PRODUCT:
            return {}
        return {"peak_bytes": memory, **({"floor_flops": self._floor} if cell.group == OURS else {})}

    def _floor(self, ask: Ask, cell: Cell) -> Values:
        return {"floor_flops": floor_flops(cell.role, self.dim, self.heads, self.rows[cell.role], cell.length)[cell.kind]}

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Return the timed cases in the order in which round ``turn`` measures them. The timing protocol orders the comparisons;
        the layers of one comparison follow each other directly."""
        names = self.protocol.ordered(list(dict.fromkeys(cell.role for cell in cells)), turn)
        return [cell for name in names for cell in self.protocol.ordered([c for c in cells if c.role == name], turn)]

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        if cell.role == PRODUCT:
            return MatrixProducts, self.torch_device
        side = (cell.role, cell.group, self.dim, self.heads, self.rows.get(cell.role))
        return Bench, partial(build_side, *side), side_inputs(*side), self.torch_device, self.precision, None, self.protocol

    def refusal(self, cell: Cell) -> str | None:
        """Return None, because no timed case is checked in advance. Layers of public packages are built only in their worker
        processes."""
        return None

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        by = {(cell.role, cell.group, cell.kind, cell.length): cell for cell in found.cells}
        rates = _rates(found)
        rows = []
        for name, side, length in dict.fromkeys((cell.role, cell.group, cell.length) for cell in found.cells):
            for kind in KINDS if name in COMPARISONS and side != OURS else ():
                ours, theirs = (by[name, each, kind, length] for each in (OURS, side))
                full = by[BASELINE, COMPARISONS[name].baseline, kind, length]
                figures = _row(ours, theirs, full, rates.get(length))
                rows.append([name, side, str(length), KINDS[kind], *figures])
        return joined(found, table(HEAD, rows, format, left=(0, 1, 3)), _notes(found, rates), _differences(found, format))


if __name__ == "__main__":
    raise SystemExit(run_experiment("peers", Peers, sys.argv[1:]))

"""Layers of the zoo against public ones: time, memory, distance to the arithmetic floor and to full attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

from attn_zoo.cost.bench import Bench, MatrixProducts, random_tokens
from attn_zoo.cost.grid import option
from attn_zoo.cost.measurement import Cell, Figures
from attn_zoo.cost.peers.comparisons import BASELINE, COMPARISONS, OURS, builder, compared_rows, floor_flops, require_peers
from attn_zoo.cost.peers.report import PRODUCT, peers_report
from attn_zoo.cost.probes import MEMORY, Answer, Ask, Probe
from attn_zoo.cost.timed import KINDS, Timed
from attn_zoo.rows import RowName


@dataclass
class Peers(Timed):
    """Layers of the zoo against those of public packages (extra: peers), with the arithmetic floor and full attention.

    Packages that are not installed are named and left out. The same command with the same output goes on where it was stopped.
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

    shortest_length: ClassVar[int] = 2
    slow_seconds: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, row in self.rows.items():
            known = COMPARISONS[name]
            if 2 * known.shared(row) > min(self.lengths):
                raise ValueError(
                    f"lengths must be at least twice the {known.hyperparameter} of {name}, {known.shared(row)}; got "
                    f"{list(self.lengths)}; choose longer ones, or {name}[{known.hyperparameter}=...] with a smaller value"
                )

    @cached_property
    def rows(self) -> dict[str, RowName]:
        """Rows of the zoo's layers by comparison."""
        return compared_rows(self.mechanisms)

    def facts(self) -> dict[str, Any]:
        versions, missing = require_peers(list(self.rows))
        return {**super().facts(), "peer": versions, "missing": missing}

    def batch(self, name: str, length: int) -> int:
        """Number of sequences in a step of a comparison, or of full attention."""
        most = COMPARISONS[name].largest_batch if name in COMPARISONS else None
        return min(most or self.tokens, max(1, self.tokens // length))

    def sides(self, length: int) -> dict[str, list[str]]:
        """Sides of each comparison at a length, without missing packages; then full attention, causal or not."""
        found: dict[str, list[str]] = {}
        for name in self.rows:
            known = COMPARISONS[name]
            if known.longest is None or length <= known.longest:
                sides = [side for side, peer in known.peers.items() if peer.missing() is None]
                found |= {name: [OURS, *sides]} if sides else {}
        causal = [COMPARISONS[name].causal for name in found]
        full = [side for side, wanted in (("full", not all(causal)), ("causal", any(causal))) if wanted]
        return found | ({BASELINE: full} if full else {})

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

    def once(self, cell: Cell) -> Sequence[Probe]:
        if cell.role == PRODUCT:
            return ()
        return (MEMORY, Probe("floor_flops", self._floor)) if cell.group == OURS else (MEMORY,)

    def _floor(self, ask: Ask, found: Figures) -> Answer:
        cell = found.cell
        return {"floor_flops": floor_flops(cell.role, self.dim, self.heads, self.rows[cell.role], cell.length)[cell.kind]}

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Cells of a round: comparisons in the protocol's order, the sides of each comparison next to each other."""
        names = self.protocol.ordered(list(dict.fromkeys(cell.role for cell in cells)), turn)
        return [cell for name in names for cell in self.protocol.ordered([c for c in cells if c.role == name], turn)]

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        if cell.role == PRODUCT:
            return MatrixProducts, self.torch_device
        build = builder(cell.role, cell.group, self.dim, self.heads, self.rows.get(cell.role))
        return Bench, build, partial(random_tokens, self.dim), self.torch_device, self.precision, None, False, self.protocol

    def refusal(self, cell: Cell) -> str | None:
        """Return None: layers of public packages are built only in their worker processes."""
        return None

    report = staticmethod(peers_report)

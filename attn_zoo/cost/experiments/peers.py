"""Our layers against public ones: time, memory, distance to the arithmetic floor and to full attention.

The floor is the time that a layer's matrix products would take at the rate of one large fp32 matrix product, measured in
the same rounds. Products are those of our card with the projections around it (``layer_cost``); where the card recomputes
some of them backward, no more than two for each forward one are counted, one for the gradient of either factor. Softmax,
biases and moving data are free here, so nothing in fp32 that does these products goes below the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.bench import Bench, MatrixProducts
from attn_zoo.cost.counted.formulas import layer_cost
from attn_zoo.cost.grid import option
from attn_zoo.cost.measurement import Cell, Figures, Measurement
from attn_zoo.cost.peers.rivals import OURS, RIVALS, YARDSTICK, builder
from attn_zoo.cost.peers.tables import PRODUCT, peers_report
from attn_zoo.cost.probes import Answer, Ask, Probe, memory
from attn_zoo.cost.timed import KINDS, Timed

SMALL = 1024
"""Length of the step by which a process is made ready for its memory to be taken, at most; half the length, if that is less."""


@dataclass
class Peers(Timed):
    """Our layers against those of public packages (extra: peers), with the arithmetic floor and full attention.

    Packages that are not installed are named and left out. The same command with the same output goes on where it was stopped.
    """

    mechanisms: list[str] = option(list(RIVALS), "which comparisons")
    lengths: list[int] = option([4096, 16384], "lengths")
    tokens: int = option(8192, "a batch holds max(1, tokens // length) sequences")
    sizes: dict[str, int] = option(
        {},
        "hyperparameters of both sides, sizes.MECHANISM=VALUE ("
        + "; ".join(f"{name}={rival.size}: {rival.dial}" for name, rival in RIVALS.items() if rival.size)
        + ")",
    )
    device: str = option("cpu", "auto, cpu or cuda; auto is cuda where there is one")

    shortest_length: ClassVar[int] = 2
    slow_seconds: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        for name in [*self.mechanisms, *self.sizes]:
            if name not in RIVALS:
                raise UnknownNameError("mechanism of experiment=peers", name, RIVALS)
        if not self.mechanisms or len(set(self.mechanisms)) < len(self.mechanisms):
            raise ValueError(f"mechanisms name each comparison once, and one at least; got {list(self.mechanisms)}")
        super().__post_init__()
        for name, size in self.sizes.items():
            if not RIVALS[name].size:
                raise ValueError(f"sizes.{name}: this comparison has no hyperparameter; leave it out")
            if size < 1:
                raise ValueError(f"sizes.{name} counts {RIVALS[name].dial}, so it is at least 1; got {size}")
        for name in self.mechanisms:
            if 2 * self.size(name) > min(self.lengths):
                raise ValueError(
                    f"lengths must be at least twice the {RIVALS[name].dial} of {name}, {self.size(name)}; got "
                    f"{list(self.lengths)}; choose longer ones or a smaller sizes.{name}"
                )

    def facts(self) -> dict[str, Any]:
        versions, missing = require_peers(self.mechanisms)
        return {**super().facts(), "peer": versions, "missing": missing}

    def size(self, name: str) -> int:
        """The hyperparameter of a comparison; 0 where there is none."""
        return self.sizes.get(name, RIVALS[name].size) if name in RIVALS else 0

    def batch(self, name: str, length: int) -> int:
        """Sequences of a step of a comparison, or of full attention."""
        most = RIVALS[name].largest_batch if name in RIVALS else None
        batch = max(1, self.tokens // length)
        return batch if most is None else min(most, batch)

    def sides(self, length: int) -> dict[str, list[str]]:
        """The sides of each comparison at a length, missing packages left out; behind them full attention, causal or not."""
        found: dict[str, list[str]] = {}
        for name in self.mechanisms:
            rival = RIVALS[name]
            if rival.longest is None or length <= rival.longest:
                sides = [side for side, peer in rival.peers.items() if peer.missing() is None]
                found |= {name: [OURS, *sides]} if sides else {}
        causal = [RIVALS[name].causal for name in found]
        yardsticks = [side for side, wanted in (("full", not all(causal)), ("causal", any(causal))) if wanted]
        return found | ({YARDSTICK: yardsticks} if yardsticks else {})

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
        probe = memory(resident=True, fresh=True, small=lambda length: min(SMALL, length // 2))
        return (probe, Probe("floor_flops", self._floor)) if cell.group == OURS else (probe,)

    def _floor(self, ask: Ask, found: Figures) -> Answer:
        cell = found.cell
        return {"floor_flops": floor_flops(cell.role, self.dim, self.heads, self.size(cell.role), cell.length)[cell.kind]}

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Comparisons come in a new order each round, and the sides of one behind each other."""
        names = self.protocol.ordered(list(dict.fromkeys(cell.role for cell in cells)), turn)
        return [cell for name in names for cell in self.protocol.ordered([c for c in cells if c.role == name], turn)]

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        if cell.role == PRODUCT:
            return (MatrixProducts,)
        build = builder(cell.role, cell.group, self.dim, self.heads, self.size(cell.role))
        return Bench, build, self.dim, self.torch_device, self.precision, None, None, False, self.protocol

    def refusal(self, cell: Cell) -> str | None:
        """None: layers of packages are built in their processes only."""
        return None

    @staticmethod
    def report(found: Measurement) -> str:
        return peers_report(found)


def require_peers(mechanisms: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Versions of the installed packages that ``mechanisms`` are compared with, and why others are left out.

    Raises:
        ValueError: none of them is installed.
    """
    peers = [peer for name in mechanisms for peer in RIVALS[name].peers.values()]
    missing = list(dict.fromkeys(reason for peer in peers if (reason := peer.missing())))
    versions = {peer.package: peer.version() for peer in peers if peer.missing() is None}
    if not versions:
        raise ValueError(
            f"experiment=peers compares with public packages, and none of them is here: {'; '.join(missing)}; "
            "install them with: pip install 'attn-zoo[peers]'"
        )
    return versions, missing


def floor_flops(name: str, dim: int, heads: int, size: int, length: int) -> dict[str, int]:
    """FLOPs of our layer's matrix products for one sequence by direction (see the head of this file)."""
    with torch.device("meta"):
        cost = layer_cost(RIVALS[name].build(dim, heads, size, length))
    assert cost.backward_flops is not None, "every card of ours states it"
    return {"forward": cost.flops, "training": cost.flops + min(cost.backward_flops, 2 * cost.flops)}

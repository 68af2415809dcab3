"""The figures of one measurement, looked up and put into proportion: what the table prints, before it is text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_zoo.cost.bench import BACKENDS, PRECISIONS
from attn_zoo.cost.linformer_kernels import floors
from attn_zoo.cost.linformer_kernels.floors import STATED, Ceilings, Size
from attn_zoo.cost.linformer_kernels.setting import Cell, Setting
from attn_zoo.cost.linformer_kernels.targets import STANDARD

Point = Mapping[str, Any]


class Found:
    """One ``experiment=linformer_kernels``, as ``output=`` writes it."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in written["setting"].items()
        }
        self.setting = Setting(**values)
        points = written["points"]
        self.checks: list[Point] = [point for point in points if point["part"] == "check"]
        self.ceiling_points: list[Point] = [point for point in points if point["part"] == "ceilings"]
        self._times: dict[str, Point] = {point["key"]: point for point in points if point["part"] == "time"}
        self._ceilings = {point["call"]: _ceilings(point) for point in self.ceiling_points}

    @property
    def standard(self) -> bool:
        """Whether this is the setting that the targets are for."""
        return all(getattr(self.setting, name) == value for name, value in STANDARD.items())

    def spread(self, cell: Cell) -> tuple[float, float, float] | str:
        """Quartiles in seconds, or the word that stands in their place."""
        point = self._times.get(cell.key)
        if point is None:
            return "not measured"
        if point["failure"]:
            return str(point["failure"]).partition(":")[0]
        low, middle, high = point["seconds"]
        return low, middle, high

    def seconds(self, cell: Cell) -> float | str:
        """Median seconds, or the word that stands in their place."""
        spread = self.spread(cell)
        return spread if isinstance(spread, str) else spread[1]

    def other(self, cell: Cell, name: str) -> float | None:
        """Another figure of the cell, such as ``loop_seconds`` or ``peak_bytes``."""
        point = self._times.get(cell.key)
        return None if point is None or point["failure"] else point[name]

    def failures(self) -> list[str]:
        """What did not work, a line each."""
        return [f"{p['key']}: {p['failure']}" for p in [*self.ceiling_points, *self.checks, *self._times.values()] if p["failure"]]

    def mistakes(self) -> list[str]:
        """Which results are wrong, and how, a line each."""
        return [f"{p['key']}: wrong: errors {p['errors']}, equal on two runs: {p['same']}" for p in self.checks if bad(p)]

    def best(self, part: str, kind: str, length: int, rows: int, precision: str) -> Cell:
        """The fastest of PyTorch's back ends; the first where none has a time."""
        of_each = [Cell(part, kind, length, rows, precision, backend) for backend in BACKENDS]
        return min(of_each, key=lambda cell: t if isinstance(t := self.seconds(cell), float) else float("inf"))

    def leanest(self, kind: str, length: int, precision: str) -> Cell:
        """The softmax layer that needs the fewest bytes; the first where none has a figure."""
        of_each = [Cell("layer", kind, length, 0, precision, backend) for backend in BACKENDS]
        return min(of_each, key=lambda cell: self.other(cell, "peak_bytes") or float("inf"))

    def floor(self, cell: Cell) -> float:
        """Least seconds of our own, at the ceilings of the call that timed it."""
        s = self.setting
        itemsize = PRECISIONS[cell.precision].itemsize
        size = Size(s.batch(cell.length), cell.length, cell.rows, s.dim, s.heads, itemsize)
        if cell.part == "layer":
            stages = floors.layer(cell.kind, size, s.roles)
        else:
            stages = [(floors.core if cell.part == "core" else floors.projection)(cell.kind, size)]
        return floors.floor_seconds(stages, self.ceilings(cell), cell.precision)

    def work(self, cell: Cell) -> tuple[float, float]:
        """FLOPs and bytes of a core or a projection."""
        s = self.setting
        size = Size(s.batch(cell.length), cell.length, cell.rows, s.dim, s.heads, PRECISIONS[cell.precision].itemsize)
        stage = (floors.core if cell.part == "core" else floors.projection)(cell.kind, size)
        return stage.flops, stage.bytes

    def ceilings(self, cell: Cell) -> Ceilings:
        """Those of the call that timed the cell."""
        point = self._times.get(cell.key)
        return self._ceilings.get(point["call"] if point else 0, STATED)

    def wrong(self, cell: Cell) -> bool:
        """Whether a check of the same kernels, sizes and precision went wrong; a forward's times stand if only gradients did."""
        return any(self._concerns(check, cell) and bad(check, forward_only=cell.kind == "forward") for check in self.checks)

    def unchecked(self, cell: Cell) -> bool:
        """Whether no check says anything about the cell."""
        return not any(self._concerns(check, cell) and not check["failure"] for check in self.checks)

    def _concerns(self, check: Point, cell: Cell) -> bool:
        case = check["case"]
        same = (case["part"], case["precision"], case["rows"]) == (cell.part, cell.precision, cell.rows)
        return same and (cell.part != "layer" or case["length"] == cell.length)


def bad(check: Point, *, forward_only: bool = False) -> bool:
    """Whether results are wrong, by their error or because two runs differ; a check that failed says nothing of results."""
    if check["failure"] or check["verdict"] == "right":
        return False
    if not forward_only or not check["same"]:
        return True
    error = check["errors"]["out"]
    return error is None or error > check["bounds"]["out"]


def _ceilings(point: Point) -> Ceilings:
    if point["failure"]:
        return STATED
    return Ceilings(point["half_flops"], point["tf32_flops"], point["bytes"], point["exponentials"])

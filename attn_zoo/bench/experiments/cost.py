"""Experiment ``cost``: time, throughput and memory of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.probes import MEMORY, Answer, Ask, Probe, largest_batch
from attn_zoo.bench.tables import decimals, failures, figure, figure_or_reason, joined, notes, reason
from attn_zoo.bench.timed import KINDS, AttentionRows, Timed
from attn_zoo.bench.workers import WorkerError
from attn_zoo.contract import TaskSpec, UnknownNameError
from attn_zoo.count.rigs import LEVELS, Rig, Sizes, rig_for, task_model
from attn_zoo.rows import option
from attn_zoo.terminal import table

WORDS = {
    "mechanism": "Mechanisms alone",
    "layer": "One layer with its projections",
    "block": "One pre-norm transformer block",
    "model": "The network of a task",
}
"""Names of what is timed, by level."""


def _best(found: Measurement, label: str, length: int, kind: str) -> tuple[Figures, int | None]:
    """Return the values measured at the best batch size, and this batch size. If the best batch size is unknown, return the values
    of one sequence, and None."""
    alone = found.of(Cell(label, kind, length))
    batch = alone.one("best_batch")
    return (alone, None) if batch is None else (found.cells.get(Cell(label, kind, length, int(batch)), alone), int(batch))


def _rows(found: Measurement) -> list[tuple[str, int]]:
    """Return the label and length of each row."""
    return sorted(dict.fromkeys((cell.label, cell.length) for cell in found.cells), key=lambda row: row[1])


def _times(found: Measurement, format: str) -> str:
    parts = ["backward", *(["update"] if found.grid["level"] in ("block", "model") else [])]
    head = ["attention", "n", "forward (ms)", *(f"{part} (ms)" for part in parts), "training step (ms)"]
    head += ["forward (tokens/s)", "at batch", "training (tokens/s)", "at batch"]
    rows = []
    for label, length in _rows(found):
        forward, training = (found.of(Cell(label, kind, length)) for kind in KINDS)
        parts_of = [(forward, "seconds"), *((training, f"{part}_seconds") for part in parts), (training, "seconds")]
        cells = [figure_or_reason(figures, found.protocol, quantity, 1e3) for figures, quantity in parts_of]
        for kind in KINDS:
            best, batch = _best(found, label, length, kind)
            rates = [(batch or 1) * length / seconds for seconds in best.all("seconds")]
            cells += [figure(rates, found.protocol), str(batch)] if rates else [reason(best, "seconds", "best_batch"), "-"]
        rows.append([label, str(length), *cells])
    return "**Time and throughput: time with one sequence, throughput with the best batch size**\n\n" + table(head, rows, format)


def _memory(found: Measurement, format: str) -> str:
    head = ["attention", "n", *(f"{kind}, peak (MiB)" for kind in KINDS), *(f"{kind}, largest batch" for kind in KINDS)]
    rows = []
    for label, length in _rows(found):
        both = [found.of(Cell(label, kind, length)) for kind in KINDS]
        rows.append([label, str(length), *map(_mebibytes, both), *map(_largest, both)])
    return "**Memory: peak of a step with one sequence, minus the memory allocated before the step**\n\n" + table(
        head, rows, format
    )


def _mebibytes(found: Figures) -> str:
    held = found.one("peak_bytes")
    return reason(found, "peak_bytes") if held is None else f"{held / 2**20:,.{decimals(held / 2**20)}f}"


def _largest(found: Figures) -> str:
    most = found.one("largest_batch")
    return reason(found, "largest_batch", "peak_bytes") if most is None else f"{int(most):,}"


def _notes(found: Measurement) -> str:
    grid = found.grid
    shape = f"width {grid['dim']}, {grid['heads']} heads"
    shape += f", MLP ratio {grid['mlp_ratio']:g}" if grid["level"] in ("block", "model") else ""
    shape += f", {grid['depth']} blocks, task {grid['task']}" if grid["level"] == "model" else ""
    what = f"{WORDS[grid['level']]}: {shape}, {grid['precision']}; the largest batch fits into {grid['memory_gib']:g} GiB"
    return notes(found, what, "cost", before=failures(found.cells.values(), KINDS))


SIZES = Sizes(dim=256, heads=4, depth=2, mlp_ratio=2.0)
"""Default sizes of the network. If a whole model is timed, the sizes of the task's preset replace them."""

READ_AT = {"task": ("model",), "task_level": ("model",), "depth": ("model",), "mlp_ratio": ("block", "model")}
"""Keys of the command line that may be given only with certain values of ``level``, and these values."""

PROBE_TOKENS = 8192
"""On a CPU, the largest batch is extrapolated from the memory of two batches. The smaller one has about this
number of tokens, but at least one sequence."""

PATIENCE = 2
"""The search for the best batch doubles the batch size, and ends after this number of doublings without a higher throughput."""


@dataclass
class StepCost(Timed, AttentionRows):
    """Time, throughput and memory of one step of a mechanism alone, or of a layer, block or whole model with the mechanism.

    To continue an interrupted measurement, run the same command with the same output again. Keys that are null have defaults that
    depend on the key ``level``.
    """

    level: str = option("layer", "what is timed: mechanism, layer, block or model; a block or model is timed with the optimiser")
    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], "sequence lengths in tokens")
    # Null until the level is known.
    dim: int | None = option(None, "width in channels (default: 256; for a model, that of the task's preset)")  # type: ignore[assignment]  # None: by level or device
    heads: int | None = option(None, "number of heads (default: 4; for a model, that of the task's preset)")  # type: ignore[assignment]  # None: by level or device
    mlp_ratio: float | None = option(None, "width of the MLP divided by dim (default: 2; for a model, that of the task's preset)")
    depth: int | None = option(None, "number of blocks of a model (default: that of the task's preset)")
    task: str | None = option(None, "task whose model is timed; its inputs must be sequences (default: listops)")
    task_level: str | None = option(None, "preset of the task that sets the sizes (default: the first)")
    memory_gib: float = option(16.0, "memory in GiB into which the largest batch must fit")
    batch_seconds: float = option(5.0, "longest expected step in seconds; batches with a longer one are not tried")

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UnknownNameError("level of experiment=cost", self.level, LEVELS)
        for name, levels in READ_AT.items():
            if getattr(self, name) is not None and self.level not in levels:
                raise ValueError(
                    f"{name}= must not be given with level={self.level}, because it is used only with "
                    f"level={' or '.join(levels)}. Leave {name}= out"
                )
        proposed = asdict(SIZES)
        self.task_spec: TaskSpec | None = None
        if self.level == "model":
            self.task = self.task or "listops"
            self.task_spec, sizes = task_model(self.task, self.task_level)
            proposed |= {key: value for key, value in sizes.items() if key in proposed}
        for name in ("dim", "heads", "mlp_ratio", "depth"):
            if getattr(self, name) is None:
                setattr(self, name, proposed[name])
        super().__post_init__()
        refusals = [why for cells in self.groups() for cell in cells if (why := self.refusal(cell) or "").startswith("refused: ")]
        if len(refusals) == sum(map(len, self.groups())):
            labels = ", ".join(layer.label for layer in self.layers)
            raise ValueError(
                f"none of {labels} can be built with these settings. Choose other sizes or options. The first error: "
                f"{refusals[0].removeprefix('refused: ')}"
            )

    @cached_property
    def sizes(self) -> Sizes:
        """Sizes of the network around the mechanism."""
        assert self.dim and self.heads and self.depth and self.mlp_ratio
        return Sizes(self.dim, self.heads, self.depth, self.mlp_ratio)

    def rig(self, cell: Cell) -> Rig:
        assert cell.subject is not None
        return rig_for(self.level, cell.subject, self.sizes, self.task_spec)

    def groups(self) -> list[list[Cell]]:
        return [[replace(layer, kind=kind, length=n) for layer in self.layers for kind in KINDS] for n in self.lengths]

    def once(self, cell: Cell) -> Sequence[Probe]:
        if cell.batch > 1:
            return ()
        cuda, budget = self.device == "cuda", int(self.memory_gib * 2**30)
        most = largest_batch(budget, cuda=cuda, small=lambda n: max(1, PROBE_TOKENS // n), least=self.least_bytes)
        return MEMORY, most, Probe("best_batch", self._best_batch)

    def _best_batch(self, ask: Ask, found: Figures) -> Answer:
        """Return the power of two with the highest throughput as a batch size, and the seconds of a step at each batch size that
        was tried."""
        cell, most = found.cell, found.one("largest_batch")
        seconds: list[float] = []
        rates: list[float] = []
        while True:
            batch = 2 ** len(rates)
            try:
                seconds.append(sum(ask("parts", cell.kind, batch, cell.length)))
            except WorkerError:
                if not rates:
                    raise
                break
            rates.append(batch / seconds[-1])
            without_gain = len(rates) - 1 - rates.index(max(rates))
            if without_gain == PATIENCE or (most is not None and 2 * batch > most) or 2 * seconds[-1] > self.batch_seconds:
                break
        return {"best_batch": 2 ** rates.index(max(rates)), "search_seconds": seconds}

    def timed(self, cells: Sequence[Cell], found: Measurement) -> list[Cell]:
        """Return the cases to time. A case is timed with batch size 1 and with its best batch size, which is the one with the
        highest throughput in an earlier search. Cases without a best batch size are left out."""
        known = [(cell, found.of(cell).one("best_batch")) for cell in cells if "seconds" not in found.of(cell).failures]
        return [replace(cell, batch=batch) for cell, best in known if best for batch in sorted({1, int(best)})]

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        return joined(found, _times(found, format), _memory(found, format), _notes(found))

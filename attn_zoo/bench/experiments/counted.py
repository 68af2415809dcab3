"""Experiment ``counted``: costs that are counted by formulas and from shapes of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from attn_zoo.bench.experiment import ROWS, Ask, Experiment, Values, attention_cells
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import binary, decimal, explained, joined, reason
from attn_zoo.bench.workers import WorkerError
from attn_zoo.checks import check_text
from attn_zoo.count.costs import count_subject, setting_warnings
from attn_zoo.count.subjects import SCOPES, Subject, geometry_of
from attn_zoo.registry import attention_options, card
from attn_zoo.rows import option
from attn_zoo.terminal import table

TITLES = {
    "flops": "FLOPs, forward",
    "backward_flops": "FLOPs, backward",
    "parameters": "Parameters",
    "activation_bytes": "Activations saved for the backward pass",
    "state_bytes": "Recurrent state",
}

WHAT = {"mechanism": "Mechanisms alone", "layer": "Layers with their projections"}
"""Names of what is counted, by scope."""

BASELINE = Cell("softmax, the measure", "", 0, role="baseline", subject=Subject("softmax", {}, "eager"))


@dataclass
class CountedExperiment(Experiment):
    """FLOPs, parameters and bytes of the recurrent state, computed by formulas, and bytes of activations, counted by PyTorch."""

    attention: list[str] = option(["softmax", "linformer", "performer", "longformer", "reformer"], ROWS)
    level: str = option("mechanism", "what is counted: mechanism, or layer (with its projections)")
    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], "sequence lengths in tokens")
    dim: int = option(256, "width of the layer, in channels")
    heads: int = option(4, "number of heads")
    causal: bool = option(False, "true if each position sees only itself and earlier ones; then there is a recurrent state")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("level", self.level, SCOPES)
        self.groups()

    def groups(self) -> list[list[Cell]]:
        cells = [
            replace(cell, kind="counted", subject=cell.subject and replace(cell.subject, causal=self.causal))
            for cell in (BASELINE, *attention_cells(self.attention))
        ]
        return [[replace(cell, length=n) for cell in cells] for n in sorted(self.lengths)]

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        return {"flops": self._count}

    def _count(self, ask: Ask, cell: Cell) -> Values:
        assert cell.subject is not None
        try:
            return asdict(count_subject(self.level, cell.subject, self.dim, self.heads, cell.length))
        except ValueError as error:
            raise WorkerError("refused", str(error)) from error

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        settings, cells = found.settings, [cell for cell in found.cells if cell.role != "baseline"]
        softmax = {cell.length: cell for cell in found.cells if cell.role == "baseline"}
        shown = [name for name in TITLES if name != "state_bytes" or settings["causal"]]
        parts = [f"**{TITLES[name]}**\n\n{_table(cells, softmax, name, format)}" for name in shown]
        where = f"width {settings['dim']}, {settings['heads']} heads{', causal' if settings['causal'] else ''}"
        notes = [f"{WHAT[settings['level']]}: {where}. {explained('counted')}"]
        notes += [] if settings["causal"] else ["Bidirectional attention has no recurrent state; causal=true shows it."]
        return joined(found, *parts, "\n".join(f"- {line}" for line in [*notes, *_remarks(cells, settings)]))


def _table(cells: Sequence[Cell], softmax: Mapping[int, Cell], name: str, format: str) -> str:
    lengths = sorted({cell.length for cell in cells})
    texts = {(cell.label, cell.length): _text(cell, softmax[cell.length], name) for cell in cells}
    rows = [[label, *(texts[label, length] for length in lengths)] for label in dict.fromkeys(cell.label for cell in cells)]
    return table(["attention", *(f"{length:,}" for length in lengths)], rows, format)


def _text(cell: Cell, softmax: Cell, name: str) -> str:
    count, of_softmax = cell.one(name), softmax.one(name)
    if count is None:
        return reason(cell, "flops")
    text = binary(count) if name.endswith("bytes") else decimal(count)
    times = count / of_softmax if of_softmax else None
    return text + ("" if times is None else f" ({times:.2g}×)" if times < 10 else f" ({times:,.0f}×)")


def _remarks(cells: Sequence[Cell], settings: Mapping[str, Any]) -> list[str]:
    """Return warnings and refusals, each once with the lengths to which it applies."""
    lengths: dict[str, list[int]] = {}
    for cell in cells:
        for line in _remarks_on(cell, settings):
            lengths.setdefault(line, []).append(cell.length)
    every = len({cell.length for cell in cells})
    where = {line: "every length" if len(at) == every else ", ".join(f"{n:,}" for n in at) for line, at in lengths.items()}
    return [f"{line} (at {at})" for line, at in where.items()]


def _remarks_on(cell: Cell, settings: Mapping[str, Any]) -> Iterator[str]:
    assert cell.subject is not None
    if cell.values:
        entry, geometry = card(cell.subject.attention), geometry_of(cell.subject, settings["dim"], settings["heads"], cell.length)
        yield from setting_warnings(entry, geometry, attention_options(entry, geometry, cell.subject.options))
    for why in cell.failures.values():
        yield f"{cell.label} is refused: {why.removeprefix('refused: ')}"

"""Cells and arms of Figure 3 of the Linformer paper.

A cell is the runs of one mechanism at one length, with one projected length k and one kind of sharing of E and F. An arm is the
setting under which cells are compared: with or without a short convolution, and with one initialisation of E and F.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import Estimate, estimate, paired
from attn_zoo.records import RunRecord

TASK = "masked_language"
SHARINGS = ("none", "headwise", "key_value", "layerwise")
TEST, REPEATED = "test", "test: repeated"
"""Names of scores in a record: perplexity on the whole test split, and on rare tokens that occur only at distant positions."""


USUAL_START = {"projection": "learned", "init": "random", "equalised": False, "frozen": False}
"""Options that decide how E and F are initialised and trained, with their defaults."""


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """Setting in which Figure 3 compares runs of different lengths, projected lengths and mechanisms. It is the width of the short
    convolution before attention, and the initialisation of Linformer's projections E and F."""

    convolution: int = 0
    """Width of the short convolution in tokens; 0 for a layer without one, as in the paper."""
    start: str = ""
    """Options that decide how E and F are initialised and trained, such as ``init=pooling, equalised``; empty for the defaults.
    Also empty for mechanisms without E and F, which are compared with Linformer under every initialisation."""

    @property
    def layer(self) -> str:
        """Description of the layer: ``bare`` if it has no short convolution, otherwise the width of the convolution."""
        return f"short convolution of {self.convolution}" if self.convolution else "bare"

    @property
    def name(self) -> str:
        """Description of the layer and, if it is not the default, of the initialisation of E and F."""
        return f"{self.layer}, {self.start}" if self.start else self.layer


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Setting of one point of Figure 3: several runs share it, and differ only in their seed."""

    arm: Arm
    length: int
    attention: str
    k: int = 0
    """Projected length; 0 for mechanisms other than Linformer."""
    sharing: str = ""

    @property
    def label(self) -> str:
        """Name of the cell in tables, such as ``linformer, k = 64, sharing=layerwise``."""
        return f"{self.attention}, k = {self.k}, sharing={self.sharing}" if self.k else self.attention


@dataclass(frozen=True, slots=True)
class Runs:
    """Finished runs of one cell, by seed."""

    by_seed: Mapping[int, RunRecord]

    def scores(self, part: str = TEST) -> dict[int, float]:
        """Return the perplexity on a part of the test split, by seed. Records without this part are left out."""
        return {seed: record.scores[part] for seed, record in self.by_seed.items() if part in record.scores}

    def perplexity(self, part: str = TEST) -> Estimate | None:
        """Return the mean perplexity on a part of the test split with its interval over seeds, or None if no record has
        this part.
        """
        return estimate(list(self.scores(part).values()))

    def against(self, other: Runs, part: str = TEST) -> Estimate | None:
        """Return the mean over common seeds of log(p / q). Here p is the perplexity of these runs, and q is the perplexity of
        ``other``.

        Without a common seed, return None.
        """
        ours, theirs = ({seed: math.log(score) for seed, score in runs.scores(part).items()} for runs in (self, other))
        return paired(ours, theirs)

    def curve(self) -> list[tuple[int, Estimate]]:
        """Return pairs of a step and the mean validation perplexity, at the steps that all seeds have."""
        points = grouped((int(point["step"]), point["valid"]) for record in self.by_seed.values() for point in record.curve)
        means = ((step, estimate(values)) for step, values in sorted(points.items()) if len(values) == len(self.by_seed))
        return [(step, mean) for step, mean in means if mean is not None]

    def counted(self, name: str) -> int:
        """Return the counted cost ``name`` of the network, such as ``parameters``, which is equal for all seeds."""
        return next(iter(self.by_seed.values())).counted[name]


@dataclass(frozen=True, slots=True)
class Figure:
    """Recorded runs for Figure 3 of the Linformer paper, by cell (mechanism and sizes), with the cells that each of its panels a
    to d compares."""

    cells: Mapping[Cell, Runs]

    @property
    def arms(self) -> list[Arm]:
        """Settings (each an ``Arm``) in which Linformer was run, those without a short convolution first.

        If only other mechanisms were run with a convolution, the setting with this convolution is added.
        """
        arms = {cell.arm for cell in self.cells if cell.k}
        return sorted(arms | {cell.arm for cell in self.cells if cell.arm.convolution not in {arm.convolution for arm in arms}})

    def linformer(self, arm: Arm) -> list[Cell]:
        """Return the cells (settings of one point of the figure) of Linformer with headwise sharing in one arm, sorted by length
        and projected length."""
        return sorted(cell for cell in self.cells if (cell.arm, cell.sharing) == (arm, "headwise"))

    def by_length(self, arm: Arm) -> dict[int, list[Cell]]:
        """Return the cells (settings of one point of the figure) for panels a and b in one arm, by length. Only lengths with
        several projected lengths k are included, the smallest k first."""
        found = grouped((cell.length, cell) for cell in self.linformer(arm))
        return {length: cells for length, cells in found.items() if len(cells) > 1}

    def by_sharing(self, arm: Arm) -> list[Cell]:
        """Return the cells (settings of one point of the figure) for panel c in one arm. They differ in the sharing of E and F.

        The panel uses one length and one projected length: the pair with the largest number of kinds of sharing.
        """
        found = grouped(((cell.length, cell.k), cell) for cell in sorted(self.cells) if cell.k and cell.arm == arm)
        cells = max(found.values(), key=len, default=[])
        return sorted(cells, key=lambda cell: SHARINGS.index(cell.sharing)) if len(cells) > 1 else []

    def by_fixed_k(self, arm: Arm) -> list[Cell]:
        """Return the cells (settings of one point of the figure) for panel d in one arm. They differ in length, the shortest
        first.

        The panel uses one projected length: the one that was run at the largest number of lengths.
        """
        cells = max(grouped((cell.k, cell) for cell in self.linformer(arm)).values(), key=len, default=[])
        return cells if len(cells) > 1 else []

    def find(self, arm: Arm, length: int, attention: str, k: int = 0, sharing: str = "") -> Runs | None:
        """Return the runs of one cell (setting of one point of the figure), or None if there are none.

        Args:
            k: projected length; 0 for mechanisms other than Linformer.
            sharing: kind of sharing of E and F; empty for mechanisms other than Linformer.
        """
        return self.cells.get(Cell(arm if k else Arm(arm.convolution), length, attention, k, sharing))


def read_figure(records: Iterable[RunRecord]) -> Figure:
    """Return the figure made from those records that are finished runs of masked language models. Trials of searches are left out.

    Raises:
        ValueError: the records are of several experiments, which must not be compared in one figure.
    """
    cells: dict[Cell, dict[int, RunRecord]] = defaultdict(dict)
    settings = set()
    for record in records:
        if record.spec.task != TASK or record.is_trial or record.status != "done":
            continue
        settings.add(_setting(record))
        kept = cells[cell_of(record)].setdefault(record.spec.seed, record)
        if kept.run_id != record.run_id:
            settings.add(record.run_id)
    if len(settings) > 1:
        raise ValueError(
            "all runs of the figure must have the same data, network and budget, with one learning rate per cell; got "
            f"{len(settings)} different settings. Keep each experiment in a folder of its own, and name this folder with "
            "--records"
        )
    return Figure({cell: Runs(dict(sorted(runs.items()))) for cell, runs in sorted(cells.items())})


def cell_of(record: RunRecord) -> Cell:
    """Return the cell (setting without the seed) to which the record of a masked language model belongs."""
    spec = record.spec
    length, convolution = int(spec.task_options["length"]), spec.model.short_convolution
    if spec.attention != "linformer":
        return Cell(Arm(convolution), length, spec.attention)
    chosen = {name: spec.options[name] for name, usual in USUAL_START.items() if spec.options.get(name, usual) != usual}
    arm = Arm(convolution, ", ".join(name if value is True else f"{name}={value}" for name, value in chosen.items()))
    return Cell(arm, length, spec.attention, int(spec.options["projected_length"]), str(spec.options["sharing"]))


def _setting(record: RunRecord) -> str:
    """Settings that all cells of a figure share."""
    data = record.spec.to_dict()
    apart = {"task_options": ("length",), "model": ("short_convolution",), "budget": ("batch_size", "learning_rate")}
    shared = {part: {name: value for name, value in data[part].items() if name not in own} for part, own in apart.items()}
    return json.dumps([record.protocol, record.task_card["version"], data["precision"], shared], sort_keys=True, default=str)

"""The committed results, and what of them concerns one attention or task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from peer_comparisons import BASELINE, compared_rows
from peers import PRODUCT, Peers

from attn_zoo import reference
from attn_zoo.bench.crossover_analysis import labels
from attn_zoo.bench.experiments.crossover import Crossover
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.cli.analyze import error_table
from attn_zoo.leaderboard import Row, Table, tables
from attn_zoo.leaderboard.community import community_text, submissions
from attn_zoo.records import Store
from zoo_pages.texts import aligned

BOARDS: Mapping[str, str] = {
    "quickstart": "attn-zoo run -m experiment=quickstart",
    "family": "attn-zoo run -m experiment=family",
    "lra_cpu": "attn-zoo run -m experiment=lra_cpu",
    "tasks_cpu": "attn-zoo run level=cpu",
}
"""Folders of records that are shown, with what made them."""


class Results:
    """What lies in a folder of results. What is not there has not been measured, and the pages say so.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def picture(self, name: str) -> bytes | None:
        """A picture of the folder, or None."""
        path = self.root / name
        return path.read_bytes() if path.exists() else None

    @cached_property
    def boards(self) -> dict[str, list[Table]]:
        """Tables by folder, of the folders that hold any."""
        found = {name: tables(Store(self.root / name).load()[0]) for name in BOARDS if (self.root / name).is_dir()}
        return {name: made for name, made in found.items() if made}

    def rows_of(self, attention: str) -> list[tuple[str, Table, Row]]:
        """Folder, table and row of every row of an attention."""
        return [(name, t, row) for name, made in self.boards.items() for t in made for row in t.rows if row.attention == attention]

    def boards_of(self, task: str) -> list[tuple[str, Table]]:
        """Folder and table of every table of a task."""
        return [(name, table) for name, made in self.boards.items() for table in made if table.task["name"] == task]

    @cached_property
    def community(self) -> str:
        """Dated list of the submissions of other people, and our tables with their rows."""
        shipped = [record for name in reference.shipped() for record in Store(reference.packed_file(name)).load()[0]]
        return community_text(submissions(self.root / "community"), shipped)

    def crossover(self, attention: str | None = None) -> str | None:
        """From which length an attention costs less than softmax, or all that were measured; None where none was."""
        found = self._measured("crossover")
        if found is None:
            return None
        measured = Measurement.from_dict(found)
        measured.cells = {cell: own for cell, own in measured.cells.items() if _concerns(cell, attention)}
        return aligned(Crossover.report(measured)) if labels(list(measured.cells.values()), "mechanism") else None

    def peers(self, attention: str) -> str | None:
        """The comparison of an attention's layers with public packages', or None where there is none."""
        found = self._measured("peers")
        if found is None:
            return None
        measured = Measurement.from_dict(found)
        rows = compared_rows(measured.grid["mechanisms"])
        names = [name for name, row in rows.items() if row.attention == attention]
        if not names:
            return None
        kept = (*names, BASELINE, PRODUCT)
        measured.cells = {cell: own for cell, own in measured.cells.items() if cell.role in kept}
        measured.grid = {
            **measured.grid,
            "mechanisms": [text for text in measured.grid["mechanisms"] if text.partition("[")[0] in names],
        }
        for own in (own for cell, own in measured.cells.items() if cell.role == BASELINE):
            own.failures = {}
        return aligned(Peers.report(measured))

    def errors(self, attention: str, inputs: str) -> str | None:
        """Distance of an attention to softmax on ``error`` (a pretrained encoder's) or ``error_random`` inputs."""
        found = self._measured(inputs)
        if found is None:
            return None
        rows = [row for row in found["rows"] if row["attention"] == attention]
        refused = [row for row in found["refused"] if row["attention"] == attention]
        return aligned(error_table({**found, "rows": rows, "refused": refused}, "github")) if rows else None

    def _measured(self, name: str) -> Any:
        path = self.root / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _concerns(cell: Cell, attention: str | None) -> bool:
    """Tell whether a cell is of softmax, or of the attention; of any where none is given."""
    assert cell.subject is not None
    return cell.role != "mechanism" or attention in (None, cell.subject.attention)

"""The committed results, and what of them concerns one attention or task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peer_comparisons import BASELINE, COMPARISONS, OURS, compared_rows
from peers import PRODUCT, Peers

from attn_zoo import reference
from attn_zoo.analysis.error import error_table
from attn_zoo.bench.compare import quartiles, quotients
from attn_zoo.bench.experiment import KINDS
from attn_zoo.bench.experiments.crossover import CrossoverExperiment, compared
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.leaderboard import Row, Table, tables
from attn_zoo.leaderboard.community import community_text, submissions
from attn_zoo.leaderboard.page import ResultSet
from attn_zoo.recommend.verdicts import Ability, abilities
from attn_zoo.records import Store
from attn_zoo.records.files import NAME
from attn_zoo.registry import not_causal
from zoo_pages.texts import aligned

BOARDS: Mapping[str, str] = {
    "quickstart": "attn-zoo run -m experiment=quickstart",
    "family": "attn-zoo run -m experiment=family",
    "lra_cpu": "attn-zoo run -m experiment=lra_cpu",
    "tasks_cpu": "attn-zoo run level=cpu",
}
"""Folders of records that are shown, with what made them."""


def shown_sets() -> str:
    """Return the names of the sets of results that the pages of mechanisms and tasks show, as Markdown."""
    *others, last = (f"`{name}`" for name in BOARDS)
    return f"{', '.join(others)} and {last}"


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
    def sets(self) -> list[ResultSet]:
        """Every folder of records with its tables: the sets that the package has, then the others by name."""
        names = sorted(path.parent.name for path in self.root.glob(f"*/{NAME}"))
        names.sort(key=lambda name: reference.SETS.index(name) if name in reference.SETS else len(reference.SETS))
        loaded = {name: Store(self.root / name).load()[0] for name in names}
        return [ResultSet(tables(records), records, name, not_causal()) for name, records in loaded.items()]

    @cached_property
    def boards(self) -> dict[str, list[Table]]:
        """Tables by folder of ``BOARDS``, of the folders that hold any."""
        return {name: made for each in self.sets if (name := each.name) in BOARDS and (made := list(each.tables))}

    @cached_property
    def abilities(self) -> list[Ability]:
        """Abilities of the profile; empty without its records."""
        if not any(each.name == "profile" for each in self.sets):
            return []
        return abilities(tables(Store(reference.packed_file("profile")).load()[0]))  # the newest runs of each task

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
        measured.cells = {cell: cell for cell in measured.cells if _concerns(cell, attention)}
        return aligned(CrossoverExperiment.report(measured)) if compared(measured.cells) else None

    def peers(self, attention: str) -> str | None:
        """The comparison of an attention's layers with public packages', or None where there is none."""
        found = self._beside_peers(attention)
        return aligned(Peers.report(found)) if found else None

    def speeds(self, attention: str) -> list[str]:
        """Return a sentence for each public layer that an attention was timed beside, and each length."""
        found = self._beside_peers(attention)
        if found is None:
            return []
        by = {(cell.role, cell.group, cell.kind, cell.length): cell.all("seconds") for cell in found.cells}
        sides = dict.fromkeys((cell.role, cell.group, cell.length) for cell in found.cells if cell.role in COMPARISONS)
        lines = []
        for name, side, length in sides:
            pairs = {words: quotients(by[name, OURS, kind, length], by[name, side, kind, length]) for kind, words in KINDS.items()}
            told = [f"{quartiles(each)[1]:.2f} times the time ({words})" for words, each in pairs.items() if each]
            if side != OURS and told:
                peer = COMPARISONS[name].peers[side]
                package = f"{peer.package} {found.facts['peer'][peer.package]}"
                lines.append(f"At {length:,} tokens it takes {' and '.join(told)} of {peer.what} of {package}.")
        return lines

    def _beside_peers(self, attention: str) -> Measurement | None:
        """Return what was measured of an attention's layers beside public ones; None without a comparison."""
        for found in filter(None, map(self._measured, ("peers", "peers_recurrences"))):
            measured = Measurement.from_dict(found)
            rows = compared_rows(measured.settings["mechanisms"])
            names = [name for name, row in rows.items() if row.attention == attention]
            if names:
                return _of_comparisons(measured, names)
        return None

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


def _of_comparisons(measured: Measurement, names: Sequence[str]) -> Measurement:
    """Return a measurement with these comparisons alone, and with full attention and the matrix product beside them."""
    cells = {cell: cell for cell in measured.cells if cell.role in (*names, BASELINE, PRODUCT)}
    mechanisms = [text for text in measured.settings["mechanisms"] if text.partition("[")[0] in names]
    for cell in cells:
        if cell.role == BASELINE:
            cell.failures.clear()
    return replace(measured, cells=cells, settings={**measured.settings, "mechanisms": mechanisms})

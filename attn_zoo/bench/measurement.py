"""Result of a measurement, and the JSON file in which it is saved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.count.subjects import Subject
from attn_zoo.result_files import write_text

NO_TIME = "no time left"
"""First words of the recorded reason if a case was left out because of the time limit. The same command measures the case later."""


@dataclass(frozen=True)
class Cell:
    """One case to measure, with its measured values: a layer, a kind of step (forward or training), a length in tokens and a number
    of examples.

    ``label`` names the layer in tables. ``role`` says what the layer is for in the report: for example, ``sdpa`` is a baseline.
    ``group`` distinguishes cases that are otherwise equal. Two cells are equal if these names and sizes are, except the role.
    """

    label: str
    kind: str
    """Kind of step: ``forward``, ``training``, or another value that the experiment defines."""
    length: int
    batch: int = 1
    group: str = ""
    role: str = field(default="mechanism", compare=False)
    subject: Subject | None = field(default=None, compare=False)
    values: dict[str, list[float | None]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Measured values of each quantity, in the order of the rounds."""
    failures: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Reason of the failure of each quantity that failed. It begins with ``OOM``, ``time limit``, ``refused``, ``failed`` or ``no
    time left``."""

    def all(self, quantity: str) -> list[float]:
        """Return all measured values of a quantity such as ``seconds``, in the order of the rounds."""
        return [value for value in self.values.get(quantity, ()) if value is not None]

    def one(self, quantity: str) -> float | None:
        """Return the value of a quantity that is measured only once, such as ``peak_bytes``. Return None if it has no value."""
        return next(iter(self.values.get(quantity, ())), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the names and sizes of the case, without its values, as a dictionary for JSON."""
        names = ("label", "kind", "length", "batch", "group", "role")
        return {**{name: getattr(self, name) for name in names}, "subject": self.subject and asdict(self.subject)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the case from the dictionary that ``to_dict`` made of it."""
        return cls(**{**data, "subject": data["subject"] and Subject(**data["subject"])})


@dataclass
class Measurement:
    """Result of one experiment: its settings, timing protocol and environment, and the cells with the measured values."""

    experiment: str
    settings: dict[str, Any]
    """Keys of the command line with their values, including defaults of the device."""
    protocol: TimingProtocol | None
    environment: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about this machine, such as versions of packages."""
    complete: bool = False
    cells: dict[Cell, Cell] = field(default_factory=dict)
    """The cells by themselves: a cell without values finds the equal one with values."""

    def of(self, cell: Cell) -> Cell:
        """Return the cell of this measurement that is equal to ``cell``. If there is none, ``cell`` is added."""
        return self.cells.setdefault(cell, cell)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one dictionary for each measured value and for each failure, with the index of the cell, the quantity, the
        round, and the value or the reason for the failure."""
        for at, cell in enumerate(self.cells):
            for quantity, values in cell.values.items():
                for turn, value in enumerate(values):
                    yield {"cell": at, "quantity": quantity, "round": turn, "value": value}
            for quantity, failure in cell.failures.items():
                yield {"cell": at, "quantity": quantity, "round": len(cell.values.get(quantity, ())), "failure": failure}

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as a dictionary that can be saved as JSON."""
        return {
            **{name: getattr(self, name) for name in ("experiment", "environment", "facts", "complete")},
            "grid": self.settings,
            "protocol": self.protocol and self.protocol.to_dict(),
            "cells": [cell.to_dict() for cell in self.cells],
            "rows": list(self.rows()),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the dictionary that ``to_dict`` made of it.

        Raises:
            LookupError, TypeError, AttributeError: the data are not a complete measurement.
        """
        protocol = data["protocol"] and TimingProtocol.from_dict(data["protocol"])
        made = cls(data["experiment"], data["grid"], protocol, data["environment"], data["facts"], data["complete"])
        cells = [made.of(Cell.from_dict(each)) for each in data["cells"]]
        for row in data["rows"]:
            cell = cells[row["cell"]]
            if "failure" in row:
                cell.failures[row["quantity"]] = row["failure"]
            else:
                cell.values.setdefault(row["quantity"], []).append(row["value"])
        return made

    def write(self, file: Path) -> None:
        """Write the measurement to a JSON file, with one line for each cell and one for each value."""
        plain = self.to_dict()
        lists = {name: ",\n".join(json.dumps(each, sort_keys=True) for each in plain.pop(name)) for name in ("cells", "rows")}
        head = json.dumps(plain, indent=1, sort_keys=True).removesuffix("\n}")
        body = ",\n".join(f' "{name}": [\n{lines}\n ]' for name, lines in lists.items())
        write_text(file, f"{head},\n{body}\n}}\n")

    @property
    def finished(self) -> bool:
        """True if the measurement was not interrupted, and no case was left out because of the time limit."""
        return self.complete and not any(why.startswith(NO_TIME) for cell in self.cells for why in cell.failures.values())

    def take_over(self, earlier: Measurement) -> None:
        """Replace all values and failures by those of an earlier measurement with the same settings. Failures for lack of time are
        dropped, so their cells are measured again. So are failures of cells that took longer than ``time_limit`` if this limit is
        higher now. All times at the lengths of these cells are dropped too, because times are compared within rounds."""
        raised = self.settings.get("time_limit", 0) > earlier.settings.get("time_limit", math.inf)
        again = (NO_TIME, "time limit") if raised else (NO_TIME,)
        self.cells, untimed = earlier.cells, set[int]()
        for cell in self.cells:
            for quantity in [what for what, why in cell.failures.items() if why.startswith(again)]:
                del cell.failures[quantity]
                untimed |= {cell.length} if quantity == "seconds" else set()
        for cell in self.cells:
            for quantity in ("seconds", "backward_seconds") if cell.length in untimed else ():
                cell.values.pop(quantity, None)

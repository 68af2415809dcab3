"""Result of a measurement, and the JSON file in which it is saved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.count.rigs import Subject
from attn_zoo.result_files import read_results, write_text

NO_TIME = "no time left"
"""First words of the recorded reason if a case was left out because of the time limit. The same command measures the case later."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One case to measure: a layer, a kind of step (forward or training), a length in tokens and a number of examples.

    ``label`` names the layer in tables. ``role`` says what the layer is for in the report: for example, ``sdpa`` is a baseline.
    ``group`` distinguishes cases that are otherwise equal, such as repetitions.
    """

    label: str
    kind: str
    """Kind of step: ``forward``, ``training``, or another value that the experiment defines."""
    length: int
    batch: int = 1
    group: str = ""
    role: str = field(default="mechanism", compare=False)
    subject: Subject | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the case from the dictionary that ``dataclasses.asdict`` made of it."""
        subject = data.get("subject")
        return cls(**{**data, "subject": None if subject is None else Subject(**subject)})


@dataclass(slots=True)
class Figures:
    """Values that were measured for one case (a layer, a kind of step and a length), and reasons of failures."""

    cell: Cell
    values: dict[str, list[float | None]] = field(default_factory=dict)
    """Measured values of each quantity, in the order of the rounds. None stands for a round without a value."""
    failures: dict[str, str] = field(default_factory=dict)
    """Reason of the failure of each quantity that failed. It begins with ``OOM``, ``time limit``, ``refused``, ``failed`` or ``no
    time left``."""

    def all(self, quantity: str) -> list[float]:
        """Return all measured values of a quantity such as ``seconds``, in the order of the rounds."""
        return [value for value in self.values.get(quantity, ()) if value is not None]

    def one(self, quantity: str) -> float | None:
        """Return the value of a quantity that is measured only once, such as ``peak_bytes``. Return None if it has no value."""
        return next(iter(self.values.get(quantity, ())), None)


@dataclass
class Measurement:
    """Result of one experiment: its settings, timing protocol and environment, and the values that were measured for each case (a
    layer, a kind of step and a length)."""

    experiment: str
    grid: dict[str, Any]
    """Keys of the command line with their values, including defaults of the device."""
    protocol: TimingProtocol | None
    environment: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about this machine, such as versions of packages."""
    complete: bool = False
    cells: dict[Cell, Figures] = field(default_factory=dict)

    def of(self, cell: Cell) -> Figures:
        """Return the measured values of a case (``cell``). If the case is new, it is added without values."""
        return self.cells.setdefault(cell, Figures(cell))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one dictionary for each measured value and for each failure, with the index of the case, the quantity, the
        round, and the value or the reason for the failure."""
        for at, found in enumerate(self.cells.values()):
            for quantity, values in found.values.items():
                for turn, value in enumerate(values):
                    yield {"cell": at, "quantity": quantity, "round": turn, "value": value}
            for quantity, failure in found.failures.items():
                yield {"cell": at, "quantity": quantity, "round": len(found.values.get(quantity, ())), "failure": failure}

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as a dictionary that can be saved as JSON."""
        names = ("experiment", "grid", "environment", "facts", "complete")
        return {
            **{name: getattr(self, name) for name in names},
            "protocol": None if self.protocol is None else self.protocol.to_dict(),
            "cells": [asdict(cell) for cell in self.cells],
            "rows": list(self.rows()),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the dictionary that ``to_dict`` made of it.

        Raises:
            LookupError, TypeError, AttributeError: the data are not a complete measurement.
        """
        protocol = data["protocol"]
        made = cls(data["experiment"], data["grid"], protocol and TimingProtocol.from_dict(protocol), data["environment"])
        made.facts, made.complete = data["facts"], data["complete"]
        figures = [made.of(Cell.from_dict(cell)) for cell in data["cells"]]
        for row in data["rows"]:
            found = figures[row["cell"]]
            if "failure" in row:
                found.failures[row["quantity"]] = row["failure"]
            else:
                found.values.setdefault(row["quantity"], []).append(row["value"])
        return made

    @classmethod
    def read(cls, key: str, experiment: str, file: Path) -> Measurement:
        """Return the measurement that a file contains.

        Args:
            key: key of the command line that names the file, for error messages.
            experiment: name of the experiment that must have made the measurement.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file contains no measurement, an incomplete measurement, or a measurement of another experiment.
        """
        try:
            return cls.from_dict(read_results(file, experiment, key))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} must be a complete measurement, but is not ({type(error).__name__}: {error}). Measure again"
            ) from error

    def write(self, file: Path) -> None:
        """Write the measurement to a JSON file, with one line for each case and one for each value."""
        plain = self.to_dict()
        lists = {name: ",\n".join(json.dumps(each, sort_keys=True) for each in plain.pop(name)) for name in ("cells", "rows")}
        head = json.dumps(plain, indent=1, sort_keys=True).removesuffix("\n}")
        body = ",\n".join(f' "{name}": [\n{lines}\n ]' for name, lines in lists.items())
        write_text(file, f"{head},\n{body}\n}}\n")

    @property
    def finished(self) -> bool:
        """True if the measurement was not interrupted, and no case was left out because of the time limit."""
        return self.complete and not any(why.startswith(NO_TIME) for f in self.cells.values() for why in f.failures.values())

    def take_over(self, earlier: Measurement) -> None:
        """Replace all values and failures by those of an earlier measurement with the same settings. Failures that are due to
        the time limit are dropped, so their cases are measured again. So are cases that took longer than ``time_limit`` if this
        limit is higher now."""
        raised = self.grid.get("time_limit", 0) > earlier.grid.get("time_limit", math.inf)
        again = (NO_TIME, "time limit") if raised else (NO_TIME,)
        self.cells = earlier.cells
        for found in self.cells.values():
            found.failures = {what: why for what, why in found.failures.items() if not why.startswith(again)}

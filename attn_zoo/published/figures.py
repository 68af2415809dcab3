"""The literature's figures: read from ``data``, one file a source, in the digits they were printed in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

SCORE = "accuracy"
"""Metric of the figures that stand beside a test score."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures were published, and what to know of all of them."""

    name: str
    title: str
    authors: str
    year: int
    identifier: str
    """arXiv number, or repository and file."""
    hardware: str
    seeds: int | None = None
    """Runs that a figure is of; None where it is not said."""
    flaws: tuple[str, ...] = ()

    @property
    def cite(self) -> str:
        """``Tay et al. 2020, arXiv:2011.04006``."""
        return f"{self.authors} {self.year}, {self.identifier}"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a figure was made. None: the source does not say, or nobody has looked."""

    data: str | None = None
    """As our tables name data, so that equal names mean the same data."""
    length: int | None = None
    """Tokens; of a pair, those of one of the two."""
    depth: int | None = None
    dim: int | None = None
    """Width of the embedding."""
    heads: int | None = None
    ffn: int | None = None
    """Width of the feed-forward network."""
    steps: int | None = None
    batch_size: int | None = None
    optimiser: str | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    chosen_on: str | None = None
    """The split that chose which weights were tested."""
    flaws: tuple[str, ...] = ()
    """Those of this task; see ``Source.flaws`` for those of all."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One printed number."""

    source: Source
    where: str
    """Table, or section."""
    model: str
    """As printed."""
    column: str
    """As printed."""
    metric: str
    unit: str
    printed: str
    """The digits as they stand there."""
    attention: str | None
    """What our registry calls it; None for what is not in the zoo."""
    task: str | None
    """What our registry calls it; None for what is no task here."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those options of ours that the source gives."""
    protocol: Protocol = Protocol()
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The number."""
        return float(self.printed)


@dataclass(frozen=True, slots=True)
class Average:
    """The mean over a row of scores, computed, beside what the source prints for it."""

    source: Source
    where: str
    model: str
    attention: str | None
    computed: Decimal
    printed: Mapping[str, str]
    """By place."""

    @property
    def wrong(self) -> Mapping[str, str]:
        """The printed ones that are not the mean, rounded either way at a tie."""
        return {place: digits for place, digits in self.printed.items() if not _rounds_to(self.computed, Decimal(digits))}


def sources() -> tuple[Source, ...]:
    """All sources, in the order of their years."""
    return tuple(sorted((entry.source for entry in _entries()), key=lambda source: (source.year, source.name)))


def figures(task: str | None = None, attention: str | None = None, metric: str | None = None) -> tuple[Figure, ...]:
    """All figures, or those of a task, an attention (both as our registry names them) or a metric."""
    return tuple(
        figure
        for entry in _entries()
        for figure in entry.figures
        if (task is None or figure.task == task)
        and (attention is None or figure.attention == attention)
        and (metric is None or figure.metric == metric)
    )


def published_for(task: str, attention: str) -> tuple[Figure, ...]:
    """The scores that were published for an attention on a task, by source; empty where there are none."""
    return figures(task, attention, SCORE)


def averages() -> tuple[Average, ...]:
    """The averages over tasks that sources print, computed anew."""
    return tuple(average for entry in _entries() for average in entry.averages)


@dataclass(frozen=True, slots=True)
class _Entry:
    source: Source
    figures: tuple[Figure, ...]
    averages: tuple[Average, ...]


@cache
def _entries() -> tuple[_Entry, ...]:
    folder = files("attn_zoo.published").joinpath("data")
    found = [_entry(tomllib.loads(path.read_text(encoding="utf-8"))) for path in folder.iterdir() if path.name.endswith(".toml")]
    return tuple(sorted(found, key=lambda entry: (entry.source.year, entry.source.name)))


def _entry(data: Mapping[str, Any]) -> _Entry:
    source = Source(**{**data["source"], "flaws": tuple(data["source"].get("flaws", ()))})
    protocols = data.get("protocols", {})
    rows = [(table, row) for table in data["tables"] for row in table["rows"]]
    found = tuple(figure for table, row in rows for figure in _figures(source, protocols, table, row))
    means = tuple(_average(source, table, row) for table, row in rows if "average" in row)
    return _Entry(source, found, means)


def _figures(source: Source, protocols: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Figure]:
    for column, printed in zip(table["columns"], row["figures"].split(), strict=True):
        if printed == "-":
            continue
        told = {**{key: value for key, value in table.items() if key not in ("columns", "rows")}, **column, **row}
        given = protocols.get(told.get("task", ""), {})
        protocol, options = _protocol(given, (told.get("attention"), told["model"]))
        if "length" in told:
            protocol = replace(protocol, length=told["length"])
        yield Figure(
            source=source,
            where=table["where"],
            model=row["model"],
            column=column["name"],
            metric=told["metric"],
            unit=told["unit"],
            printed=printed,
            attention=told.get("attention"),
            task=told.get("task"),
            options={**column.get("options", {}), **row.get("options", {}), **options},
            protocol=protocol,
            notes=tuple(row.get("notes", ())),
        )


def _protocol(given: Mapping[str, Any], names: Sequence[str | None]) -> tuple[Protocol, dict[str, Any]]:
    """A task's protocol with what is special to the attention or model, and the options among that."""
    special = {key: value for name in names for key, value in given.get("of", {}).get(name, {}).items()}
    options = special.pop("options", {})
    facts = {**{key: value for key, value in given.items() if key != "of"}, **special}
    return Protocol(**{**facts, "flaws": tuple(facts.get("flaws", ()))}), options


def _average(source: Source, table: Mapping[str, Any], row: Mapping[str, Any]) -> Average:
    scores = [Decimal(digits) for digits in row["figures"].split()]
    printed = {table["where"]: row["average"], **row.get("average_elsewhere", {})}
    return Average(source, table["where"], row["model"], row.get("attention"), sum(scores, Decimal()) / len(scores), printed)


def _rounds_to(exact: Decimal, printed: Decimal) -> bool:
    places = printed.as_tuple().exponent
    assert isinstance(places, int), "a printed number is finite"
    return abs(exact - printed) <= Decimal(1).scaleb(places) / 2

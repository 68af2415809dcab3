"""Published numbers as their sources print them. The folder ``data`` holds one TOML file per source."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

SCORE = "accuracy"
"""Metric of the published numbers that are shown beside recorded test scores."""


@dataclass(frozen=True, slots=True)
class Source:
    """Publication, with facts that hold for all of its numbers."""

    name: str
    title: str
    authors: str
    year: int
    identifier: str
    """arXiv number, or repository and file."""
    hardware: str
    seeds: int | None = None
    """Number of runs per published number; None if the publication does not state it."""
    flaws: tuple[str, ...] = ()

    @property
    def cite(self) -> str:
        """Citation of the publication, such as ``Tay et al. 2020, arXiv:2011.04006``."""
        return f"{self.authors} {self.year}, {self.identifier}"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Experimental settings of a published number. None marks a setting that the source does not state or that was not
    looked up.
    """

    data: str | None = None
    """Name of the data as in attn-zoo's tables; equal names mean equal data."""
    causal: bool = False
    """True if the mechanism is causal, False if it is bidirectional."""
    length: int | None = None
    """Sequence length in tokens; for pairs, the length of one of the two."""
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
    """Split on which the tested weights were selected."""
    flaws: tuple[str, ...] = ()
    """Flaws of the results on this task. ``Source.flaws`` has the flaws of all results."""

    @property
    def direction(self) -> str:
        """Direction of the mechanism: ``causal`` or ``bidirectional``."""
        return "causal" if self.causal else "bidirectional"


@dataclass(frozen=True, slots=True)
class Figure:
    """Published number as its source prints it, with its model, metric, task and settings."""

    source: Source
    where: str
    """Table or section of the source."""
    model: str
    """Name of the model, as printed."""
    column: str
    """Name of the column, as printed."""
    metric: str
    unit: str
    printed: str
    """Number, as printed."""
    attention: str | None
    """Registered name of the mechanism; None if attn-zoo does not have it."""
    task: str | None
    """Registered name of the task; None if attn-zoo does not have it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the mechanism that the source states."""
    protocol: Protocol = Protocol()
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The printed number as a float."""
        return float(self.printed)


def figures(task: str | None = None, attention: str | None = None, metric: str | None = None) -> tuple[Figure, ...]:
    """Return all published numbers, or only those of one task, one mechanism (both by registered name) or one metric."""
    return tuple(
        figure
        for figure in _figures()
        if (task is None or figure.task == task)
        and (attention is None or figure.attention == attention)
        and (metric is None or figure.metric == metric)
    )


def published_for(task: str, attention: str) -> tuple[Figure, ...]:
    """Return the published scores of a mechanism on a task, sorted by source."""
    return figures(task, attention, SCORE)


@cache
def _figures() -> tuple[Figure, ...]:
    """Return all published numbers, sorted by the year and name of their source."""
    folder = files("attn_zoo.published").joinpath("data")
    data = [tomllib.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir() if path.name.endswith(".toml")]
    data.sort(key=lambda one: (one["source"]["year"], one["source"]["name"]))
    return tuple(figure for one in data for figure in _of_source(one))


def _of_source(data: Mapping[str, Any]) -> Iterator[Figure]:
    source = Source(**{**data["source"], "flaws": tuple(data["source"].get("flaws", ()))})
    for table in data["tables"]:
        for row in table["rows"]:
            yield from _of_row(source, data.get("protocols", {}), table, row)


def _of_row(source: Source, protocols: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Figure]:
    for column, printed in zip(table["columns"], row["figures"].split(), strict=True):
        if printed == "-":
            continue
        merged = {**{key: value for key, value in table.items() if key not in ("columns", "rows")}, **column, **row}
        given = protocols.get(merged.get("task", ""), {})
        protocol, options = _protocol(given, (merged.get("attention"), merged["model"]))
        if "length" in merged:
            protocol = replace(protocol, length=merged["length"])
        yield Figure(
            source=source,
            where=table["where"],
            model=row["model"],
            column=column["name"],
            metric=merged["metric"],
            unit=merged["unit"],
            printed=printed,
            attention=merged.get("attention"),
            task=merged.get("task"),
            options={**column.get("options", {}), **row.get("options", {}), **options},
            protocol=protocol,
            notes=tuple(row.get("notes", ())),
        )


def _protocol(given: Mapping[str, Any], names: Sequence[str | None]) -> tuple[Protocol, dict[str, Any]]:
    """Return the protocol and the options of a task. Settings that a source states for this mechanism or model alone take
    precedence."""
    special = {key: value for name in names for key, value in given.get("of", {}).get(name, {}).items()}
    options = special.pop("options", {})
    facts = {**{key: value for key, value in given.items() if key != "of"}, **special}
    return Protocol(**{**facts, "flaws": tuple(facts.get("flaws", ()))}), options

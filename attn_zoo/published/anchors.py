"""Anchors: for each mechanism and direction (bidirectional, causal), a published score on a similar task, or a note that we
found none."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from attn_zoo.published.figures import Figure, figures


@dataclass(frozen=True, slots=True)
class Anchor:
    """Published score that is shown beside the recorded score of the same mechanism."""

    figure: Figure | None
    """The published score; None if none was found."""
    task: str
    """Task of the published score, in words; empty without a score."""
    differs: str
    """How the protocol of the publication differs from ours. Without a score, this text says where we looked for one."""


@cache
def anchors() -> Mapping[tuple[str, bool], Anchor]:
    """Return the anchors (published scores to compare with) by mechanism and direction (True for causal). The ability profile (one
    task per ability) does not include other mechanisms."""
    data = tomllib.loads(files("attn_zoo.published").joinpath("anchors.toml").read_text(encoding="utf-8"))
    known = {(figure.source.name, figure.where, figure.model, figure.column): figure for figure in figures()}
    found = {}
    for group in data["groups"]:
        for attention, model in group["models"].items():
            figure = known[group["source"], group["where"], model, group["column"]]
            found[attention, group["causal"]] = Anchor(figure, group["task"], group["differs"])
    for row in data["absent"]:
        found.update({(row["attention"], causal): Anchor(None, "", row["looked"]) for causal in row["causal"]})
    return MappingProxyType(found)

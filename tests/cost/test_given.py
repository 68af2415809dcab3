"""Layers that code has built, measured in processes of their own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from attn_zoo.cost.bench import Subject, build_layer
from attn_zoo.cost.given import measure_layers
from attn_zoo.cost.measurement import Cell


def refuse(length: int) -> nn.Module:
    raise ValueError(f"no layer of {length} tokens")


def test_given_layers_are_measured_and_a_refusal_is_a_reason():
    torch.set_num_threads(1)
    subjects = {name: Subject(name, {}, "auto") for name in ("softmax", "uniform")}
    builds = {Cell(name, "training", 32, 2, subject=s): partial(build_layer, s, 16, 2) for name, s in subjects.items()}
    refused = Cell("refused", "training", 32, 2, subject=Subject("softmax", {}))
    told: list[str] = []
    found = measure_layers({**builds, refused: refuse}, device="cpu", dim=16, rounds=2, tell=told.append)
    for cell in builds:
        figures = found.of(cell)
        assert not figures.failures and len(figures.all("seconds")) == 2 and min(figures.all("seconds")) > 0
        assert (figures.one("peak_bytes") or 0) > 0 and (figures.one("held_bytes") or 0) > 0
    assert set(found.of(refused).failures.values()) == {"refused: no layer of 32 tokens"}
    assert told[-1] == "length 32: round 2 of 2" and found.complete


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        measure_layers({Cell("softmax", "forward", 8): refuse}, device="cpu", dim=16, rounds=0)
    with pytest.raises(ValueError, match="lengths are different whole numbers"):
        measure_layers({}, device="cpu", dim=16, rounds=1)

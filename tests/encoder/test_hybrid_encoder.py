"""Encoders whose layers take different mechanisms: the mechanism of each layer, and options of the stack."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attn_zoo import MultiHeadAttention
from attn_zoo.attention.dense.differential import Differential
from attn_zoo.attention.linear.retention import Retention
from attn_zoo.attention.low_rank._projections import LowRankAttention
from attn_zoo.contract import Patches, TaskSpec, Tokens
from attn_zoo.encoder import build_model, build_paired_model

SIZES: dict[str, Any] = {"dim": 16, "depth": 4, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
TASKS = {"tokens": TaskSpec(Tokens(12), length=20, classes=3), "patches": TaskSpec(Patches(1, 10, 8, 2), length=20, classes=3)}


def layers(model: torch.nn.Module) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


@pytest.mark.parametrize("kind", TASKS)
def test_layers_hold_the_mechanisms_in_turn_and_start_from_the_weights_of_softmax(kind):
    settings = {"seed": 1, "options": {"linformer.projected_length": 5}, "implementation": "eager+sdpa", **SIZES}
    model = build_paired_model(TASKS[kind], attention="3*linformer+softmax", **settings)
    found = layers(model)
    assert [layer.mechanism.card.name for layer in found] == ["linformer", "linformer", "linformer", "softmax"]
    assert [layer.mechanism.implementation for layer in found] == ["eager", "eager", "eager", "sdpa"]
    assert {layer.mechanism.options.projected_length for layer in found[:3]} == {5}
    alone = build_paired_model(TASKS[kind], attention="softmax", **{**settings, "options": {}, "implementation": "eager"})
    shared, own = alone.state_dict(), model.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in shared.items())
    assert all("mechanism" in name for name in own.keys() - shared.keys())


@pytest.mark.parametrize("kind", TASKS)
def test_options_of_the_stack_concern_the_layers_of_one_mechanism(kind):
    options = {"linformer.projected_length": 5, "linformer.sharing": "layerwise"}
    model = build_model(TASKS[kind], attention="linformer+softmax", options=options, **SIZES)
    first, second = (m for m in model.modules() if isinstance(m, LowRankAttention))
    assert second.maps[0] is first.maps[0]
    options = {"linformer.projected_lengths": "7/3"}
    model = build_model(TASKS[kind], attention="linformer+softmax", options=options, **SIZES)
    assert [m.compressed_length() for m in model.modules() if isinstance(m, LowRankAttention)] == [7, 3]


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("changes", [{"depth": 2}, {"shared_weights": True}])
def test_networks_with_fewer_layers_are_refused(kind, changes):
    with pytest.raises(ValueError, match=r"2\*linformer\+softmax needs at least 3 layers"):
        build_model(TASKS[kind], attention="2*linformer+softmax", options={}, **{**SIZES, **changes})


@pytest.mark.parametrize("kind", TASKS)
def test_constants_of_a_layer_follow_its_number_among_the_layers_of_its_mechanism(kind):
    options = {"retention.rates": "lightning"}
    model = build_model(TASKS[kind], attention="retention+differential", options=options, **SIZES)
    mechanisms = [layer.mechanism for layer in layers(model)]
    assert [m.depth for m in mechanisms if isinstance(m, Retention)] == [0.0, 1.0]
    assert [m.initial for m in mechanisms if isinstance(m, Differential)] == pytest.approx([0.2, 0.8 - 0.6 * math.exp(-0.3)])

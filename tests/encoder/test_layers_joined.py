"""Options that concern the stack of layers: one projection for all of them, or a projected length for each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import MultiHeadAttention, UnsupportedError, join_layers
from attn_zoo.attention.low_rank._projections import LowRankAttention
from attn_zoo.contract import Patches, TaskSpec, Tokens
from attn_zoo.encoder import build_model

SIZES: dict[str, Any] = {"dim": 16, "depth": 3, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
TASKS = {
    "tokens": (TaskSpec(Tokens(12), length=20, classes=3), lambda: torch.randint(1, 12, (2, 20))),
    "patches": (TaskSpec(Patches(1, 10, 8, 2), length=20, classes=3), lambda: torch.randn(2, 1, 10, 8)),
}


def model(kind: str, attention: str = "linformer", seed: int = 0, **options):
    torch.manual_seed(seed)
    built = build_model(TASKS[kind][0], attention=attention, options={"projected_length": 5, **options}, **SIZES).eval()
    for head in (m for name, m in built.named_modules() if name.endswith("head")):
        torch.nn.init.normal_(head.get_parameter("weight"))  # timm initialises it to zero, which would hide every difference
    return built, TASKS[kind][1]()


def weight_of(layer: LowRankAttention) -> Tensor:
    return layer.maps[0].get_parameter("weight")


def layers(built: torch.nn.Module) -> list[LowRankAttention]:
    return [m for m in built.modules() if isinstance(m, LowRankAttention)]


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("attention", ["linformer", "kernelized_linformer"])
def test_layerwise_projection_is_stored_once_and_used_by_all(kind, attention):
    built, inputs = model(kind, attention, sharing="layerwise")
    stored = [name for name in built.state_dict() if "own_maps" in name]
    assert len(stored) == 1
    first, *rest = layers(built)
    assert [map_ is first.maps[0] for layer in rest for map_ in layer.maps] == [True, True]
    built(inputs).sum().backward()
    shared = weight_of(first).grad
    assert shared is not None
    shared = shared.clone()
    with torch.no_grad():
        before = built(inputs)
        weight_of(first).mul_(2)
        after = built(inputs)
    assert shared.abs().sum() > 0
    assert not torch.equal(before, after)
    other, _ = model(kind, attention, seed=1, sharing="layerwise")
    other.load_state_dict(built.state_dict())
    assert torch.equal(other(inputs), after)
    twin = copy.deepcopy(built)
    with torch.no_grad():
        weight_of(first).zero_()
    assert torch.equal(twin(inputs), after), "a copy must not reach into the original"


def test_layerwise_gradient_is_the_sum_over_layers():
    shared, inputs = model("tokens", sharing="layerwise")
    single, _ = model("tokens", sharing="key_value")
    with torch.no_grad():
        for layer in layers(single):
            weight_of(layer).copy_(weight_of(layers(shared)[0]))
    single.load_state_dict(shared.state_dict(), strict=False)
    for built in (shared, single):
        built(inputs).square().sum().backward()
    summed = torch.stack([torch.as_tensor(weight_of(layer).grad) for layer in layers(single)]).sum(dim=0)
    torch.testing.assert_close(weight_of(layers(shared)[0]).grad, summed)


@pytest.mark.parametrize("kind", TASKS)
def test_layers_may_have_lengths_of_their_own(kind):
    built, inputs = model(kind, projected_lengths="7/5/3")
    assert [layer.maps[0].results for layer in layers(built)] == [7, 5, 3]
    built(inputs).sum().backward()
    uneven, inputs = model(kind, projected_lengths="7+2/5/3+4", sharing="none")
    assert [[m.results for m in layer.maps] for layer in layers(uneven)] == [[2, 7], [5], [3, 4]]
    uneven(inputs).sum().backward()
    with pytest.raises(ValueError, match=r"'7/5'.* has values for 2 layers, but the model has 3"):
        model(kind, projected_lengths="7/5")


def test_a_model_of_ones_own_is_joined_by_hand():
    def layer() -> MultiHeadAttention:
        return MultiHeadAttention(16, 2, "linformer", length=20, projected_length=5, sharing="layerwise")

    stack = torch.nn.Sequential(*(layer() for _ in range(3)))
    alone = sum(p.numel() for p in stack.parameters())
    join_layers(stack)
    assert sum(p.numel() for p in stack.parameters()) == alone - 2 * 5 * 20
    for one in stack:
        assert isinstance(one, MultiHeadAttention)
        one.resize_length(31)
    assert stack(torch.randn(2, 31, 16)).shape == (2, 31, 16)
    assert [m.maps[0].length for m in layers(stack)] == [31, 31, 31]


def stack_of(*options: dict[str, Any], length: int = 20) -> torch.nn.Sequential:
    torch.manual_seed(0)
    sizes = {"length": length, "projected_length": 5, "sharing": "layerwise"}
    return torch.nn.Sequential(*(MultiHeadAttention(16, 2, "linformer", **{**sizes, **given}) for given in options))


@pytest.mark.parametrize(
    "options",
    [
        ({}, {"sharing": "headwise"}),
        ({"sharing": "headwise"}, {}),
        ({}, {"projected_length": 4}),
        ({}, {"length": 30}),
        ({}, {"frozen": True}),
        ({"sharing": "none", "projected_lengths": "6/4"}, {"sharing": "none"}),
    ],
)
def test_layers_that_share_are_built_alike(options):
    stack = stack_of(*options)
    before = {name: value.clone() for name, value in stack.state_dict().items()}
    with pytest.raises(UnsupportedError, match="must have the same options and geometry"):
        join_layers(stack)
    after = stack.state_dict()
    assert after.keys() == before.keys(), "nothing is joined where something is refused"
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_an_encoder_and_a_decoder_are_joined_by_a_call_for_each():
    both = torch.nn.ModuleDict({"encoder": stack_of({}, {}), "decoder": stack_of({}, {})})
    for stack in both.values():
        join_layers(stack)
        join_layers(stack)
    assert len([name for name in both.state_dict() if "own_maps" in name]) == 2
    with pytest.raises(UnsupportedError, match="already joined with other layers"):
        join_layers(both)
    stack = stack_of({}, {}, {})
    join_layers(stack)
    with pytest.raises(UnsupportedError, match="already joined with other layers"):
        join_layers(stack[1:])


def test_a_layer_copied_alone_takes_the_shared_projection_as_its_own():
    stack = stack_of({}, {})
    join_layers(stack)
    tokens = torch.randn(2, 20, 16)
    alone = copy.deepcopy(stack[1])
    assert torch.equal(alone(tokens), stack[1](tokens))
    assert "mechanism.own_maps.0.weight" in dict(alone.named_parameters())
    assert weight_of(layers(alone)[0]) is not weight_of(layers(stack)[0])


def test_resizing_one_layer_of_those_that_share_is_noticed():
    stack = stack_of({}, {})
    join_layers(stack)
    first = stack[0]
    assert isinstance(first, MultiHeadAttention)
    first.resize_length(40)
    with pytest.raises(UnsupportedError, match="Call resize_length on every layer"):
        stack[1](torch.randn(2, 20, 16))

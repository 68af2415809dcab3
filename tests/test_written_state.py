"""State that training calls write, such as redrawn features: under gradient checkpointing, and after loading a state dict."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiers import covering
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attn_zoo import MultiHeadAttention, UnsupportedError
from attn_zoo.contract.written import KEPT_CALLS

WRITING = [
    *(("performer", causal, {"redraw": redraw}) for causal in (False, True) for redraw in (1, 2, 3)),
    *(("reformer", causal, {"redraw": redraw, "dropout": 0.1}) for causal in (False, True) for redraw in (2, 3)),
    ("routing", False, {}),
    ("routing", False, {"decay": 0.5, "dropout": 0.3}),
]
"""Mechanisms that write state, with options that make them do so at several steps."""

Call = Callable[..., Tensor]


def build(name: str, causal: bool = False, options: dict[str, Any] | None = None, seed: int = 0) -> MultiHeadAttention:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(16, 2, name, length=40, causal=causal, output_dropout=0.2, **(options or {}))
    return layer.double().train()


def plainly(block: Call, tokens: Tensor) -> Tensor:
    return block(tokens)


def checkpointed(reentrant: bool) -> Call:
    return lambda block, tokens: checkpoint(block, tokens, use_reentrant=reentrant)


def trained(layer: MultiHeadAttention, call: Call, layers: Call | None = None) -> dict[str, Tensor]:
    """Gradients, buffers and a later output after steps of several calls of ``layers``, the layer itself or compiled."""
    layers = layer if layers is None else layers

    def twice(tokens: Tensor) -> Tensor:
        return layers(layers(tokens).tanh())

    torch.manual_seed(1)
    tokens = torch.randn(2, 40, 16, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        (call(twice, tokens) * call(layers, tokens)).square().sum().backward()
        with torch.no_grad():
            layers(tokens)
    found = {"tokens": tokens.grad, **{name: parameter.grad for name, parameter in layer.named_parameters()}}
    with torch.no_grad():
        return {**found, **dict(layer.named_buffers()), "later": layer.eval()(tokens)}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("name", "causal", "options"), WRITING)
def test_checkpointing_changes_no_gradient_buffer_or_later_output(name, causal, options, reentrant):
    want = trained(build(name, causal, options), plainly)
    torch.testing.assert_close(trained(build(name, causal, options), checkpointed(reentrant)), want, rtol=1e-9, atol=1e-9)


@pytest.mark.kernels
@pytest.mark.parametrize(("where", "case"), covering(["in and around", "around", "in"], [WRITING[1], WRITING[-1]]), ids=str)
def test_compiled_layers_write_their_state_as_others_do(where, case):
    name, causal, options = case
    want, layer = trained(build(name, causal, options), plainly), build(name, causal, options)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager") if "in" in where.split() else layer

    def around(block: Call, tokens: Tensor) -> Tensor:
        return torch.compile(checkpointed(False), backend="aot_eager")(block, tokens)

    found = trained(layer, around if "around" in where else checkpointed(False), compiled)
    torch._dynamo.reset()
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "causal", "options"), WRITING)
def test_a_loaded_layer_trains_on_as_the_saved_one(name, causal, options):
    def start(seed: int) -> tuple[MultiHeadAttention, torch.optim.Optimizer]:
        layer = build(name, causal, options, seed)
        return layer, torch.optim.AdamW(layer.parameters(), lr=1e-2)

    def go_on(layer: MultiHeadAttention, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            layer(torch.randn(2, 40, 16, dtype=torch.float64)).square().mean().backward()
            optimizer.step()

    whole, optimizer = start(0)
    go_on(whole, optimizer)
    file = io.BytesIO()
    torch.save({"layer": whole.state_dict(), "optimizer": optimizer.state_dict(), "chance": torch.get_rng_state()}, file)
    go_on(whole, optimizer)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, optimizer = start(9)
    resumed.load_state_dict(saved["layer"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["chance"])
    go_on(resumed, optimizer)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_a_state_dict_without_the_counter_loads_strictly_and_counts_from_zero(name):
    layer = build(name, options={"redraw": 3})
    layer(torch.randn(1, 40, 16, dtype=torch.float64))
    older = {key: value for key, value in layer.state_dict().items() if not key.endswith("training_calls")}
    assert len(older) == len(layer.state_dict()) - 1
    layer.load_state_dict(older, strict=True)
    assert layer.get_buffer("mechanism.training_calls").item() == 0
    build(name).load_state_dict(layer.state_dict(), strict=True)  # redraw is off


def test_a_repetition_whose_random_numbers_are_lost_is_refused():
    layer, tokens = build("routing"), torch.randn(1, 40, 16, dtype=torch.float64)
    out = checkpoint(layer, tokens, use_reentrant=False, preserve_rng_state=False)
    with pytest.raises(UnsupportedError, match=r"routing: gradient checkpointing repeats a training call.*preserve_rng_state=True"):
        out.sum().backward()


def test_the_latest_calls_can_be_repeated():
    layer, tokens = build("routing"), torch.randn(1, 40, 16, dtype=torch.float64)
    outs = [checkpoint(layer, tokens, use_reentrant=False).sum() for _ in range(KEPT_CALLS + 1)]
    centroids = layer.get_buffer("mechanism.centroids").clone()
    sum(outs[1:]).backward()
    assert torch.equal(layer.get_buffer("mechanism.centroids"), centroids)
    with pytest.raises(UnsupportedError, match=f"at most {KEPT_CALLS} training calls"):
        outs[0].backward()


def test_a_repetition_that_two_calls_may_have_made_is_refused():
    layer, tokens = build("routing", options={"decay": 0.5}), torch.randn(2, 1, 40, 16, dtype=torch.float64)

    def call(at: int) -> Tensor:
        torch.manual_seed(1)
        return checkpoint(layer, tokens[at], use_reentrant=False).sum()

    for at in (0, 1, 0):  # each backward pass ends before the next call: no doubt
        call(at).backward()
    twins = [call(at) for at in (0, 1)]
    with pytest.raises(UnsupportedError, match=r"routing: .* set no seed between calls \(torch\.manual_seed"):
        (twins[0] + twins[1]).backward()


def replica(module: torch.nn.Module) -> Any:
    """Copy a module as DataParallel does for the first device, where parameters and buffers are those of the module."""
    copied = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(copied, name, parameter)
    for name, child in module._modules.items():
        copied._modules[name] = None if child is None else replica(child)
    return copied


@pytest.mark.parametrize(("name", "causal", "options"), WRITING)
def test_a_replica_of_data_parallel_writes_the_state_of_its_module(name, causal, options):
    plain, copied = build(name, causal, options), build(name, causal, options)
    tokens = torch.randn(2, 40, 16, dtype=torch.float64)
    for seed in range(4):
        outs = []
        for layer in (plain, replica(copied)):
            torch.manual_seed(seed)
            outs.append(layer(tokens))
            outs[-1].sum().backward()
        assert torch.equal(*outs)
    torch.testing.assert_close(copied.state_dict(), plain.state_dict(), rtol=0, atol=0)

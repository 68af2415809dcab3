"""Streams, the further projections that a layer computes for its mechanism: their start, and those of one number per head."""

from __future__ import annotations

import copy
from typing import Any

import torch

from attn_zoo import MultiHeadAttention, attentions

LENGTH, DIM, HEADS = 40, 16, 4


def layers() -> dict[str, Any]:
    """Layers of all mechanisms with streams, by name."""
    torch.manual_seed(0)
    built = {name: MultiHeadAttention(DIM, HEADS, name, length=LENGTH).double() for name in attentions()}
    return {name: layer for name, layer in built.items() if layer.streams}


def test_streams_start_as_copies_and_restart():
    for layer in layers().values():
        for stream in layer.streams:
            weight, bias = layer._parameters_of(stream.starts_as)
            linear = layer.stream_projections.get_submodule(stream.name)
            assert torch.equal(linear.weight, weight) and torch.equal(linear.bias, bias)
            with torch.no_grad():
                linear.weight.zero_()
        layer.start_streams()
        assert all(weight.abs().sum() > 0 for name, weight in layer.stream_projections.named_parameters() if "weight" in name)


def test_a_stream_of_one_number_per_head_is_the_sum_over_its_channels_whatever_its_projection():
    """A projection that is a plain linear map is summed before the product. One that was replaced is summed after it."""
    found = {name: layer for name, layer in layers().items() if any(stream.per_head for stream in layer.streams)}
    assert {"delta_rule", "gated_delta_rule", "ssd"} <= set(found)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for layer in found.values():
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        wrapped = copy.deepcopy(layer)
        for key, linear in wrapped.stream_projections.items():
            wrapped.stream_projections[key] = torch.nn.Sequential(linear)
        first, second = layer(x), wrapped(x)
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
        grads = [torch.autograd.grad(out.sum(), list(of.parameters())) for out, of in ((first, layer), (second, wrapped))]
        torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


def test_the_gate_of_forgetting_has_a_bias_if_the_layer_has_biases():
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    for bias in (True, False):
        layer = MultiHeadAttention(DIM, HEADS, "forgetting", length=LENGTH, bias=bias).double()
        gate = layer.stream_projections.get_submodule("gate")
        assert (gate.bias is not None) is bias
        if bias:
            before = layer(x)
            with torch.no_grad():
                gate.get_parameter("bias").add_(1)
            assert (layer(x) - before).abs().max() > 1e-3


def test_in_a_new_layer_two_rules_of_the_delta_product_are_one_rule():
    """A key, value and strength β given twice act as a strength of β (2 - β), as the card says."""
    torch.manual_seed(0)
    twice = MultiHeadAttention(DIM, HEADS, "delta_product", length=LENGTH, causal=True).double()
    once = MultiHeadAttention(DIM, HEADS, "gated_delta_rule", length=LENGTH, causal=True).double()
    query, key, value = (torch.randn(2, HEADS, LENGTH, DIM // HEADS, dtype=torch.float64) for _ in range(3))
    logit = torch.randn(2, HEADS, LENGTH, 1, dtype=torch.float64)
    beta = 2 * logit.sigmoid()
    streams = {stream.name: {"key": key, "value": value}[stream.starts_as] for stream in twice.streams}
    streams = {name: logit if name.startswith(("decay", "strength")) else tensor for name, tensor in streams.items()}
    got = twice.mechanism(query, key, value, streams=streams)
    want = once.mechanism(query, key, value, streams={"decay": logit, "strength": (beta * (2 - beta)).logit()})
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)  # keys are a little shorter than 1 (LENGTH_FLOOR)

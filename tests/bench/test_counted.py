"""Counted cost: figures worked by hand, formulas against PyTorch's counters, nothing computed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from patience import within
from tiers import covering
from torch import Tensor

from attn_zoo import attentions, registry
from attn_zoo.bench.experiments import report
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.tables import binary, decimal
from attn_zoo.cli import main
from attn_zoo.conformance.requests import draw
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, UnsupportedError
from attn_zoo.count import Counts, activation_bytes, tally
from attn_zoo.count.costs import count_subject, with_gradients
from attn_zoo.count.counter import keeping
from attn_zoo.count.formulas import layer_cost
from attn_zoo.count.subjects import Subject, build_module, geometry_of, random_inputs
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, build_attention, card


def count(scope: str, attention: str, length: int, dim: int, heads: int, implementation: str = "eager", **more: Any) -> Counts:
    return count_subject(scope, Subject(attention, {}, implementation, **more), dim, heads, length)


def test_softmax_by_hand():
    n, d, h = 512, 64, 4
    weights, products, rest = 4 * h * n * n, 4 * n * n * d * h, 4 * n * d * h
    assert count("mechanism", "softmax", n, 256, h) == Counts(products, 2 * products, 0, weights + rest, None)
    causal = count("mechanism", "softmax", n, 256, h, causal=True)
    assert (causal.activation_bytes, causal.state_bytes) == (2 * weights + 2 * n * n + rest, 2 * 4 * n * 256)
    fused = count("mechanism", "softmax", n, 256, h, "sdpa")
    assert fused == Counts(products, 2 * products, 0, 4 * h * n * (d + 1), None)


def test_a_layer_by_hand():
    n, dim = 128, 32
    products = 4 * n * n * dim + 4 * 2 * n * dim * dim
    layer = count("layer", "softmax", n, dim, 2, causal=True)
    assert (layer.flops, layer.backward_flops, layer.parameters) == (products, 2 * products, 4 * (dim * dim + dim))
    assert layer.state_bytes == 2 * 4 * n * dim


ROWS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {}),
    ("linformer", {"projected_length": 5}),
    ("linformer", {"projected_length": 5, "order": "project_first"}),
    ("linformer", {"projection": "random", "order": "compress_first"}),
    ("linformer", {"projection": "mean", "sharing": "key_value"}),
    ("linformer", {"sharing": "none", "projected_lengths": "3+5"}),
    ("performer", {}),
    ("longformer", {"window": 5, "global_tokens": 3}),
    ("reformer", {"chunk": 4}),
]
LAYERS: list[dict[str, Any]] = [
    {"context_length": 33, "context_dim": 24},
    {"context_length": 33, "bias": False},
    {"fused": True},
    {"fused": True, "bias": False},
    {"short_convolution": 4},
    {"short_convolution": 4, "fused": True},
    {"output_gate": "elementwise"},
    {"output_gate": "headwise", "bias": False},
    {"key_value_heads": 1},
    {"key_value_heads": 1, "fused": True, "bias": False},
    {"latent_dim": 7},
    {"latent_dim": 7, "key_value_heads": 1, "context_length": 33, "context_dim": 24},
]


@pytest.mark.parametrize(("row", "settings"), covering(ROWS, LAYERS))
def test_layers_of_every_kind_cost_what_the_formula_says(row, settings):
    name, options = row
    if "context_length" in settings and not card(name).can.cross:
        pytest.skip(f"{name} claims no cross attention")
    if {"key_value_heads", "latent_dim"} & settings.keys() and card(name).can.shares_query_key:
        pytest.skip(f"{name} makes queries and keys by one projection")
    with torch.device("meta"):
        form = card(name).counted_implementation
        layer = MultiHeadAttention(32, 2, name, length=40, implementation=form, **options, **settings).eval()
        tokens = torch.empty(1, 40, 32, requires_grad=True)
        crosses = "context_length" in settings
        context = torch.empty(1, 33, layer.context_dim, requires_grad=True) if crosses else None
        found = tally(lambda: layer(tokens, context), [tokens, *layer.parameters()])
    cost = layer_cost(layer)
    assert (cost.flops, cost.backward_flops) == (found.flops, found.backward_flops)
    assert cost.parameters == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize(("causal", "taps"), [(False, 5), (True, 4)])
def test_a_short_convolution_adds_its_products_its_taps_and_its_tail(causal, taps):
    n, dim = 40, 32
    plain, convolved = (
        layer_cost(MultiHeadAttention(dim, 2, "linear", length=n, causal=causal, short_convolution=width)) for width in (0, 4)
    )
    assert plain.backward_flops is not None and convolved.backward_flops is not None
    assert convolved.flops - plain.flops == 2 * taps * n * dim
    assert convolved.backward_flops - plain.backward_flops == 4 * taps * n * dim
    assert convolved.parameters - plain.parameters == taps * dim
    if causal:
        assert plain.state_bytes is not None and convolved.state_bytes is not None
        assert convolved.state_bytes - plain.state_bytes == 4 * taps * dim
    else:
        assert convolved.state_bytes is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", attentions())
def test_formula_is_what_pytorch_counts(name, causal):
    """Count a layer, which holds a mechanism, whose own formula the kit tests."""
    subject, sizes = Subject(name, {}, card(name).counted_implementation, causal=causal), (32, 2, 300)
    if causal and not card(name).can.causal:
        with pytest.raises(UnsupportedError, match="no causal form"):
            count_subject("layer", subject, *sizes)
        return
    counted, geometry = count_subject("layer", subject, *sizes), geometry_of(subject, *sizes)
    with torch.device("meta"):
        layer = build_module("layer", subject, *sizes).eval()
        tokens = torch.empty(1, 300, 32, requires_grad=True)
        found = tally(lambda: layer(tokens), [tokens, *layer.parameters(), *layer.buffers()], layer)
    assert (counted.flops, counted.backward_flops) == (found.flops, found.backward_flops)
    assert counted.parameters == sum(p.numel() for p in layer.parameters())
    assert counted.state_bytes == card(name).cost(geometry, attention_options(card(name), geometry, {})).state_bytes
    for implementation in {"eager", "sdpa"} & set(card(name).implementations):
        assert count("layer", name, 300, 32, 2, implementation, causal=causal).activation_bytes


@pytest.mark.parametrize("name", ["softmax", "longformer", "linear", "reformer", "nystrom"])
def test_activation_bytes_of_a_mechanism_are_those_of_what_a_cpu_takes(name):
    entry, geometry = card(name), Geometry(2, 8, 120, 120)
    torch.manual_seed(0)
    mechanism = build_attention(name, geometry, implementation="auto", device="cpu").eval()
    request = draw(mechanism, torch.float32, torch.device("cpu"), batch=1).leaves()
    there = [*request.tensors.values(), *mechanism.parameters(), *mechanism.buffers()]
    real = tally(lambda: request(mechanism), there)
    assert activation_bytes(entry, geometry, mechanism.options) == real.activation_bytes != 0
    assert activation_bytes(entry, geometry, mechanism.options, "triton") is None


def test_cuda_kernels_are_counted_by_formula_only():
    counted, fused = (count("mechanism", "linformer", 100, 32, 2, implementation) for implementation in ("triton", "sdpa"))
    assert counted.activation_bytes is None and counted.flops == fused.flops
    assert count("mechanism", "softmax", 100, 32, 2, "xformers").activation_bytes is None
    with pytest.raises(UnsupportedError, match="head_dim of at most 128"):
        count("mechanism", "linformer", 100, 512, 2, "triton")


def test_lengths_that_no_machine_could_run_take_no_time():
    started = time.process_time()
    counted = count("layer", "softmax", 2**20, 256, 4)
    assert (counted.activation_bytes or 0) > 2**44, "the weights alone are 16 TiB"
    assert within(time.process_time() - started, 10)


def test_what_is_dropped_again_is_not_kept():
    x = torch.ones(100, requires_grad=True)
    with keeping() as kept:
        y = x.exp()
        assert sum(t.numel() for t in kept()) == 100
        del y
        assert kept() == []


def test_products_added_in_place_count_as_well():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert tally(lambda: torch.zeros(3, 5).addmm_(a, b), []).flops == 2 * 3 * 4 * 5
    assert tally(lambda: torch.zeros(2, 3, 5).baddbmm_(a.expand(2, 3, 4), b.expand(2, 4, 5)), []).flops == 2 * 2 * 3 * 4 * 5


def test_whole_storages_count_once():
    x = torch.ones(10, 10, requires_grad=True)
    found = tally(lambda: (lambda y: y[0] * y[1] + y[2] * y[3])(x + 1).sum(), [x])
    assert found.activation_bytes == 400, "four rows of one tensor keep all of it"
    assert tally(lambda: (x[0] * x[1]).sum(), [x]).activation_bytes == 0, "an input is there anyway"


@pytest.mark.parametrize("name", ["delta_rule", "gated_linear", "luna", "linear"])
def test_a_rest_shorter_than_a_chunk_costs_what_the_card_says(name):
    subject = Subject(name, {}, card(name).counted_implementation, causal=True)
    with torch.device("meta"):
        module = build_module("mechanism", subject, 512, 8, 1025).eval()
        inputs = with_gradients(random_inputs("mechanism", subject, 512, 8, 1, 1025, torch.float32))
        found = tally(lambda: module(*inputs), [*inputs, *module.parameters(), *module.buffers()], module)
    counted = count_subject("mechanism", subject, 512, 8, 1025)
    assert (counted.flops, counted.backward_flops) == (found.flops, found.backward_flops)


class Terse(Attention):
    """Its card says no more than it must, and it reads numbers, so that shapes do not do."""

    def attend(self, query: Any, key: Any, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return value * value.abs().max().item()


def test_card_that_states_little_and_needs_numbers(monkeypatch):
    entry = replace(
        card("none"),
        name="terse",
        can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
        build=Terse,
        cost=lambda geometry, options: Cost(flops=0, parameters=0),
        control=False,
    )
    Terse.card = entry
    monkeypatch.setitem(registry._ATTENTIONS, "terse", entry)
    assert count("mechanism", "terse", 64, 32, 2) == Counts(0, None, 0, None, None)
    assert count("layer", "terse", 64, 32, 2) == Counts(2 * 2 * 64 * 32 * 32, None, 2 * (32 * 32 + 32), None, None)


@pytest.mark.parametrize("name", ["softmax", "longformer"])
def test_backward_flops_that_a_card_does_not_state_are_counted(name, monkeypatch):
    entry = card(name)
    stated = count("layer", name, 64, 32, 2)
    monkeypatch.setitem(registry._ATTENTIONS, name, replace(entry, cost=lambda *at: replace(entry.cost(*at), backward_flops=None)))
    monkeypatch.setattr(entry.build, "card", registry._ATTENTIONS[name])
    assert count("layer", name, 64, 32, 2) == stated


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_counts_without_a_device(tmp_path, capsys):
    output = tmp_path / "counted.json"
    words = ["experiment=counted", "attention=softmax:sdpa,linformer,reformer", "lengths=[512,8192]", "causal=true"]
    assert main(["measure", *words, f"output={output}"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "| softmax:sdpa | 268 M (1×) | 68.7 G (1×) |" in lines
    assert "| linformer | refused | refused |" in lines
    assert "- linformer is refused: linformer has no causal form" in out
    assert "**Recurrent state**" in out
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["complete"]
    by = {(cell.label, cell.length): cell for cell in Measurement.from_dict(found).cells}
    assert by["reformer", 8192].one("state_bytes") == by["softmax, the measure", 8192].one("state_bytes")
    assert report(found) in out


def test_figures_have_three_digits():
    numbers = {0: "0", 999: "999", 1000: "1.00 k", 99_950: "100 k", 999_500: "1.00 M", 4_398_046_511_104: "4.40 T"}
    assert {n: decimal(n) for n in numbers} == numbers
    assert [binary(n) for n in (5, 2048, 4718592, 68786585600)] == ["5 B", "2.00 KiB", "4.50 MiB", "64.1 GiB"]


def test_drawn_inputs_and_shapes_alone_agree():
    mechanism = build_attention("performer", Geometry(2, 8, 50, 50), implementation="tiled").eval()
    request = draw(mechanism, torch.float32, torch.device("cpu"), batch=1).leaves()
    real = tally(lambda: request(mechanism), [*request.tensors.values(), *mechanism.buffers()])
    counted = count("mechanism", "performer", 50, 16, 2, "tiled")
    assert (real.flops, real.backward_flops, real.activation_bytes) == (
        counted.flops,
        counted.backward_flops,
        counted.activation_bytes,
    )

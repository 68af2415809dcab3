"""Counted cost: figures worked by hand, formulas against PyTorch's counters, mismatches flagged, nothing computed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
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
from attn_zoo.count import Counted, activation_bytes, count_level, tally
from attn_zoo.count.counter import keeping
from attn_zoo.count.formulas import layer_cost
from attn_zoo.count.rigs import Sizes, Subject
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, build_attention, card

QUANTITIES = ("flops", "backward_flops", "parameters", "activation_bytes", "state_bytes")


@dataclass(frozen=True)
class At:
    """Sizes of what is counted."""

    length: int
    dim: int
    heads: int
    causal: bool = False
    mlp_ratio: float = 2.0

    @property
    def geometry(self) -> Geometry:
        return Sizes(self.dim, self.heads).geometry(self.length, self.causal)


def count(level: str, attention: str, options: dict[str, Any], at: At, *, implementation: str = "eager") -> Counted:
    subject = Subject(attention, options, implementation, causal=at.causal)
    return count_level(level, subject, Sizes(at.dim, at.heads, mlp_ratio=at.mlp_ratio), at.length)


def shown(counted: Counted) -> list[int | None]:
    return [counted.shown(name) for name in QUANTITIES]


def test_softmax_by_hand():
    n, d, h = 512, 64, 4
    weights = 4 * h * n * n
    alone = count("mechanism", "softmax", {}, At(n, 256, h))
    assert shown(alone) == [4 * n * n * d * h, 8 * n * n * d * h, 0, weights + 4 * n * d * h, None]
    causal = count("mechanism", "softmax", {}, At(n, 256, h, causal=True))
    assert shown(causal)[3:] == [2 * weights + 2 * n * n + 4 * n * d * h, 2 * 4 * n * 256]
    fused = count("mechanism", "softmax", {}, At(n, 256, h), implementation="sdpa")
    assert shown(fused)[:4] == [*shown(alone)[:3], 4 * h * n * (d + 1)]


def test_layer_and_block_by_hand():
    n, dim = 128, 32
    products = 4 * n * n * dim + 4 * 2 * n * dim * dim
    layer = count("layer", "softmax", {}, At(n, dim, 2, causal=True))
    assert shown(layer)[:3] == [products, 2 * products, 4 * (dim * dim + dim)]
    assert layer.shown("state_bytes") == 2 * 4 * n * dim
    block = count("block", "softmax", {}, At(n, dim, 2, mlp_ratio=3))
    mlp = 2 * 2 * n * dim * 3 * dim
    assert shown(block)[:3] == [products + mlp, 2 * (products + mlp), 4 * (dim * dim + dim) + 4 * dim + 6 * dim * dim + 4 * dim]


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
    """Count a block, which holds a layer, which holds a mechanism, whose own formula the kit tests."""
    sizes = At(300, 32, 2, causal)
    if causal and not card(name).can.causal:
        with pytest.raises(UnsupportedError, match="no causal form"):
            count("block", name, {}, sizes)
        return
    for implementation in {"eager", "sdpa"} & set(card(name).implementations):
        counted = count("block", name, {}, sizes, implementation=implementation)
        assert counted.disagreements() == {}
        assert None not in (counted.pytorch.flops, counted.pytorch.backward_flops, counted.pytorch.activation_bytes)
        cost = card(name).cost(sizes.geometry, attention_options(card(name), sizes.geometry, {}))
        assert counted.formula.state_bytes == cost.state_bytes


@pytest.mark.parametrize("name", ["softmax", "longformer", "linear", "reformer", "nystrom"])
def test_activation_bytes_of_a_mechanism_are_those_of_what_a_cpu_takes(name):
    entry, geometry = card(name), Geometry(2, 8, 120, 120)
    torch.manual_seed(0)
    mechanism = build_attention(name, geometry, implementation="auto", device="cpu").eval()
    request = draw(mechanism, torch.float32, torch.device("cpu"), batch=1).leaves()
    there = [*request.tensors.values(), *mechanism.parameters(), *mechanism.buffers()]
    real = tally(lambda: request(mechanism), there)
    assert activation_bytes(entry, geometry, mechanism.options) == real.kept_bytes > 0
    assert activation_bytes(entry, geometry, mechanism.options, "triton") is None


def test_cuda_kernels_are_counted_by_formula_only():
    counted = count("mechanism", "linformer", {}, At(100, 32, 2), implementation="triton")
    fused = count("mechanism", "linformer", {}, At(100, 32, 2), implementation="sdpa")
    assert counted.shown("activation_bytes") is None
    assert counted.shown("flops") == counted.pytorch.flops == fused.shown("flops")
    unknown = count("mechanism", "softmax", {}, At(100, 32, 2), implementation="xformers")
    assert unknown.shown("activation_bytes") is None
    with pytest.raises(UnsupportedError, match="head_dim of at most 128"):
        count("mechanism", "linformer", {}, At(100, 512, 2), implementation="triton")


def test_lengths_that_no_machine_could_run_take_no_time():
    started = time.process_time()
    counted = count("block", "softmax", {}, At(2**20, 256, 4))
    assert counted.disagreements() == {}
    assert (counted.shown("activation_bytes") or 0) > 2**44, "the weights alone are 16 TiB"
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
    assert found.kept_bytes == 400, "four rows of one tensor keep all of it"
    assert tally(lambda: (x[0] * x[1]).sum(), [x]).kept_bytes == 0, "an input is there anyway"


# --- what disagrees, and what is unknown -----------------------------------------------------------------------------


@pytest.fixture
def miscounted(monkeypatch: pytest.MonkeyPatch) -> str:
    """An attention whose card is wrong about everything that PyTorch counts, by name."""
    known = card("softmax")
    wrong = Cost(flops=5, parameters=6, backward_flops=7)
    entry = replace(known, name="miscounted", cost=lambda geometry, options: wrong, implementations=("eager",))
    entry = replace(entry, build=type("Miscounted", (known.build,), {"card": entry}))
    entry.build.card = entry
    monkeypatch.setitem(registry._ATTENTIONS, "miscounted", entry)
    return "miscounted"


@pytest.mark.parametrize("name", ["delta_rule", "gated_linear", "luna", "linear"])
def test_a_rest_shorter_than_a_chunk_costs_what_the_card_says(name):
    counted = count("mechanism", name, {}, At(1025, 512, 8, causal=True))
    assert counted.disagreements() == {}


def test_disagreement_is_flagged_and_not_raised(miscounted, capsys):
    counted = count("mechanism", miscounted, {}, At(64, 32, 2))
    right = count("mechanism", "softmax", {}, At(64, 32, 2))
    assert counted.disagreements() == {
        "flops": (5, right.shown("flops")),
        "backward_flops": (7, right.shown("backward_flops")),
        "parameters": (6, 0),
    }
    assert main(["measure", "experiment=counted", f"attention={miscounted}", "lengths=[64]", "dim=32", "heads=2"]) == 0
    out = capsys.readouterr().out
    assert out.count("≠ |") == 3
    assert "≠ miscounted, FLOPs, forward: the formula says 5, PyTorch counts 524,288 (at every length)" in out


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
    counted = count("mechanism", "terse", {}, At(64, 32, 2))
    assert shown(counted) == [0, None, 0, None, None]
    layer = count("layer", "terse", {}, At(64, 32, 2))
    assert shown(layer) == [2 * 2 * 64 * 32 * 32, None, 2 * (32 * 32 + 32), None, None]


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_counts_without_a_device(tmp_path, capsys):
    output = tmp_path / "counted.json"
    words = ["experiment=counted", "attention=softmax:sdpa,linformer,reformer", "lengths=[512,8192]", "causal=true"]
    assert main(["measure", *words, "seconds=6000", f"output={output}"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "| softmax:sdpa | 268 M (1×) | 68.7 G (1×) |" in lines
    assert "| linformer | refused | refused |" in lines
    assert "- linformer is refused: linformer has no causal form" in out
    assert "**Recurrent state**" in out
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["complete"]
    by = {(cell.label, cell.length): figures for cell, figures in Measurement.from_dict(found).cells.items()}
    reformer = by["reformer", 8192]
    assert reformer.one("state_bytes") == by["softmax, the measure", 8192].one("state_bytes")
    assert not any(quantity.endswith("_by_pytorch") for quantity in reformer.values)
    assert report(found) in out


def test_what_there_is_no_time_for_is_said_and_counted_later(tmp_path, capsys):
    words = ["measure", "experiment=counted", "attention=linformer", "lengths=[512,1024]", f"output={tmp_path / 'c.json'}"]
    assert main([*words, "seconds=0.000001"]) == 0
    late = capsys.readouterr().out
    assert "| linformer | no time left | no time left |" in [" ".join(line.split()) for line in late.splitlines()]
    assert "- linformer: no time left (at every length)" in late
    assert main([*words, "seconds=1800"]) == 0
    told = capsys.readouterr()
    assert "going on from there" in told.err and "no time left" not in told.out


def test_figures_have_three_digits():
    numbers = {0: "0", 999: "999", 1000: "1.00 k", 99_950: "100 k", 999_500: "1.00 M", 4_398_046_511_104: "4.40 T"}
    assert {n: decimal(n) for n in numbers} == numbers
    assert [binary(n) for n in (5, 2048, 4718592, 68786585600)] == ["5 B", "2.00 KiB", "4.50 MiB", "64.1 GiB"]


def test_drawn_inputs_and_shapes_alone_agree():
    mechanism = build_attention("performer", Geometry(2, 8, 50, 50), implementation="tiled").eval()
    request = draw(mechanism, torch.float32, torch.device("cpu"), batch=1).leaves()
    real = tally(lambda: request(mechanism), [*request.tensors.values(), *mechanism.buffers()])
    counted = count("mechanism", "performer", {}, At(50, 16, 2), implementation="tiled").pytorch
    assert (real.flops, real.backward_flops, real.kept_bytes) == (counted.flops, counted.backward_flops, counted.activation_bytes)

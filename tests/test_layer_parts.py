"""Parts of a layer around any mechanism: each layer equals one written out, in every way to call it; mistakes are caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiers import of_each_kind
from torch import Tensor, nn
from written_layers import DIM, HEADS, LENGTH, build, in_steps, padding, perturbed, tokens, written_out

from attn_zoo import attentions, card
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.integrations.timm.layer import TimmAttention
from attn_zoo.layer import MultiHeadAttention, Order
from attn_zoo.layer.projections import Projections

PARTS: dict[str, dict[str, Any]] = {
    "taps": {"width": 4},
    "gates of channels": {"output_gate": "elementwise"},
    "gates of heads, taps": {"output_gate": "headwise", "width": 4},
    "one head of keys": {"key_value_heads": 1},
    "latents, two heads of keys": {"latent_dim": 7, "key_value_heads": 2},
}
OF_KEYS = ("one head of keys", "latents, two heads of keys")
"""Parts that need a projection to keys of its own."""
CASES = [
    pytest.param(*each.values, part, marks=each.marks)
    for part in PARTS
    for each in of_each_kind(name for name in attentions() if part not in OF_KEYS or not card(name).can.shares_query_key)
]


@pytest.mark.parametrize(("name", "part"), CASES)
def test_a_layer_equals_one_written_out(name, part):
    can, x, real = card(name).can, tokens(dim=16), padding()
    for causal in {False, can.causal}:
        layer = build(name, dim=16, heads=4, causal=causal, **PARTS[part])
        out = layer(x)
        torch.testing.assert_close(out, written_out(layer, x), rtol=1e-9, atol=1e-9)
        if can.key_padding:
            dirty = x.masked_fill(~real[..., None], torch.nan).requires_grad_()
            found = layer(dirty, key_valid=real)
            torch.testing.assert_close(found[real], written_out(layer, x, real)[real], rtol=1e-9, atol=1e-9)
            assert found.isfinite().all()
            slopes = torch.autograd.grad(found[real].square().sum(), [dirty, *layer.parameters()], allow_unused=True)
            assert all(slope is None or slope.isfinite().all() for slope in slopes)
            assert slopes[0] is not None and not slopes[0][~real].any(), "padding got a gradient"
            if not can.shares_query_key:
                recalled = layer(x, remembered=layer.remember(x, key_valid=real))
                torch.testing.assert_close(recalled[real], found[real], rtol=1e-9, atol=1e-9)
        if not can.shares_query_key:
            torch.testing.assert_close(layer(x, remembered=layer.remember(x)), out, rtol=1e-9, atol=1e-9)
        if can.stepwise and causal:
            torch.testing.assert_close(in_steps(layer, x, [2, 1, 7, LENGTH - 10]), out, rtol=1e-9, atol=1e-9)


FORMS = [(False, True, "headwise"), (False, False, "key_value"), (True, True, "key_value"), (True, False, "headwise")]
"""Fused projections or not, biases or not, and what shares a matrix of Linformer."""


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("fused", "bias", "sharing"), FORMS)
@pytest.mark.parametrize("part", ["none", *PARTS])
def test_compressing_first_is_exact_in_outputs_and_gradients(part, fused, bias, sharing, padded):
    options = {"fused": fused and "latents" not in part, "bias": bias, "sharing": sharing, **PARTS.get(part, {})}
    results = []
    for order in ("project_first", "compress_first"):
        layer = build("linformer", dim=16, heads=4, projected_length=5, order=order, **options)
        x = tokens(dim=16).requires_grad_()
        out = layer(x, key_valid=padding() if padded else None)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", ["project_first", "compress_first"])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_layer_that_compresses_first_is_gated(order, gradients, monkeypatch):
    monkeypatch.setattr("attn_zoo.layer.multi_head.CACHED_BYTES", 3 * DIM * 8 * 5)  # blocks of five queries
    layer = build("linformer", projected_length=3, order=order, output_gate="elementwise")
    assert layer.order is Order(order)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(layer(tokens()), written_out(layer, tokens()), rtol=1e-9, atol=1e-9)


def test_cross_attention_is_gated_by_the_tokens_of_the_queries():
    layer, context = build("softmax", context_length=7, context_dim=5, output_gate="elementwise"), tokens(length=7, dim=5)
    torch.testing.assert_close(layer(tokens(), context), written_out(layer, tokens(), context=context), rtol=1e-9, atol=1e-9)


def test_a_layer_has_queries_to_gate_by_though_its_mechanism_reads_none():
    assert build("uniform", output_gate="elementwise").makes_queries and not build("uniform").makes_queries


@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_timm_gates_after_its_norm(gate):
    kind = attention_layer("softmax", length=LENGTH, output_gate=gate)
    layer = perturbed(kind(DIM, HEADS, qkv_bias=True, scale_norm=True, norm_layer=nn.LayerNorm))
    assert isinstance(layer, TimmAttention) and layer.norm is not None and layer.gate is not None
    heads = layer.norm(layer.mechanism(*layer._project_all(tokens(), tokens())).transpose(1, 2).flatten(2))
    gates = torch.sigmoid(tokens() @ layer.gate.weight.T + layer.gate.bias)
    expected = heads * gates.repeat_interleave(DIM // gates.shape[-1], dim=-1) @ layer.out.weight.T + layer.out.bias
    torch.testing.assert_close(layer(tokens()), expected, rtol=1e-9, atol=1e-9)


def test_a_gate_of_another_form_is_refused():
    with pytest.raises(ValueError, match="output_gate must be 'none' or 'elementwise' or 'headwise'; got 'both'"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, output_gate="both")


def gate_before_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHeadAttention._project

    def project(self: MultiHeadAttention, name: str, x: Tensor) -> Tensor:
        made = right(self, name, x)
        return made if name != "value" or self.gate is None else made * self._split(self.gate(x)).sigmoid()

    monkeypatch.setattr(MultiHeadAttention, "_project", project)
    monkeypatch.setattr(MultiHeadAttention, "_gated", lambda self, heads, x: heads)


def gate_after_the_out_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHeadAttention._gated
    monkeypatch.setattr(MultiHeadAttention, "_gated", lambda self, heads, x: heads)
    monkeypatch.setattr(MultiHeadAttention, "_finish", lambda self, mixed, x: right(self, self.out(self._merge(mixed)), x))


def gate_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MultiHeadAttention._gated
    monkeypatch.setattr(MultiHeadAttention, "_gated", lambda self, heads, x: right(self, heads, heads))


def leaves_the_norm_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Projections, "_latent_of", lambda self, source: self.latent[0](source))


def normalises_over_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over all tokens, which lets later ones and padding in."""

    def wrong(self: Projections, source: Tensor) -> Tensor:
        assert isinstance(self.latent, nn.Sequential)
        down = self.latent[0](source)
        return self.latent[1].weight * down / (down.square().mean(dim=(1, 2), keepdim=True) + 1e-6).sqrt()

    monkeypatch.setattr(Projections, "_latent_of", wrong)


@pytest.mark.parametrize(
    ("mistake", "part"),
    [
        (gate_before_the_product, "gates of channels"),
        (gate_after_the_out_projection, "gates of channels"),
        (gate_of_the_output, "gates of channels"),
        (leaves_the_norm_out, "latents, two heads of keys"),
        (normalises_over_positions, "latents, two heads of keys"),
    ],
)
def test_a_mistake_is_caught(mistake, part, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_layer_equals_one_written_out("softmax", part)

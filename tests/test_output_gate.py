"""Output gate of a layer: equals one written out for every mechanism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from convolved_layers import DIM, HEADS, LENGTH, in_steps, padding, tokens
from tiers import covering, kinds
from torch import Tensor

from attn_zoo import attentions, card
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.integrations.timm.layer import TimmAttention
from attn_zoo.layer import MultiHeadAttention, Order

GATES = ["elementwise", "headwise"]


def perturbed(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Return the layer with changed parameters, so that no bias is zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def build(attention: str, gate: str = "elementwise", **kwargs: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    return perturbed(MultiHeadAttention(DIM, HEADS, attention, length=LENGTH, output_gate=gate, **kwargs).double().eval())


def merged(layer: MultiHeadAttention, **kwargs: Any) -> MultiHeadAttention:
    """Return the layer without gate and out projection: its outputs are those of the heads, side by side."""
    plain = build(layer.mechanism.card.name, "none", **kwargs)
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if not key.startswith("gate")})
    with torch.no_grad():
        plain.out.weight.copy_(torch.eye(DIM))
        plain.out.bias.zero_()
    return plain


def require_gated(layer: MultiHeadAttention, heads: Tensor, x: Tensor, out: Tensor) -> None:
    """Require that ``out`` is the out projection of ``heads`` times the gates of ``x``, written out."""
    assert layer.gate is not None
    gates = torch.sigmoid(x @ layer.gate.weight.T + layer.gate.bias)
    wide = gates.repeat_interleave(DIM // gates.shape[-1], dim=-1)
    torch.testing.assert_close(out, (heads * wide) @ layer.out.weight.T + layer.out.bias, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "gate"), covering(attentions(), GATES, kinds(attentions())))
def test_a_gate_multiplies_the_outputs_of_the_heads(name, gate):
    layer, x = build(name, gate), tokens()
    require_gated(layer, merged(layer)(x), x, layer(x))
    if card(name).can.key_padding:
        dirty, real = x.masked_fill(~padding()[..., None], float("nan")), padding()
        out, heads = layer(dirty, key_valid=real), merged(layer)(x, key_valid=real)
        require_gated(layer, heads[real], x[real], out[real])
        assert out.isfinite().all()


@pytest.mark.parametrize("order", ["project_first", "compress_first"])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_layer_that_compresses_first_is_gated(order, gradients, monkeypatch):
    monkeypatch.setattr("attn_zoo.layer.multi_head.CACHED_BYTES", 3 * DIM * 8 * 5)  # blocks of five queries
    options = {"projected_length": 3, "order": order}
    layer, x = build("linformer", **options), tokens()
    assert layer.order is Order(order)
    with torch.set_grad_enabled(gradients):
        require_gated(layer, merged(layer, **options)(x), x, layer(x))


def test_gates_read_the_tokens_that_are_projected():
    layer, x = build("uniform", short_convolution=4), tokens()
    assert layer.short_convolution is not None
    require_gated(layer, merged(layer, short_convolution=4)(x), layer.short_convolution(x), layer(x))
    assert layer.makes_queries and not merged(layer, short_convolution=4).makes_queries
    torch.testing.assert_close(layer(x, remembered=layer.remember(x)), layer(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize(("name", "gate"), covering([name for name in attentions() if card(name).can.stepwise], GATES))
def test_stepwise_matches_full(name, width, gate):
    layer, x = build(name, gate, causal=True, short_convolution=width), tokens()
    torch.testing.assert_close(in_steps(layer, x, [2, 1, 7, LENGTH - 10]), layer(x), rtol=1e-9, atol=1e-9)


def test_cross_attention_is_gated_by_the_tokens_of_the_queries():
    layer, x, context = build("softmax", context_length=7, context_dim=5), tokens(), torch.randn(3, 7, 5, dtype=torch.float64)
    require_gated(layer, merged(layer, context_length=7, context_dim=5)(x, context), x, layer(x, context))


@pytest.mark.parametrize("gate", GATES)
def test_timm_gates_after_its_norm(gate):
    kind = attention_layer("softmax", length=LENGTH, output_gate=gate)
    layer = perturbed(kind(DIM, HEADS, qkv_bias=True, scale_norm=True, norm_layer=torch.nn.LayerNorm).double().eval())
    assert isinstance(layer, TimmAttention) and layer.norm is not None
    heads = layer.mechanism(*layer._project_all(tokens(), tokens())).transpose(1, 2).flatten(2)
    require_gated(layer, layer.norm(heads), tokens(), layer(tokens()))


def test_a_gate_of_another_form_is_refused():
    with pytest.raises(ValueError, match="output_gate must be 'none' or 'elementwise' or 'headwise'; got 'both'"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, output_gate="both")

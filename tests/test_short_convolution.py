"""Short convolution before the projections: starts as the identity, respects causality and padding, equals one written out."""

from __future__ import annotations

from typing import Any

import convolved_layers as checks
import pytest
import torch
from convolved_layers import DIM, HEADS, LENGTH, build, by_hand, padding, tokens
from tiers import of_each_kind

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

CAUSAL = [name for name in attentions() if card(name).can.causal]
PADDED = [name for name in attentions() if card(name).can.key_padding]


@pytest.mark.parametrize(
    ("width", "causal", "reach"), [(1, True, (0, 0)), (4, True, (3, 0)), (3, False, (1, 1)), (4, False, (2, 2))]
)
def test_taps_lie_where_the_width_says(width, causal, reach):
    convolution = ShortConvolution(DIM, width, causal=causal).double()
    assert (convolution.before, convolution.after) == reach
    assert convolution.weight.shape == (DIM, sum(reach) + 1)
    assert torch.equal(convolution(tokens()), tokens())
    torch.nn.init.normal_(convolution.weight)
    for length in (1, 2, LENGTH):
        x = tokens(length=length)
        torch.testing.assert_close(convolution(x), by_hand(convolution, x), rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, _: convolution(x), (tokens(2, 5).requires_grad_(), convolution.weight))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_a_new_layer_is_the_one_without(name, fused):
    checks.check_start(name, fused=fused)


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_a_layer_convolves_the_tokens_that_it_projects(name):
    checks.check_tokens(name)


@pytest.mark.parametrize("order", ["project_first", "compress_first"])
def test_padding_is_neither_compressed_nor_convolved(order):
    for check in (checks.check_tokens, checks.check_padding):
        check("linformer", projected_length=3, order=order)


@pytest.mark.parametrize("name", of_each_kind(PADDED))
def test_padding_has_no_influence_wherever_it_lies(name):
    checks.check_padding(name)


@pytest.mark.parametrize("name", of_each_kind(CAUSAL))
def test_causal_layers_see_no_token_of_the_future(name):
    checks.check_causality(name)


@pytest.mark.parametrize("name", ["softmax", "linear", "performer", "convolution", "linformer_causal"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_differences(name, causal):
    if not causal or card(name).can.causal:
        checks.check_gradients(name, causal=causal)


@pytest.mark.variants
@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_what_is_counted_is_what_the_formula_says(name):
    for causal in {False, card(name).can.causal}:
        checks.check_cost(name, causal=causal)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolved_tokens_are_compressed_first_exactly(bias, padded):
    results = []
    for order in ("project_first", "compress_first"):
        layer, x = build("linformer", projected_length=5, order=order, bias=bias), tokens().requires_grad_()
        out = layer(x, key_valid=padding() if padded else None)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("valid", [None, padding()])
@pytest.mark.parametrize("name", ["softmax", "linformer", "luna", "performer", "convolution"])
def test_remembered_keys_are_of_convolved_tokens(name, valid):
    layer, real = build(name), slice(None) if valid is None else valid
    remembered = layer.remember(tokens(), key_valid=valid)
    torch.testing.assert_close(layer(tokens(), remembered=remembered)[real], layer(tokens(), key_valid=valid)[real])


@pytest.mark.parametrize("name", ["softmax", "linformer", "performer"])
def test_remembered_keys_are_refused_for_some_of_the_tokens(name):
    """The convolution would not see the neighbours of these tokens."""
    layer = build(name)
    remembered = layer.remember(tokens(), key_valid=padding())
    with pytest.raises(UnsupportedError, match=rf"as many as the {LENGTH} remembered ones.*got 2\. Pass all tokens and select"):
        layer(tokens()[:, 4:6], remembered=remembered)


@pytest.mark.parametrize("name", ["softmax", "linformer", "linformer_causal"])
def test_lengths_and_batches_other_than_those_built_for(name):
    layer = build(name)
    with torch.no_grad():
        assert layer(tokens(batch=0)).shape == (0, LENGTH, DIM)
    layer(tokens(batch=0)).sum().backward()
    layer.resize_length(10)
    assert layer(tokens(length=10)).shape == (3, 10, DIM)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, LENGTH), (0, 0)])
def test_no_tokens_give_no_tokens(batch, length, causal):
    layer = build("linear", causal=causal)
    for valid in (None, torch.ones(batch, length, dtype=torch.bool)):
        x = torch.randn(batch, length, DIM, dtype=torch.float64, requires_grad=True)
        out = layer(x, key_valid=valid)
        assert out.shape == x.shape
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "linformer", "performer"])
def test_half_precision_and_autocast(name, dtype):
    layer, x = build(name).float(), tokens().float().requires_grad_()
    expected = layer(x, key_valid=padding())[padding()]
    half = build(name).to(dtype)(tokens().to(dtype), key_valid=padding())
    assert half.dtype is dtype
    with torch.autocast("cpu", dtype):
        cast = layer(x, key_valid=padding())
    assert cast.dtype is dtype
    cast.float().square().sum().backward()
    for rough in (half, cast):
        assert (rough[padding()].float() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("causal", [False, True])
def test_compiles_whole(causal):
    layer, x = build("softmax", causal=causal).float(), tokens().float().requires_grad_()
    expected = layer(x, key_valid=padding())
    torch._dynamo.reset()
    out = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, key_valid=padding())
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    slopes = [torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) for y in (out, expected)]
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UnsupportedError, match="short_convolution must be 0 for a layer that reads a context"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, context_length=7, short_convolution=4)
    bad: tuple[Any, ...] = (-1, 2.0, True)
    for width in bad:
        with pytest.raises(ValueError, match=f"short_convolution must be an integer >= 0; got {width}"):
            MultiHeadAttention(DIM, HEADS, length=LENGTH, short_convolution=width)

"""Short convolution before the projections: starts as the identity, respects causality and padding, equals one written out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import written_layers
from tiers import of_each_kind
from written_layers import DIM, HEADS, LENGTH, convolved, padding, tokens, written_out

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.count import Counts, tally
from attn_zoo.count.formulas import layer_cost
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

CAUSAL = [name for name in attentions() if card(name).can.causal]
build = partial(written_layers.build, width=4)


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
        torch.testing.assert_close(convolution(x), convolved(convolution, x), rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, _: convolution(x), (tokens(2, 5).requires_grad_(), convolution.weight))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_a_new_layer_is_the_one_without(name, fused):
    plain = build(name, width=0, fused=fused)
    new = MultiHeadAttention(DIM, HEADS, name, length=LENGTH, short_convolution=4, fused=fused).double().eval()
    loaded = new.load_state_dict(plain.state_dict(), strict=False)
    assert loaded.missing_keys == ["short_convolution.weight"] and not loaded.unexpected_keys
    assert torch.equal(new(tokens()), plain(tokens()))


@pytest.mark.parametrize("order", ["project_first", "compress_first"])
def test_padding_is_neither_compressed_nor_convolved(order):
    layer, real = build("linformer", projected_length=3, order=order), padding()
    dirty = tokens().masked_fill(~real[..., None], torch.nan)
    found = layer(dirty, key_valid=real)[real]
    torch.testing.assert_close(found, written_out(layer, tokens(), real)[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", of_each_kind(CAUSAL))
def test_causal_layers_see_no_token_of_the_future(name):
    layer, at = build(name, causal=True), 11
    other = torch.where((torch.arange(LENGTH) < at)[:, None], tokens(), tokens(seed=2))
    torch.testing.assert_close(layer(tokens())[:, :at], layer(other)[:, :at], rtol=0, atol=1e-10)
    assert not torch.allclose(layer(tokens())[:, at:], layer(other)[:, at:])


@pytest.mark.parametrize("name", ["softmax", "linear", "performer", "convolution", "linformer_causal"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_differences(name, causal):
    layer, x = build(name, causal=causal), tokens(batch=1).requires_grad_()
    assert layer.short_convolution is not None
    assert torch.autograd.gradcheck(lambda x, _: layer(x).sum(dim=1), (x, layer.short_convolution.weight), fast_mode=True)


@pytest.mark.variants
@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_what_is_counted_is_what_the_formula_says(name):
    """PyTorch's count is the same on the meta device and on the CPU."""

    def counted(device: str, batch: int, causal: bool) -> tuple[MultiHeadAttention, Counts]:
        with torch.device(device):
            given: dict[str, Any] = {"causal": causal, "implementation": card(name).counted_implementation}
            layer = MultiHeadAttention(DIM, HEADS, name, length=LENGTH, short_convolution=4, **given).eval()
            x = torch.zeros(batch, LENGTH, DIM, requires_grad=True)
            return layer, tally(lambda: layer(x), [x, *layer.parameters(), *layer.buffers()], layer)

    for causal in {False, card(name).can.causal}:
        assert counted("cpu", 3, causal)[1] == counted("meta", 3, causal)[1]
        layer, found = counted("meta", 1, causal)
        stated = layer_cost(layer)
        assert (stated.flops, stated.backward_flops) == (found.flops, found.backward_flops)
        assert stated.parameters == sum(parameter.numel() for parameter in layer.parameters())


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

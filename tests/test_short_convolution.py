"""A short convolution before the projections: starts as nothing, sees what it may, and is no different from one written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

LENGTH, DIM, HEADS = 24, 8, 2
CAUSAL = [name for name in attentions() if card(name).can.causal]
PADDED = [name for name in attentions() if card(name).can.key_padding]


def build(attention: str, width: int = 4, *, start: bool = False, **kwargs) -> MultiHeadAttention:
    """A layer whose taps are drawn, unless it is to be as it starts."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, attention, length=LENGTH, short_convolution=width, **kwargs).double().eval()
    if layer.short_convolution is not None and not start:
        torch.nn.init.normal_(layer.short_convolution.weight)
    return layer


def tokens(batch: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding() -> Tensor:
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[0, 15:] = False
    valid[1, 5:9] = False
    valid[1, :2] = False
    return valid


def by_hand(convolution: ShortConvolution, x: Tensor) -> Tensor:
    """Position by position."""
    before, n = convolution.before, x.shape[1]
    out = torch.zeros_like(x)
    for i in range(n):
        for tap in range(convolution.weight.shape[1]):
            if 0 <= i + tap - before < n:
                out[:, i] += convolution.weight[:, tap] * x[:, i + tap - before]
    return out


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
@pytest.mark.parametrize("name", attentions())
def test_a_new_layer_is_the_one_without(name, fused):
    plain, new = build(name, 0, fused=fused), build(name, start=True, fused=fused)
    missing = new.load_state_dict(plain.state_dict(), strict=False)
    assert missing.missing_keys == ["short_convolution.weight"] and not missing.unexpected_keys
    assert torch.equal(new(tokens()), plain(tokens()))


@pytest.mark.parametrize("name", attentions())
def test_a_layer_convolves_the_tokens_that_it_projects(name):
    plain, new = build(name, 0), build(name)
    plain.load_state_dict({k: v for k, v in new.state_dict().items() if not k.startswith("short_convolution")})
    assert new.short_convolution is not None
    torch.testing.assert_close(new(tokens()), plain(by_hand(new.short_convolution, tokens())), rtol=0, atol=1e-10)
    if card(name).can.key_padding:
        clean = tokens().masked_fill(~padding()[..., None], 0)
        expected = plain(by_hand(new.short_convolution, clean), key_valid=padding())
        torch.testing.assert_close(new(tokens(), key_valid=padding())[padding()], expected[padding()], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", PADDED)
def test_padding_has_no_influence_wherever_it_lies(name):
    layer, valid = build(name), padding()
    clean, dirty = tokens().requires_grad_(), tokens().masked_fill(~valid[..., None], float("nan")).requires_grad_()
    outs = [layer(x, key_valid=valid) for x in (clean, dirty)]
    assert all(out.isfinite().all() for out in outs)
    torch.testing.assert_close(outs[0][valid], outs[1][valid], rtol=0, atol=1e-12)
    for out, x in zip(outs, (clean, dirty), strict=True):
        slopes = torch.autograd.grad(out[valid].square().sum(), [x, *layer.parameters()], allow_unused=True)
        assert all(slope is None or slope.isfinite().all() for slope in slopes)
        assert slopes[0] is not None
        assert (slopes[0][~valid] == 0).all(), "padding got a gradient"


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_layers_see_no_token_of_the_future(name):
    layer, at = build(name, causal=True), 11
    other = torch.where((torch.arange(LENGTH) < at)[:, None], tokens(), tokens(seed=2))
    torch.testing.assert_close(layer(tokens())[:, :at], layer(other)[:, :at], rtol=0, atol=1e-10)
    assert not torch.allclose(layer(tokens())[:, at:], layer(other)[:, at:])


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


@pytest.mark.parametrize("name", ["softmax", "linformer", "linformer_causal"])
def test_lengths_and_batches_other_than_those_built_for(name):
    layer = build(name)
    with torch.no_grad():
        assert layer(tokens(batch=0)).shape == (0, LENGTH, DIM)
    layer(tokens(batch=0)).sum().backward()
    layer.resize_length(10)
    assert layer(tokens(length=10)).shape == (3, 10, DIM)


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
    with pytest.raises(UnsupportedError, match="this layer reads a context; use short_convolution=0, got 4"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, context_length=7, short_convolution=4)
    for width in (-1, 2.0, True):
        with pytest.raises(ValueError, match=f"whole number, 0 for none; got {width}"):
            MultiHeadAttention(DIM, HEADS, length=LENGTH, short_convolution=width)

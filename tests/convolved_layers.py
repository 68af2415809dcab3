"""Checks of a layer with a short convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attn_zoo import card
from attn_zoo.count import Tally, tally
from attn_zoo.count.formulas import layer_cost
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

LENGTH, DIM, HEADS = 24, 8, 2


def build(attention: str, width: int = 4, *, start: bool = False, **kwargs) -> MultiHeadAttention:
    """Layer with perturbed parameters, so that no bias is zero, and random taps, or the initial ones with ``start``."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, attention, length=LENGTH, short_convolution=width, **kwargs).double().eval()
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if not key.startswith("short_convolution"):
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif not start:
                torch.nn.init.normal_(parameter)
    return layer


def tokens(batch: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding() -> Tensor:
    """Mask of real tokens: padding at the end of the first example, at the start and in the middle of the second."""
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[0, 15:] = False
    valid[1, 5:9] = False
    valid[1, :2] = False
    return valid


def by_hand(convolution: ShortConvolution, x: Tensor) -> Tensor:
    """Short convolution computed position by position."""
    before, n = convolution.before, x.shape[1]
    out = torch.zeros_like(x)
    for i in range(n):
        for tap in range(convolution.weight.shape[1]):
            if 0 <= i + tap - before < n:
                out[:, i] += convolution.weight[:, tap] * x[:, i + tap - before]
    return out


def check_start(name: str, **kwargs) -> None:
    """Check that a new layer computes the same as a layer without the convolution."""
    plain, new = build(name, 0, **kwargs), build(name, start=True, **kwargs)
    loaded = new.load_state_dict(plain.state_dict(), strict=False)
    assert loaded.missing_keys == ["short_convolution.weight"] and not loaded.unexpected_keys
    assert torch.equal(new(tokens()), plain(tokens()))


def check_tokens(name: str, **kwargs) -> None:
    """Check that a layer equals one without the convolution on tokens convolved by hand, with padded tokens set to zero."""
    plain, new = build(name, 0, **kwargs), build(name, **kwargs)
    plain.load_state_dict({k: v for k, v in new.state_dict().items() if not k.startswith("short_convolution")})
    assert new.short_convolution is not None
    torch.testing.assert_close(new(tokens()), plain(by_hand(new.short_convolution, tokens())), rtol=0, atol=1e-10)
    if card(name).can.key_padding:
        clean = tokens().masked_fill(~padding()[..., None], 0)
        expected = plain(by_hand(new.short_convolution, clean), key_valid=padding())
        torch.testing.assert_close(new(tokens(), key_valid=padding())[padding()], expected[padding()], rtol=0, atol=1e-10)


def check_padding(name: str, **kwargs) -> None:
    """Check that NaN in padding, at any position, reaches no output and no gradient."""
    layer, valid = build(name, **kwargs), padding()
    clean, dirty = tokens().requires_grad_(), tokens().masked_fill(~valid[..., None], float("nan")).requires_grad_()
    outs = [layer(x, key_valid=valid) for x in (clean, dirty)]
    assert all(out.isfinite().all() for out in outs)
    torch.testing.assert_close(outs[0][valid], outs[1][valid], rtol=0, atol=1e-12)
    for out, x in zip(outs, (clean, dirty), strict=True):
        slopes = torch.autograd.grad(out[valid].square().sum(), [x, *layer.parameters()], allow_unused=True)
        assert all(slope is None or slope.isfinite().all() for slope in slopes)
        assert slopes[0] is not None
        assert (slopes[0][~valid] == 0).all(), "padding got a gradient"


def check_causality(name: str, at: int = 11) -> None:
    """Check that tokens from position ``at`` on change no output before it, and some output from it on."""
    layer = build(name, causal=True)
    other = torch.where((torch.arange(LENGTH) < at)[:, None], tokens(), tokens(seed=2))
    torch.testing.assert_close(layer(tokens())[:, :at], layer(other)[:, :at], rtol=0, atol=1e-10)
    assert not torch.allclose(layer(tokens())[:, at:], layer(other)[:, at:])


def check_gradients(name: str, **kwargs) -> None:
    """Check the gradients of tokens and taps against finite differences."""
    layer, x = build(name, **kwargs), tokens(batch=1).requires_grad_()
    assert layer.short_convolution is not None
    assert torch.autograd.gradcheck(lambda x, _: layer(x).sum(dim=1), (x, layer.short_convolution.weight), fast_mode=True)


def check_cost(name: str, **kwargs) -> None:
    """Check that the cost formula equals PyTorch's count, which is the same on the meta device and on the CPU."""

    def counted(device: str, batch: int) -> tuple[MultiHeadAttention, Tally]:
        with torch.device(device):
            kwargs["implementation"] = card(name).counted_implementation
            layer = MultiHeadAttention(DIM, HEADS, name, length=LENGTH, short_convolution=4, **kwargs).eval()
            x = torch.zeros(batch, LENGTH, DIM, requires_grad=True)
            return layer, tally(lambda: layer(x), [x, *layer.parameters(), *layer.buffers()], layer)

    assert counted("cpu", 3)[1] == counted("meta", 3)[1]
    layer, found = counted("meta", 1)
    stated = layer_cost(layer)
    assert (stated.flops, stated.backward_flops) == (found.flops, found.backward_flops)
    assert stated.parameters == sum(parameter.numel() for parameter in layer.parameters())


def in_steps(layer: MultiHeadAttention, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Output of a layer that reads its tokens in pieces of these sizes."""
    state, out = layer.initial_state(x.shape[0], dtype=x.dtype), []
    for piece in x.split(list(sizes), dim=1):
        answer, state = layer.step(piece, state)
        out.append(answer)
    assert state.position == x.shape[1]
    return torch.cat(out, dim=1)


def check_steps(name: str, width: int = 4, **kwargs) -> None:
    """Check that outputs and gradients of steps equal those of one call."""
    layer = build(name, width, causal=True, **kwargs)
    found: dict[str, list[Tensor]] = {}
    ways = {"token by token": [1] * LENGTH, "in pieces": [2, 1, 7, 1, LENGTH - 11], "a prefix and the last": [LENGTH - 1, 1]}
    for way, sizes in {"in one call": None, "in one piece": [LENGTH], **ways}.items():
        x = tokens().requires_grad_()
        out = layer(x) if sizes is None else in_steps(layer, x, sizes)
        found[way] = [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]
    for way, answers in found.items():
        for mine, whole in zip(answers, found["in one call"], strict=True):
            assert torch.allclose(mine, whole, rtol=0, atol=1e-10 * max(1.0, whole.abs().max().item())), way

"""Gated linear attention against its recurrence written out, token after token."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear import gated_linear
from attn_zoo.attention.linear.gated_linear import GatedLinear
from attn_zoo.kernels.cpu import _chunks as chunks

IMPLEMENTATION = "eager"


def build(n: int = 33, *, causal: bool = True, **options) -> GatedLinear:
    built = build_attention("gated_linear", Geometry(2, 8, n, n, causal), implementation=IMPLEMENTATION, **options)
    assert isinstance(built, GatedLinear)
    return built


def draw(n: int = 33, *, sharpness: float = 1.0, seed: int = 1) -> list[Tensor]:
    """Return queries, keys, values and gates."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(3, 2, n, 8, dtype=torch.float64, generator=generator) for _ in range(4)]
    return [x.requires_grad_() for x in (*drawn[:3], sharpness * drawn[3])]


def call(built: GatedLinear, inputs: list[Tensor], valid: Tensor | None = None) -> Tensor:
    out: Tensor = built(*inputs[:3], key_valid=valid, streams={"gate": inputs[3]})
    return out


def recurrence(
    inputs: list[Tensor],
    *,
    temperature: float = 16.0,
    normalise: bool = True,
    feature_map: str = "silu",
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs, normalised last, and the final state, token by token; padding is skipped."""
    query, key, value, gate = inputs
    query, key = (x * x.sigmoid() if feature_map == "silu" else x for x in (query, key))
    alpha = (torch.nn.functional.logsigmoid(gate) / temperature).clamp(min=-3.75).exp()
    state, out = query.new_zeros(3, 2, 8, 8), []
    for t in range(query.shape[2]):
        after = alpha[:, :, t, :, None] * state + key[:, :, t, :, None] * value[:, :, t, None, :]
        state = after if valid is None else torch.where(valid[:, t, None, None, None], after, state)
        out.append(torch.einsum("bhd,bhde->bhe", query[:, :, t], state) / 8**0.5)
    return norm(torch.stack(out, dim=2), normalise), state


def norm(out: Tensor, normalise: bool = True) -> Tensor:
    return out / (out.square().mean(-1, keepdim=True) + 1e-5).sqrt() if normalise else out


def require_same(got: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).reshape(got.shape)
    grads = [torch.autograd.grad((out * weights).sum(), inputs) for out in (got, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)


@pytest.fixture(params=["eager", "tiled"], autouse=True)
def small_blocks(request, monkeypatch):
    """Run each test with both implementations; the tiled one has chunks of 8 positions and blocks of two or four chunks."""
    monkeypatch.setattr(sys.modules[__name__], "IMPLEMENTATION", request.param)
    monkeypatch.setattr(chunks, "CHUNK", 16)
    monkeypatch.setattr(gated_linear, "CHUNK", 8)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 3 * 2 * 8 * 8 * 32)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 33, 70])
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"normalise": False}, {"feature_map": "none"}], ids=str)
def test_equals_its_recurrence_written_out(padded, n, options):
    inputs = draw(n)
    lengths = torch.tensor([n, max(1, n // 2), 1])[:, None]
    valid = (torch.arange(n) < lengths) & ((torch.arange(n) % 5 != 2) | (torch.arange(n) == 0)) if padded else None
    got = call(build(n, **options), inputs, valid)
    require_same(got, recurrence(inputs, **options, valid=valid)[0], inputs)


@pytest.mark.parametrize("padded", [False, True])
def test_without_causality_it_reads_from_both_ends(padded):
    inputs = draw()
    valid = torch.arange(33) % 5 != torch.tensor([7, 2, 0])[:, None] if padded else None
    ahead, _ = recurrence(inputs, normalise=False, valid=valid)
    back, _ = recurrence([x.flip(2) for x in inputs], normalise=False, valid=None if valid is None else valid.flip(1))
    require_same(call(build(causal=False), inputs, valid), norm(ahead + back.flip(2)), inputs)


@pytest.mark.parametrize("sharpness", [1.0, 100.0, 3000.0])
def test_any_gate_is_exact_in_single_precision(sharpness, monkeypatch):
    """A chunk of the usual size holds gates that forget almost everything beside gates that keep almost everything."""
    monkeypatch.undo()
    inputs = [x.detach() for x in draw(200, sharpness=sharpness)]
    single = [x.float().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in single]
    outs = call(build(200, normalise=False), single), recurrence(double, normalise=False)[0]
    torch.testing.assert_close(outs[0].double(), outs[1], rtol=0, atol=1e-5 * outs[1].abs().max().item())
    for mine, theirs in zip(*(torch.autograd.grad(o.sum(), x) for o, x in zip(outs, (single, double), strict=True)), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())

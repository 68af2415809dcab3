"""The delta rule against its recurrence written out, token after token, and its purpose: a key holds its last value."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear import delta_rule
from attn_zoo.attention.linear.delta_rule import DeltaRule
from attn_zoo.kernels.cpu import _chunks as chunks

IMPLEMENTATION = "eager"


def build(n: int = 33, *, causal: bool = True, **options) -> DeltaRule:
    built = build_attention("delta_rule", Geometry(2, 8, n, n, causal), implementation=IMPLEMENTATION, **options)
    assert isinstance(built, DeltaRule)
    return built


def draw(n: int = 33, *, seed: int = 1) -> list[Tensor]:
    """Return queries, keys, values and strengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 2, n, 8, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(4)]


def call(built: DeltaRule, inputs: list[Tensor], valid: Tensor | None = None) -> Tensor:
    out: Tensor = built(*inputs[:3], key_valid=valid, streams={"strength": inputs[3]})
    return out


def unit(x: Tensor) -> Tensor:
    x = x * x.sigmoid()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def recurrence(
    inputs: list[Tensor], *, normalise: bool = True, valid: Tensor | None = None, negative: bool = False
) -> tuple[Tensor, Tensor]:
    """Return outputs, normalised last, and the final Sᵀ of S ← S (I - β k kᵀ) + β v kᵀ, token by token; padding is skipped."""
    query, key, value = unit(inputs[0]), unit(inputs[1]), inputs[2]
    beta = (1 + negative) * (inputs[3].sum(-1) / 8**0.5).sigmoid()
    state, out = query.new_zeros(3, 2, 8, 8), []  # rows: values, columns: keys
    for t in range(query.shape[2]):
        k, b = key[:, :, t], beta[:, :, t, None, None]
        after = state @ (torch.eye(8, dtype=k.dtype) - b * k[..., :, None] * k[..., None, :])
        after = after + b * value[:, :, t, :, None] * k[..., None, :]
        state = after if valid is None else torch.where(valid[:, t, None, None, None], after, state)
        out.append((state @ query[:, :, t, :, None])[..., 0])
    return norm(torch.stack(out, dim=2), normalise), state.mT


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
    monkeypatch.setattr(delta_rule, "CHUNK", 8)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 3 * 2 * 8 * 8 * 32)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 33, 70])
@pytest.mark.parametrize("normalise", [True, False])
def test_equals_its_recurrence_written_out(padded, n, normalise):
    inputs = draw(n)
    lengths = torch.tensor([n, max(1, n // 2), 1])[:, None]
    valid = (torch.arange(n) < lengths) & ((torch.arange(n) % 5 != 2) | (torch.arange(n) == 0)) if padded else None
    got = call(build(n, normalise=normalise), inputs, valid)
    require_same(got, recurrence(inputs, normalise=normalise, valid=valid)[0], inputs)


@pytest.mark.parametrize("padded", [False, True])
def test_without_causality_it_reads_from_both_ends(padded):
    inputs = draw()
    valid = torch.arange(33) % 5 != torch.tensor([7, 2, 0])[:, None] if padded else None
    ahead, _ = recurrence(inputs, normalise=False, valid=valid)
    back, _ = recurrence([x.flip(2) for x in inputs], normalise=False, valid=None if valid is None else valid.flip(1))
    require_same(call(build(causal=False), inputs, valid), norm(ahead + back.flip(2)), inputs)


@pytest.mark.parametrize("n", [1, 33, 70])
def test_with_negative_eigenvalues_it_equals_its_recurrence_with_twice_the_strength(n):
    inputs = draw(n)
    got = call(build(n, negative_eigenvalues=True), inputs)
    require_same(got, recurrence(inputs, negative=True)[0], inputs)


@pytest.mark.parametrize("negative", [False, True])
def test_only_negative_eigenvalues_turn_a_memory_into_its_negative(negative):
    """With one repeated key and no value after the first, β near 2 flips the sign at each step, and β near 1 empties the memory."""
    _, key, value, strength = (x.detach() for x in draw(12))
    key, value = key[:, :, :1].expand_as(key), value * (torch.arange(12) == 0)[:, None]
    out = call(build(12, normalise=False, negative_eigenvalues=negative), [key, key, value, torch.full_like(strength, 50.0)])
    signs = (-1.0) ** torch.arange(12, dtype=torch.float64)[:, None]
    expected = 2 * value[:, :, :1] * signs if negative else value
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_a_key_written_again_holds_its_last_value():
    """With β near 1, the last value replaces the others; a sum over keys and values would hold them all."""
    _, key, value, strength = (x.detach() for x in draw(12))
    key = key[:, :, :1].expand_as(key)
    out = call(build(12, normalise=False), [key, key, value, torch.full_like(strength, 50.0)])
    torch.testing.assert_close(out, value, rtol=1e-4, atol=1e-4)


def test_one_key_many_times_stays_exact_in_single_precision(monkeypatch):
    """The hardest system to solve: every key of a chunk corrects every later one."""
    monkeypatch.undo()
    query, key, value, strength = (x.detach().float() for x in draw(300))
    inputs = [query, key[:, :, :1].expand_as(key), value, strength + 3]
    expected, _ = recurrence([x.double() for x in inputs], normalise=False)
    got = call(build(300, normalise=False), inputs)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())

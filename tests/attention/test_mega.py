"""MEGA against its averages as recurrences and its chunks written out, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from written_out import builder, padding, require_same, several

from attn_zoo.attention.recurrent._moving_average import moving_average
from attn_zoo.attention.recurrent.mega import Mega
from attn_zoo.kernels.cpu import _chunks as chunks

both = pytest.mark.parametrize("causal", [False, True])


build = builder(Mega, moved=0.3, expansion=3)


def recurrence(x: Tensor, keep: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """Moving average in one direction, step by step, with h states for each channel."""
    state, out = torch.zeros(*x.shape[:2], *keep.shape[1:], dtype=x.dtype), []
    for now in x.unbind(2):
        state = keep * state + write * now[..., None]
        out.append((read * state).sum(dim=-1))
    return torch.stack(out, dim=2)


def averages(x: Tensor, keep: Tensor, write: Tensor, read: Tensor) -> Tensor:
    ahead = recurrence(x, keep[0], write[0], read[0])
    return ahead if len(keep) == 1 else ahead + recurrence(x.flip(2), keep[1], write[1], read[1]).flip(2)


def written_out(built: Mega, x: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    enter, leave = built.decay_in.sigmoid(), built.decay_out.sigmoid()
    seen = x * valid[:, None, :, None]
    y = averages(seen, 1 - enter * leave, enter * built.spread, built.gather)
    y = y + built.residual * seen
    shared = y * y.sigmoid()
    query, key = shared * built.gain[0] + built.offset, shared * built.gain[1]
    chunk, out = built.options.chunk, []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, x.shape[:3])).tolist():
        own = [j for j in range(x.shape[2]) if j // chunk == i // chunk and valid[b, j] and not (built.geometry.causal and j > i)]
        weights = (key[b, h, own] @ query[b, h, i] / 8**0.5).softmax(dim=-1)
        out.append(weights @ value[b, h, own] + shared[b, h, i] if valid[b, i] else torch.zeros(8, dtype=torch.float64))
    return torch.stack(out).view_as(x)


@both
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{"chunk": 7}, {"chunk": 16, "expansion": 1}, {"chunk": 64}], ids=str)
def test_equals_its_definition(monkeypatch, causal, padded, options):
    monkeypatch.setattr(chunks, "CHUNK", 8)  # positions in a chunk of the moving averages
    n = 32 if options["chunk"] == 16 else 27
    built, (x, value) = build(n, causal=causal, **options), several(2, n)
    valid = padding(n) if padded else torch.ones(3, n, dtype=torch.bool)
    got = built(x, x, value, key_valid=valid if padded else None) * valid[:, None, :, None]
    require_same(got, written_out(built, x, value, valid), [x, value, *built.parameters()])


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_averages_equal_their_recurrence(ways, n):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 2, n, 3, dtype=torch.float64, generator=generator).requires_grad_()
    keep, write, read = (torch.rand(ways, 2, 3, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3))
    require_same(moving_average(x, keep, write, read), averages(x, keep, write, read), [x, keep, write, read])


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_averages_that_forget_at_once_or_never(kept):
    x, one = torch.randn(1, 1, 150, 2, dtype=torch.float64), torch.ones(1, 1, 2, 1, dtype=torch.float64)
    keep = (kept * one).requires_grad_()
    got = moving_average(x, keep, one, one)
    torch.testing.assert_close(got, x if kept == 0 else x.cumsum(dim=2))
    (grad,) = torch.autograd.grad(got.sum(), keep)
    assert grad.isfinite().all()


def test_averages_leave_no_trace_of_the_future():
    """Future tokens, however large, do not change past averages even by rounding."""
    x, weights = torch.randn(1, 2, 200, 3), torch.full((1, 2, 3, 4), 0.9)
    loud = torch.cat([x[:, :, :90], 1e20 * x[:, :, 90:]], dim=2)
    quiet, beside = (moving_average(t, weights, weights, weights)[:, :, :90] for t in (x, loud))
    assert torch.equal(quiet, beside)

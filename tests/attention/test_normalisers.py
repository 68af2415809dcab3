"""The sparse normalisers against their definition, solved by sorting and bisection in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo import UnsupportedError
from attn_zoo.attention.dense import _normalisers
from attn_zoo.kernels.cpu import entmax as tiles
from attn_zoo.kernels.cpu.entmax import threshold


def in_tiles(scores: Tensor, allowed: Tensor | None, alpha: float, dropout: float = 0.0) -> Tensor:
    """Weights of tiled attention: with unit vectors times √width as keys, queries are the scores; values are unit vectors."""
    n = scores.shape[-1]
    width = 4 ** math.ceil(math.log(n, 4))  # a power of 4, whose root is exact in every dtype
    shape = scores.shape if allowed is None else torch.broadcast_shapes(scores.shape, allowed.shape)
    query = F.pad(scores.expand(shape), (0, width - n)).reshape(-1, 1, 1, width)
    eye = torch.eye(n, width, dtype=scores.dtype).expand(len(query), 1, -1, -1)
    valid = None if allowed is None else allowed.expand(shape).reshape(-1, n)
    out = tiles.entmax_attention(query, eye * width**0.5, eye, valid, alpha, causal=False, dropout=dropout)
    return out[..., :n].reshape(shape)


FORMS = {"bisection": _normalisers.entmax_by_bisection, "eager": _normalisers.entmax_over_valid, "tiled": in_tiles}
ALPHAS = [1.0, 1.05, 1.25, 1.5, 1.75, 2.0]


def sparsemax_by_sorting(row: Tensor) -> Tensor:
    """Sparsemax by the largest support whose smallest member exceeds (the sum of the support - 1) / its size."""
    ordered, sizes = row.sort(descending=True).values, torch.arange(1, len(row) + 1)
    taus = (ordered.cumsum(0) - 1) / sizes
    return (row - taus[(ordered > taus).nonzero()[-1, 0]]).clamp(min=0)


def entmax15_by_sorting(row: Tensor) -> Tensor:
    """1.5-entmax by the largest support whose smallest member exceeds the solution of the support's quadratic equation."""
    half, sizes = (row - row.max().detach()) / 2, torch.arange(1, len(row) + 1)
    ordered = half.sort(descending=True).values
    means = ordered.cumsum(0) / sizes
    left = (1 - ordered.square().cumsum(0)) / sizes + means.square()
    taus = means - left.clamp(min=1e-300).sqrt()
    size = ((left >= 0) & (ordered > taus)).nonzero()[-1, 0]
    return (half - taus[size]).clamp(min=0).square()


def by_bisection(rows: Tensor, alpha: float) -> Tensor:
    """α-entmax, [(α-1) s - τ]₊^(1/(α-1)), with τ of each row bisected until it no longer changes."""
    tempered = (alpha - 1) * rows
    high = tempered.amax(dim=-1, keepdim=True)
    low = high - 1
    for _ in range(80):
        middle = (low + high) / 2
        above = (tempered - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(dim=-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (tempered - low).clamp(min=0).pow(1 / (alpha - 1))


def defined(scores: Tensor, alpha: float) -> Tensor:
    if alpha not in (1.5, 2.0):
        return scores.softmax(dim=-1) if alpha == 1 else by_bisection(scores, alpha)
    solve = entmax15_by_sorting if alpha == 1.5 else sparsemax_by_sorting
    return torch.stack([solve(row) for row in scores.reshape(-1, scores.shape[-1])]).reshape(scores.shape)


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


HARD = {
    "one key": torch.zeros(3, 1, dtype=torch.float64),
    "all equal": torch.full((2, 300), 7.0, dtype=torch.float64),
    "two largest": torch.tensor([[1.0, 1.0, 0.0, -5.0]], dtype=torch.float64),
    "steps of halves": -(2.0 ** -torch.arange(300, dtype=torch.float64))[None],
    "steps of powers": -(1.1 ** torch.arange(-280, 20, dtype=torch.float64))[None],
    "nearly equal": draw(2, 300, scale=1e-6),
    "unit": draw(4, 300),
    "wide": draw(4, 300, scale=100.0),
    "far from zero": 1e4 + draw(4, 300),
    "a number of groups": draw(2, 512),
    "a few more": draw(2, 523),
}


@pytest.mark.parametrize("form", ["bisection", "eager", "tiled"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("rows", HARD.values(), ids=HARD)
def test_equals_the_definition(alpha, rows, form):
    found = FORMS[form](rows, None, alpha)
    torch.testing.assert_close(found, defined(rows, alpha), rtol=0, atol=2e-11 * max(1.0, rows.abs().max().item()))
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", ["eager", "tiled"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_a_threshold_is_nan_and_changes_no_other_row(bad, alpha, form):
    """Scores are NaN or infinite once training has diverged; the loss must then tell."""
    rows = draw(3, 60)
    rows[1, 5] = bad
    found = FORMS[form](rows, None, alpha)
    assert found[1].isnan().any()
    torch.testing.assert_close(found[::2], defined(rows[::2], alpha), rtol=0, atol=2e-11)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_bisection_and_sorting_agree(alpha):
    """For these alphas there are two reference definitions, which must agree."""
    rows = draw(5, 60)
    torch.testing.assert_close(by_bisection(rows, alpha), defined(rows, alpha), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", ["eager", "tiled"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_masked_keys_are_left_out(alpha, form):
    rows, allowed = draw(6, 300), torch.rand(6, 300, generator=torch.Generator().manual_seed(1)) < 0.4
    allowed[1] = False
    allowed[2] = torch.arange(300) == 299
    allowed[3, :290] = False
    found = FORMS[form](rows.masked_fill(~allowed, 1e3), allowed, alpha)
    assert (found[~allowed] == 0).all()
    assert found[2, 299] == 1
    for row in (0, 2, 3, 4, 5):
        keep = allowed[row]
        torch.testing.assert_close(found[row, keep], defined(rows[row : row + 1, keep], alpha)[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", ["eager", "tiled"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("masked", [False, True])
def test_gradient(alpha, masked, form):
    rows = draw(2, 1, 9).requires_grad_()
    allowed = torch.arange(9) < torch.tensor([9, 5])[:, None, None] if masked else None
    assert torch.autograd.gradcheck(lambda x: FORMS[form](x, allowed, alpha), [rows], atol=1e-7)


@pytest.mark.parametrize("form", ["eager", "tiled"])
def test_gradient_where_no_key_is_allowed_is_zero(form):
    rows = draw(2, 9).requires_grad_()
    allowed = torch.ones(2, 9, dtype=torch.bool)
    allowed[0] = False
    for alpha in ALPHAS:
        (grad,) = torch.autograd.grad(FORMS[form](rows, allowed, alpha).square().sum(), rows)
        assert grad.isfinite().all()
        assert (grad[0] == 0).all()
        assert (grad[1] != 0).any()


@pytest.mark.parametrize("form", ["eager", "tiled"])
def test_gradient_of_scores_that_a_mask_broadcasts(form):
    rows, allowed = draw(1, 9).requires_grad_(), torch.ones(4, 9, dtype=torch.bool).tril(5)
    (found,) = torch.autograd.grad(FORMS[form](rows, allowed, 1.5)[:, 0].sum(), rows)
    (want,) = torch.autograd.grad(FORMS[form](rows.expand(4, -1), allowed, 1.5)[:, 0].sum(), rows)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("masked", [False, True])
def test_second_gradient_of_eager(alpha, masked):
    rows = draw(2, 1, 9).requires_grad_()
    allowed = torch.arange(9) < torch.tensor([9, 5])[:, None, None] if masked else None
    assert torch.autograd.gradgradcheck(lambda x: FORMS["eager"](x, allowed, alpha), [rows], atol=1e-6)


def test_the_gradient_of_tiles_is_taken_once():
    rows = draw(2, 9).requires_grad_()
    (grad,) = torch.autograd.grad(in_tiles(rows, None, 1.5)[0, 0].square(), rows, create_graph=True)
    with pytest.raises(UnsupportedError, match='implementation="eager"'):
        grad.sum().backward()


@pytest.mark.parametrize("form", ["eager", "tiled"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_close(alpha, dtype, form):
    rows = draw(10, 1000, scale=3.0).to(dtype)
    found = FORMS[form](rows, None, alpha)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(),
        defined(rows.double(), alpha) if alpha == 1 else FORMS[form](rows.double(), None, alpha),
        rtol=0,
        atol={torch.float32: 2e-6 / max(alpha - 1, 0.05), torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype],
    )


def test_tiles_keep_no_weights():
    query, key, value = (draw(1, 2, n, 4).requires_grad_() for n in (50, 30, 30))
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        tiles.entmax_attention(query, key, value, None, 1.5, causal=False)
    assert max(t.numel() for t in kept) < 2 * 50 * 30


def test_dropout_of_tiles_is_that_of_their_gradient():
    rows = draw(40, 50).requires_grad_()
    torch.manual_seed(0)
    dropped = in_tiles(rows, None, 1.5, dropout=0.5)
    whole = FORMS["eager"](rows, None, 1.5)
    kept = (dropped != 0) | (whole == 0)
    torch.testing.assert_close(dropped, 2 * whole * kept)
    assert 0.3 < kept[whole != 0].double().mean() < 0.7
    weights = draw(40, 50).flip(0)
    found, want = (torch.autograd.grad((out * weights).sum(), rows)[0] for out in (dropped, 2 * whole * kept))
    torch.testing.assert_close(found, want)


def test_search_is_short():
    """The search for the threshold takes few passes over all keys of a row."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        passes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.passes += func is torch.ops.aten.sub.out and args[0].shape[-1] == 4096
            return func(*args, **(kwargs or {}))

    from attn_zoo.kernels.cpu.entmax import _threshold

    for alpha in (1.25, 1.5, 2.0):
        rows = draw(64, 4096).float() * (alpha - 1)
        with Count() as count:
            _threshold(rows - rows.amax(dim=-1, keepdim=True), alpha)
        assert count.passes <= 5


def test_threshold_flows_on_meta_and_through_compile():
    assert threshold(torch.empty(3, 7, device="meta"), 1.5).shape == (3, 1)
    torch.library.opcheck(threshold, (draw(4, 20) - 5, 1.5))

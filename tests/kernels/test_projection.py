"""The projection along the sequence: kernels against float64, with padding, odd sizes, strides and sums split in any way."""

from __future__ import annotations

import pytest
import torch
from tiers import covering
from torch import Tensor

from attn_zoo.kernels.linformer import launch, project_sequence, table
from kernels.memory import surrounded
from kernels.references import assert_close, differentiate, error, projection

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHARED = [  # batch, keys, width, rows, unused columns of the projection
    (2, 200, 70, 100, 0),
    (1, 129, 192, 16, 5),
    (3, 64, 64, 300, 0),
    (2, 1, 33, 1, 0),
]


def draw(batch: int, keys: int, width: int, rows: int, unused: int, heads: int, dtype: torch.dtype, device: torch.device):
    """Return a projection, tokens surrounded by NaN, and a padding mask with one example nearly empty."""
    if dtype is torch.float64 and not launch.INTERPRETED:
        pytest.skip("float64 runs in the interpreter only")
    generator = torch.Generator().manual_seed(keys + width)
    lead = (heads,) if heads else ()
    matrix = torch.randn(*lead, rows, keys + unused, generator=generator) / keys**0.5
    tokens = torch.randn(batch, *lead, keys, width, generator=generator)
    valid = torch.rand(batch, keys, generator=generator) > 0.3
    valid[-1] = False
    valid[-1, 0] = True
    return matrix.to(device, dtype), surrounded(tokens.to(device, dtype)), valid.to(device)


def with_nan_padding(tokens: Tensor, valid: Tensor) -> Tensor:
    shape = (valid.shape[0], *(1,) * (tokens.dim() - 3), valid.shape[1], 1)
    return surrounded(tokens.masked_fill(~valid.view(shape), float("nan")))


def check(matrix: Tensor, tokens: Tensor, valid: Tensor | None) -> None:
    clean = tokens if valid is None else tokens.nan_to_num()
    expected, (wanted_matrix, wanted_tokens), _ = differentiate(projection, (matrix.double(), clean.double()), valid)
    out, (grad_matrix, grad_tokens), _ = differentiate(project_sequence, (matrix, tokens), valid)
    assert_close(out, expected, "out")
    assert_close(grad_matrix, wanted_matrix, "gradient of the projection")
    assert_close(grad_tokens, wanted_tokens, "gradient of the tokens")


@pytest.mark.parametrize(("shape", "dtype"), covering(SHARED, DTYPES), ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_shared_projection(shape, padded, dtype, device):
    batch, keys, width, rows, unused = shape
    matrix, tokens, valid = draw(batch, keys, width, rows, unused, 0, dtype, device)
    check(matrix, with_nan_padding(tokens, valid) if padded else tokens, valid if padded else None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded", [False, True])
def test_projection_for_each_head(padded, dtype, device):
    matrix, tokens, valid = draw(2, 75, 48, 20, 3, 3, dtype, device)
    check(matrix, with_nan_padding(tokens, valid) if padded else tokens, valid if padded else None)


def test_heads_side_by_side_are_read_in_place(device):
    """Tokens as a layer has them: (batch, keys, heads · head_dim) viewed as (batch, heads, keys, head_dim)."""
    matrix, tokens, valid = draw(2, 75, 32, 20, 0, 3, torch.float32, device)
    check(matrix, tokens.transpose(1, 2).contiguous().transpose(1, 2), None)
    check(matrix.mT.contiguous().mT, with_nan_padding(tokens, valid).mT.contiguous().mT, valid)


@pytest.mark.parametrize("processors", [1, 2, 132])
@pytest.mark.parametrize("padded", [False, True])
def test_sums_may_be_cut_anyhow(processors, padded, device, monkeypatch):
    monkeypatch.setattr(table, "processors", lambda device: processors)
    matrix, tokens, valid = draw(5, 330, 40, 30, 0, 0, torch.bfloat16, device)
    check(matrix, with_nan_padding(tokens, valid) if padded else tokens, valid if padded else None)


def test_every_run_gives_the_same_bits(device):
    matrix, tokens, valid = draw(3, 330, 40, 30, 0, 0, torch.float32, device)
    first, again = (differentiate(project_sequence, (matrix, tokens), valid) for _ in range(2))
    for one, other in zip((first[0], *first[1]), (again[0], *again[1]), strict=True):
        assert torch.equal(one, other)


def test_stacked_projections_are_those_apart(device):
    matrix, tokens, valid = draw(2, 100, 40, 60, 0, 0, torch.float32, device)
    both = project_sequence(torch.cat([matrix, 2 * matrix]), tokens, valid)
    alone = project_sequence(matrix, tokens, valid)
    assert error(both, torch.cat([alone, 2 * alone], dim=1)) < 1e-6


def test_an_example_without_tokens_gives_zeros(device):
    matrix, tokens, _ = draw(2, 50, 40, 20, 0, 0, torch.float32, device)
    nothing = torch.zeros(2, 50, dtype=torch.bool, device=device)
    out, grads, _ = differentiate(project_sequence, (matrix, tokens * float("nan")), nothing)
    assert (out == 0).all() and all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize(("batch", "keys", "width"), [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_nothing_to_do(batch, keys, width, device):
    out, grads, _ = differentiate(
        project_sequence, (torch.randn(3, 5, device=device), torch.randn(batch, keys, width, device=device))
    )
    assert out.shape == (batch, 3, width) and (out == 0).all()
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_input(wanted, device):
    matrix, tokens, valid = draw(2, 50, 40, 20, 0, 0, torch.float32, device)
    _, grads, grad = differentiate(project_sequence, (matrix, tokens), valid)
    leaves = [x.detach().requires_grad_(i == wanted) for i, x in enumerate((matrix, tokens))]
    (found,) = torch.autograd.grad(project_sequence(leaves[0], leaves[1], valid), leaves[wanted], grad)
    assert torch.equal(found, grads[wanted])


@pytest.mark.parametrize(
    ("matrix", "tokens", "valid", "message"),
    [
        ((3, 5), (2, 2, 5, 4), None, r"a projection of shape \(r, length\)"),
        ((2, 3, 5), (2, 5, 4), None, r"a projection of shape \(r, length\)"),
        ((3, 3, 5), (2, 2, 5, 4), None, "have equal heads"),
        ((3, 5), (2, 6, 4), None, "a column for each key"),
        ((0, 5), (2, 5, 4), None, "must have at least one row"),
        ((3, 5), (2, 5, 4), torch.ones(2, 4, dtype=torch.bool), r"\(batch, keys\) = \(2, 5\)"),
        ((3, 5), (2, 5, 4), torch.ones(2, 5), "must be boolean"),
    ],
    ids=str,
)
def test_refusals(matrix, tokens, valid, message, device):
    valid = None if valid is None else valid.to(device)
    with pytest.raises(ValueError, match=message):
        project_sequence(torch.zeros(matrix, device=device), torch.zeros(tokens, device=device), valid)


def test_unlike_dtypes_are_refused(device):
    with pytest.raises(ValueError, match="must share device and dtype"):
        project_sequence(torch.zeros(3, 5, device=device), torch.zeros(2, 5, 4, device=device, dtype=torch.bfloat16))

"""PyTorch's requirements of an operator: exact gradients, true shapes for tracing, compilation in one graph, autocast."""

from __future__ import annotations

import pytest
import torch
from tiers import covering
from torch import Tensor
from torch.library import opcheck

from attn_zoo import UnsupportedError
from attn_zoo.kernels.linformer import launch, linformer_attention, ops, project_sequence, table

INTERPRETED = pytest.mark.skipif(not launch.INTERPRETED, reason="float64 runs in the interpreter only")


def draw(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


@INTERPRETED
@pytest.mark.parametrize(("whole_rows", "dropout"), covering([True, False], [0.0, 0.5]))
def test_attention_gradients_are_exact(whole_rows, dropout, device, monkeypatch):
    monkeypatch.setattr(table, "on_chip", lambda *problem: whole_rows)
    seed = torch.tensor(11, device=device)
    inputs = tuple(draw(1, 2, n, 2, device=device, dtype=torch.float64) for n in (3, 4, 4))
    assert torch.autograd.gradcheck(lambda *qkv: linformer_attention(*qkv, dropout=dropout, seed=seed), inputs)


@INTERPRETED
@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("padded", [False, True])
def test_projection_gradients_are_exact(heads, padded, device):
    matrix = draw(*heads, 2, 4, device=device, dtype=torch.float64)
    tokens = draw(2, *heads, 3, 1, device=device, dtype=torch.float64)
    valid = torch.tensor([[True, False, True], [False, False, True]], device=device) if padded else None
    assert torch.autograd.gradcheck(lambda e, x: project_sequence(e, x, valid), (matrix, tokens))


@pytest.mark.parametrize("seeded", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_attention_operators_pass_opcheck(seeded, device, monkeypatch):
    monkeypatch.undo()  # outputs surrounded by NaN have a storage offset, which opcheck rejects
    query, key, value = (draw(2, 3, n, 16, device=device, dtype=torch.float16) for n in (20, 9, 9))
    random = (torch.tensor(3, device=device), 0.5) if seeded else (None, 0.0)
    opcheck(ops.attend, (query, key, value, *random))
    opcheck(ops.attend_blocks, (query, key, value, *random))
    with torch.no_grad():
        grad = torch.ones(2, 20, 3, 16, device=device, dtype=torch.float16)
        opcheck(ops.attend_backward, (grad, query.detach(), key.detach(), value.detach(), *random))
        out, normaliser = ops.attend_blocks(query, key, value, *random)
        saved = (query.detach(), key.detach(), value.detach(), out, normaliser)
        opcheck(ops.attend_blocks_backward, (grad, *saved, *random))


@pytest.mark.parametrize("padded", [False, True])
def test_projection_operators_pass_opcheck(padded, device, monkeypatch):
    monkeypatch.undo()
    matrix, tokens = draw(2, 5, 20, device=device), draw(3, 2, 20, 8, device=device)
    valid = torch.arange(20, device=device) < torch.tensor([20, 7, 0], device=device)[:, None] if padded else None
    opcheck(ops.project, (matrix, tokens, valid))
    opcheck(ops.project_backward_projection, (torch.ones(3, 2, 5, 8, device=device), tokens.detach(), valid))


@pytest.mark.parametrize(("backend", "dynamic"), [("eager", None), ("aot_eager", None), ("aot_eager", True)])
def test_compiles_in_one_graph(backend, dynamic, device):
    """Both functions as a layer uses them, from tokens to output, compiled against uncompiled, at two lengths."""

    def attend(matrix: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
        compressed = project_sequence(matrix, tokens, valid)
        query, short = (x.unflatten(-1, (2, 16)).transpose(1, 2) for x in (tokens.masked_fill(~valid[..., None], 0), compressed))
        return linformer_attention(query, short, short * 2).transpose(1, 2).flatten(2).sin()

    torch.compiler.reset()
    compiled = torch.compile(attend, backend=backend, fullgraph=True, dynamic=dynamic)
    for keys in (30, 21):
        matrix, tokens = draw(5, 30, device=device), draw(2, keys, 32, device=device)
        valid = torch.arange(keys, device=device) < torch.tensor([keys, 7], device=device)[:, None]
        expected, found = attend(matrix, tokens, valid), compiled(matrix, tokens, valid)
        assert torch.equal(found, expected)
        wanted = torch.autograd.grad(expected.sum(), (matrix, tokens))
        for one, other in zip(torch.autograd.grad(found.sum(), (matrix, tokens)), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys", [9, 300])
def test_compiles_with_dropout(keys, device):
    torch.compiler.reset()
    inputs = tuple(draw(1, 2, n, 16, device=device) for n in (20, keys, keys))
    compiled = torch.compile(lambda *qkv: linformer_attention(*qkv, dropout=0.5), backend="aot_eager", fullgraph=True)
    first, second = compiled(*inputs), compiled(*inputs)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("keys", [9, 300])
def test_autocast_decides_the_dtype(keys, device):
    query, key, value = (draw(1, 2, n, 16, device=device) for n in (20, keys, keys))
    matrix, tokens = draw(4, 20, device=device), draw(1, 20, 8, device=device, dtype=torch.bfloat16)
    with torch.autocast(device.type, torch.bfloat16):
        out = linformer_attention(query, key, value)
        projected = project_sequence(matrix, tokens)
    assert out.dtype == projected.dtype == torch.bfloat16
    (out.sum() + projected.sum()).backward()
    assert query.grad is not None and query.grad.dtype == torch.float32
    assert matrix.grad is not None and matrix.grad.dtype == torch.float32
    low = (x.detach().bfloat16() for x in (query, key, value))
    assert torch.equal(out, linformer_attention(*low))


@INTERPRETED
def test_autocast_leaves_float64_alone(device):
    inputs = tuple(draw(1, 2, n, 16, device=device, dtype=torch.float64) for n in (20, 9, 9))
    with torch.autocast(device.type, torch.bfloat16):
        assert linformer_attention(*inputs).dtype == torch.float64


@pytest.mark.parametrize("keys", [9, 300])
def test_gradients_of_gradients_are_refused(keys, device):
    query, key, value = (draw(1, 2, n, 16, device=device) for n in (20, keys, keys))
    (grad,) = torch.autograd.grad(linformer_attention(query, key, value).sum(), query, create_graph=True)
    with pytest.raises(UnsupportedError, match='implementation="eager"'):
        torch.autograd.grad(grad.sum(), value)

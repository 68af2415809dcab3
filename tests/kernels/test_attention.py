"""Attention over few keys: kernels against float64, for every dtype, odd sizes, strides, dropout and both routes."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiers import covering
from torch import Tensor

from attn_zoo.kernels.linformer import launch, linformer_attention, table
from kernels.memory import surrounded
from kernels.references import TOLERANCE, assert_close, attention, differentiate, error, kept_weights

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = [  # batch, heads, queries, keys, head_dim
    (2, 3, 70, 100, 64),
    (1, 2, 129, 256, 64),
    (1, 2, 64, 128, 128),
    (1, 2, 33, 16, 32),
    (1, 1, 200, 100, 48),
    (2, 1, 65, 64, 80),
    (1, 2, 1, 1, 16),
    (1, 2, 90, 300, 64),
]


def draw(shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key, value as a layer passes them: transposed views of (batch, length, heads, head_dim), surrounded by NaN."""
    if dtype is torch.float64 and not launch.INTERPRETED:
        pytest.skip("float64 runs in the interpreter only")
    batch, heads, queries, keys, dim = shape
    generator = torch.Generator().manual_seed(queries + keys)
    query, key, value = (
        surrounded(torch.randn(batch, n, heads, dim, generator=generator).to(device, dtype)).transpose(1, 2)
        for n in (queries, keys, keys)
    )
    return query, key, value


def run(inputs: tuple[Tensor, ...], **options) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return output and gradients; ``differentiate`` detaches the inputs, which keeps their strides."""
    out, grads, _ = differentiate(lambda q, k, v: linformer_attention(q, k, v, **options), inputs)
    return out, grads


@pytest.mark.parametrize(("shape", "dtype"), covering(SHAPES, DTYPES), ids=str)
def test_equals_softmax_attention(shape, dtype, device):
    inputs = draw(shape, dtype, device)
    out, grads = run(inputs)
    expected, expected_grads, _ = differentiate(attention, tuple(x.double() for x in inputs))
    assert_close(out, expected, "out")
    for name, found, wanted in zip(("query", "key", "value"), grads, expected_grads, strict=True):
        if shape[3] == 1 and name != "value":  # a single weight is always 1, so the gradient is zero up to rounding
            assert found.abs().max() <= TOLERANCE[dtype] * 10
        else:
            assert_close(found, wanted, f"gradient of {name}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_is_as_exact_as_torch_in_the_same_dtype(dtype, device):
    inputs = draw(SHAPES[0], dtype, device)
    expected, expected_grads, _ = differentiate(attention, tuple(x.double() for x in inputs))
    plain, plain_grads, _ = differentiate(attention, inputs)
    out, grads = run(inputs)
    assert error(out, expected) <= 1.5 * error(plain, expected)
    for found, other, wanted in zip(grads, plain_grads, expected_grads, strict=True):
        assert error(found, wanted) <= 1.5 * error(other, wanted)


@pytest.mark.parametrize("keys", [60, 300])
@pytest.mark.parametrize("score", [200.0, -200.0])
def test_scores_may_be_large(score, keys, device):
    """exp(200) overflows unless the largest score is subtracted, block by block; scores of -200 lie below a block's empty part."""
    query, key, value = draw((1, 1, 40, keys, 64), torch.float32, device)
    query[..., 0], key[..., 0] = score / 2, 16.0
    out, grads = run((query, key, value))
    expected, expected_grads, _ = differentiate(attention, (query.double(), key.double(), value.double()))
    assert_close(out, expected, "out", loosen=50)  # at 200, float32 scores are 1e-5 apart
    for found, wanted in zip(grads, expected_grads, strict=True):
        assert_close(found, wanted, "gradient", loosen=50)


@pytest.mark.parametrize("keys", [100, 300])
@pytest.mark.parametrize("processors", [1, 3])
def test_work_may_be_cut_anyhow(processors, keys, device, monkeypatch):
    inputs = draw((1, 2, 330, keys, 32), torch.bfloat16, device)
    whole = run(inputs)
    monkeypatch.setattr(table, "processors", lambda device: processors)
    out, grads = run(inputs)
    assert torch.equal(out, whole[0])
    for name, found, wanted in zip(("query", "key", "value"), grads, whole[1], strict=True):
        assert error(found, wanted) <= 4e-3, f"{name} depends on how the work is cut by more than one rounding"


@pytest.mark.parametrize("keys", [100, 300])
def test_every_run_gives_the_same_bits(keys, device):
    inputs = draw((1, 2, 150, keys, 32), torch.bfloat16, device)
    seed = torch.tensor(5, device=device)
    for dropout in (0.0, 0.5):
        first, again = (run(inputs, dropout=dropout, seed=seed) for _ in range(2))
        for one, other in zip((first[0], *first[1]), (again[0], *again[1]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("layout", list(itertools.permutations(range(3))), ids=str)
def test_any_strides(layout, device):
    """Batch, heads and length may lie in memory in any order; a last dimension that is not contiguous is copied."""
    back = [layout.index(i) for i in range(3)]
    inputs = draw((2, 3, 20, 17, 32), torch.float32, device)
    expected = run(inputs)
    moved = tuple(x.permute(*layout, 3).contiguous().permute(*back, 3) for x in inputs)
    sparse = tuple(x.mT.contiguous().mT for x in inputs)
    for other in (moved, sparse):
        out, grads = run(other)
        assert torch.equal(out, expected[0])
        for one, two in zip(grads, expected[1], strict=True):
            assert torch.equal(one, two)


def test_output_is_a_view_by_position(device):
    out = linformer_attention(*draw(SHAPES[0], torch.float16, device))
    assert out.transpose(1, 2).is_contiguous()


def test_gradient_of_the_output_may_be_a_broadcast(device):
    query, key, value = (x.requires_grad_() for x in draw((1, 2, 20, 17, 32), torch.float32, device))
    linformer_attention(query, key, value).sum().backward()
    assert value.grad is not None
    expected = torch.autograd.grad(attention(query.double(), key.double(), value.double()).sum(), value)[0]
    assert_close(value.grad, expected, "gradient of value")


@pytest.mark.parametrize("keys", [17, 300])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_gradients_of_some_inputs(wanted, keys, device):
    inputs = draw((1, 2, 20, keys, 32), torch.float32, device)
    _, all_grads = run(inputs)
    leaves = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
    out = linformer_attention(*leaves)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out)
    found = torch.autograd.grad(out, [leaves[i] for i in wanted], grad)
    for i, one in zip(wanted, found, strict=True):
        assert torch.equal(one, all_grads[i])


@pytest.mark.parametrize("shape", [(0, 2, 5, 3, 32), (2, 0, 5, 3, 32), (2, 2, 0, 3, 32), (2, 2, 0, 300, 32)], ids=str)
def test_nothing_to_do(shape, device):
    batch, heads, queries, keys, dim = shape
    inputs = (torch.randn(batch, heads, n, dim, device=device, dtype=torch.float16) for n in (queries, keys, keys))
    out, grads = run(tuple(inputs))
    assert out.shape == (batch, heads, queries, dim)
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize(
    ("shape", "dtype"), covering([(2, 2, 70, 64, 64), (1, 2, 40, 250, 64), (1, 2, 40, 128, 32)], DTYPES), ids=str
)
def test_dropout_drops_what_the_seed_says(shape, dtype, device):
    batch, heads, queries, keys, _ = shape
    seed, dropout = 2**40 + 12345, 0.25
    kept = kept_weights(seed, dropout, batch, heads, queries, keys).to(device)
    inputs = draw(shape, dtype, device)
    out, grads = run(inputs, dropout=dropout, seed=torch.tensor(seed, device=device))
    expected, expected_grads, _ = differentiate(
        lambda q, k, v: attention(q, k, v, kept, dropout), tuple(x.double() for x in inputs)
    )
    # Kernels compute the factor 1 / (1 - dropout) in float32.
    loosen = 1e6 if dtype == torch.float64 else 1.0
    assert_close(out, expected, "out", loosen)
    for name, found, wanted in zip(("query", "key", "value"), grads, expected_grads, strict=True):
        assert_close(found, wanted, f"gradient of {name}", loosen)


def test_dropout_has_its_rate(device):
    """With values of 1 and equal scores, an output is the share of kept weights over 1 - dropout, which is 1 on average."""
    query, key = torch.zeros(1, 4, 128, 64, device=device), torch.zeros(1, 4, 64, 64, device=device)
    for dropout in (0.1, 0.5, 0.9):
        out = linformer_attention(query, key, torch.ones_like(key), dropout=dropout, seed=torch.tensor(3, device=device))
        per_head = out[..., 0].mean(-1)
        deviation = (dropout / (1 - dropout) / (128 * 64)) ** 0.5
        assert (per_head - 1).abs().max() <= 4 * deviation
        assert per_head.unique().numel() == 4, "heads drop the same weights"


def test_dropout_draws_its_seed_from_torch(device):
    inputs = draw((1, 1, 40, 64, 32), torch.float32, device)
    torch.manual_seed(1)
    first, second = (linformer_attention(*inputs, dropout=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(linformer_attention(*inputs, dropout=0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 3, 4)}, r"must have shape \(batch, heads, length, head_dim\)"),
        ({"key": torch.zeros(1, 2, 9, 8)}, "key and value must have equal shapes"),
        ({"query": torch.zeros(1, 3, 5, 8)}, "have equal batch, heads and head_dim"),
        ({"query": torch.zeros(1, 2, 5, 16)}, "have equal batch, heads and head_dim"),
        ({"key": torch.zeros(1, 2, 0, 8), "value": torch.zeros(1, 2, 0, 8)}, "at least one key"),
        ({name: torch.zeros(1, 2, 4, 144) for name in ("query", "key", "value")}, "head_dim must be from 1 to 128; got 144"),
        ({"value": torch.zeros(1, 2, 4, 8, dtype=torch.float16)}, "must share device and dtype"),
        ({"value": torch.zeros(1, 2, 4, 8, device="meta")}, "must share device and dtype"),
        ({name: torch.zeros(1, 2, 4, 8, dtype=torch.int32) for name in ("query", "key", "value")}, "got torch.int32"),
        ({"dropout": 1.0}, r"less than 1, .*; got 1.0"),
        ({"dropout": 0.5, "seed": torch.zeros(1, dtype=torch.int64)}, "seed must be an int64 tensor without dimensions"),
        ({"dropout": 0.5, "seed": torch.zeros(())}, "seed must be an int64 tensor"),
    ],
    ids=str,
)
def test_refusals(change, message, device):
    given = {"query": torch.zeros(1, 2, 5, 8), "key": torch.zeros(1, 2, 4, 8), "value": torch.zeros(1, 2, 4, 8), **change}
    for name, item in given.items():
        if isinstance(item, Tensor) and item.device.type != "meta":
            given[name] = item.to(device)
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    with pytest.raises(ValueError, match=message):
        linformer_attention(query, key, value, **given)

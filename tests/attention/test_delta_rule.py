"""The delta rule's purpose: a key holds its last value; and its hardest system of equations in single precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention

both = pytest.mark.parametrize("implementation", ["eager", "tiled"])


def call(inputs: list[Tensor], implementation: str, **options) -> Tensor:
    n = inputs[2].shape[2]
    built = build_attention(
        "delta_rule", Geometry(2, 8, n, n, causal=True), implementation=implementation, normalise=False, **options
    )
    out: Tensor = built(*inputs[:3], streams={"strength": inputs[3]})
    return out


def draw_with_one_key(n: int) -> list[Tensor]:
    """Return keys that are all the same, values and strengths."""
    generator = torch.Generator().manual_seed(1)
    key, value, strength = (torch.randn(3, 2, n, width, dtype=torch.float64, generator=generator) for width in (8, 8, 1))
    return [key[:, :, :1].expand_as(key), value, strength]


@both
@pytest.mark.parametrize("negative", [False, True])
def test_only_negative_eigenvalues_turn_a_memory_into_its_negative(implementation, negative):
    """With one repeated key and no value after the first, β near 2 flips the sign at each step, and β near 1 empties the memory."""
    key, value, strength = draw_with_one_key(12)
    value = value * (torch.arange(12) == 0)[:, None]
    out = call([key, key, value, torch.full_like(strength, 50.0)], implementation, negative_eigenvalues=negative)
    signs = (-1.0) ** torch.arange(12, dtype=torch.float64)[:, None]
    expected = 2 * value[:, :, :1] * signs if negative else value
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@both
def test_a_key_written_again_holds_its_last_value(implementation):
    """With β near 1, the last value replaces the others; a sum over keys and values would hold them all."""
    key, value, strength = draw_with_one_key(12)
    out = call([key, key, value, torch.full_like(strength, 50.0)], implementation)
    torch.testing.assert_close(out, value, rtol=1e-4, atol=1e-4)


@both
def test_one_key_many_times_stays_exact_in_single_precision(implementation):
    """The hardest system to solve: every key of a chunk corrects every later one."""
    key, value, strength = (x.float() for x in draw_with_one_key(300))
    inputs = [torch.randn_like(key), key, value, strength + 8]
    expected = call([x.double() for x in inputs], "definition")
    torch.testing.assert_close(call(inputs, implementation).double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())

"""Pooling against its means written out in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written_out import builder, require_same, several, shown

from attn_zoo.attention.mixers.pooling import Pooling

build = builder(Pooling)


def written_out(value: Tensor, window: int, valid: Tensor) -> Tensor:
    """Mean of the valid values in the window minus the own value, at valid positions."""
    n, out = value.shape[2], []
    for i in range(n):
        total, count = torch.zeros(3, 2, 8, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for j in range(max(0, i - window // 2), min(n, i + window // 2 + 1)):
            total = total + value[:, :, j] * valid[:, j, None, None]
            count = count + valid[:, j]
        out.append((total / count.clamp(min=1)[:, None, None] - value[:, :, i]) * valid[:, i, None, None])
    return torch.stack(out, dim=2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [3, 9, 81])
def test_equals_the_definition(padded, window):
    for n in (1, 2, 33):
        (value,) = several(1, n)
        valid = shown(n, padded)
        got = build(n, window=window)(None, None, value, key_valid=valid if padded else None) * valid[:, None, :, None]
        expected = written_out(value, window, valid)
        require_same(got, expected, [value], atol=1e-14)


def test_is_poolformers_mixer_in_one_dimension():
    (value,) = several(1)
    channels = value.transpose(2, 3).flatten(1, 2)
    want = F.avg_pool1d(channels, 3, stride=1, padding=1, count_include_pad=False) - channels
    torch.testing.assert_close(build()(None, None, value), want.unflatten(1, (2, 8)).transpose(2, 3), rtol=0, atol=1e-14)

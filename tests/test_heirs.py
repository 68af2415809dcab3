"""What ``docs/reports/linformers-heirs.md`` says of each mechanism holds of the mechanism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heirs_tables import HEIRS
from torch import Tensor

from attn_zoo import Geometry, build_attention, card

LENGTH, HEADS, WIDTH = 24, 2, 8
SIZES: dict[str, dict[str, Any]] = {
    "linformer": {"projected_length": 4},
    "linformer_causal": {"projected_length": 2},
    "luna": {"packed_length": 4},
    "nystrom": {"landmarks": 4},
    "length_compression": {"compress_rate": 6, "window": 1},
    "sparse_compression": {"compress_rate": 4, "window": 1, "kept": 3},
}


def outputs(name: str, key: Tensor, value: Tensor) -> Tensor:
    """Return the outputs of normal queries, of which the last is zero; streams of the keys are functions of the keys."""
    torch.manual_seed(0)
    geometry = Geometry(HEADS, WIDTH, LENGTH, LENGTH)
    mechanism = build_attention(name, geometry, **SIZES[name]).double().eval()
    with torch.no_grad():
        for parameter in mechanism.parameters():
            parameter.normal_()
    query = torch.randn(1, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    query[:, :, -1] = 0
    streams = {s.name: key.roll(1, dims=3) for s in card(name).streams(geometry, mechanism.options)}
    out: Tensor = mechanism(query, key, value, streams=streams)
    return out


def noise(seed: int) -> Tensor:
    return torch.randn(1, HEADS, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", HEIRS)
def test_the_order_of_tokens_decides_where_the_page_says_positions(name):
    key, value, order = noise(1), noise(2), torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    change = (outputs(name, key[:, :, order], value[:, :, order]) - outputs(name, key, value)).abs().max()
    assert (change > 1e-3) == HEIRS[name].by_order and (HEIRS[name].by_order or change < 1e-10)


@pytest.mark.parametrize("name", HEIRS)
def test_keys_change_the_weights_of_values_in_rows_where_the_page_says_content(name):
    """A query of zeros gives equal weights to all that it sees, so its output depends on keys through the rows alone."""
    change = (outputs(name, noise(1), noise(2)) - outputs(name, noise(4), noise(2)))[:, :, -1].abs().max()
    assert (change > 1e-3) == HEIRS[name].by_content and (HEIRS[name].by_content or change < 1e-10)


@pytest.mark.parametrize("name", HEIRS)
def test_the_page_names_a_causal_view_of_causal_mechanisms_alone(name):
    assert (HEIRS[name].seen_causally != "no causal form") == card(name).can.causal

"""Costs: counts against figures worked by hand, measured bytes against known allocations, exponents against known laws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attn_zoo.bench.experiments.growth import Growth
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.bench.timing import fit_exponent
from attn_zoo.contract import Batch
from attn_zoo.count import attention_parameters, count_flops, count_parameters, peak_bytes
from attn_zoo.layer import MultiHeadAttention


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.frozen = inner, nn.Parameter(torch.zeros(5), requires_grad=False)

    def forward(self, inputs, valid):
        return self.inner(inputs)


def test_counts_by_hand():
    model = Wrapped(MultiHeadAttention(8, 2, "softmax", length=5))
    assert count_parameters(model) == attention_parameters(model) == 4 * (8 * 8 + 8)
    batch = Batch(torch.zeros(1, 5, 8), None, torch.zeros(1, dtype=torch.long))
    assert count_flops(model, batch) == 4 * 2 * 5 * 8 * 8 + 2 * 2 * 5 * 5 * 8
    with torch.device("meta"):
        twin = Wrapped(MultiHeadAttention(8, 2, "softmax", length=5))
        on_meta = Batch(torch.zeros(1, 5, 8), None, torch.zeros(1, dtype=torch.long))
        assert count_flops(twin, on_meta) == count_flops(model, batch)


def test_peak_bytes_see_temporaries_that_are_gone():
    mebibyte = 2**20

    def step() -> None:
        first = torch.ones(8 * mebibyte, dtype=torch.uint8)
        del first
        second, third = (torch.ones(5 * mebibyte, dtype=torch.uint8) for _ in range(2))
        del second, third

    assert peak_bytes(step, torch.device("cpu")) == pytest.approx(10 * mebibyte, rel=0.01)


def test_exponents_of_known_laws():
    lengths = [512, 1024, 4096]
    assert fit_exponent(lengths, [3e-6 * n**2 for n in lengths]) == pytest.approx(2)
    assert fit_exponent(lengths, [7e-6 * n for n in lengths]) == pytest.approx(1)


def test_growth_is_measured_for_every_length_and_running_out_of_memory_is_a_cell():
    grid = Growth(attention=["none", "softmax:eager"], lengths=[64, 500_000], dim=8, heads=2, rounds=2)
    found = Measurement("growth", grid.identity(), grid.protocol, {}, grid.facts())
    Session(grid, found).run()
    by_cell = {(cell.label, cell.length, cell.kind): figures for cell, figures in found.cells.items()}
    forward, training = (by_cell["softmax:eager", 64, kind] for kind in ("forward", "training"))
    assert not forward.failures and len(forward.all("seconds")) == len(training.all("seconds")) == 2
    more, less = (figures.one("peak_bytes") or 0 for figures in (training, forward))
    assert more > less > 64 * 64 * 2 * 4
    for kind in ("forward", "training"):
        huge = by_cell["softmax:eager", 500_000, kind]
        assert not huge.values and huge.failures["seconds"].startswith("OOM: ")
        assert not by_cell["none", 500_000, kind].failures, "one cell's failure is not another's"
    backward = training.all("backward_seconds")
    assert all(0 < part < whole for part, whole in zip(backward, training.all("seconds"), strict=True))

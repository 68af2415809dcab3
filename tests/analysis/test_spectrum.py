"""Spectra of matrices whose singular values are known, and their averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attn_zoo.analysis import Spectrum, cumulative_spectrum, spectrum_of


def random_weights(*shape: int) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))).softmax(dim=-1)


@pytest.mark.parametrize("shape", [(2, 3, 33, 33), (5, 8), (2, 9, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_against_numpy(shape, dtype, tolerance):
    weights = random_weights(*shape)
    sums = np.linalg.svd(weights.double().numpy(), compute_uv=False).cumsum(axis=-1)
    curve = cumulative_spectrum(weights.to(dtype))
    assert curve.dtype == dtype and curve.shape == (*shape[:-2], min(shape[-2:]))
    np.testing.assert_allclose(curve.numpy(), sums / sums[..., -1:], rtol=0, atol=tolerance)


def test_half_precision_is_widened():
    weights = random_weights(16, 16).bfloat16()
    torch.testing.assert_close(cumulative_spectrum(weights), cumulative_spectrum(weights.float()))


def test_what_has_no_spectrum_is_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        cumulative_spectrum(torch.full((2, 4, 4), torch.nan))


@pytest.mark.parametrize(("length", "index"), [(512, 128), (2048, 128), (511, 127), (128, 32), (3, 1)])
def test_the_index_is_the_papers_or_a_quarter(length, index):
    assert Spectrum(torch.ones(1, 1, 1, length)).index == index


def test_mean_and_error_over_sequences_whatever_the_batches():
    layers = [random_weights(5, 2, 12, 12), random_weights(5, 2, 12, 12).flip(0).square()]
    parts = [[layer[rows] for layer in layers] for rows in (slice(0, 1), slice(1, 4), slice(4, 5))]
    curves = torch.stack([cumulative_spectrum(layer).double() for layer in layers])
    for spectrum in (spectrum_of([layers]), spectrum_of(parts)):
        assert len(spectrum.curves) == 5 and spectrum.rank == 12
        torch.testing.assert_close(spectrum.mean, curves.mean(dim=1))
        torch.testing.assert_close(spectrum.standard_error(3), curves.std(dim=1)[..., 2] / 5**0.5)


def test_what_cannot_be_averaged_is_refused():
    one, other = random_weights(1, 2, 6, 6), random_weights(1, 2, 5, 5)
    with pytest.raises(ValueError, match="at least one sequence"):
        spectrum_of([])
    for batches in ([[one, other]], [[one], [other]], [[one], [one, one]]):
        with pytest.raises(ValueError, match="must have attention matrices of one shape"):
            spectrum_of(batches)
    with pytest.raises(ValueError, match="got no layer"):
        spectrum_of([[]])


def test_reading_a_spectrum():
    curves = torch.tensor([[[0.5, 0.9, 1.0], [0.95, 0.98, 1.0]], [[0.4, 0.8, 1.0], [0.3, 0.6, 1.0]]], dtype=torch.float64)
    spectrum = Spectrum(curves[None])
    assert spectrum.at(2).tolist() == [[0.9, 0.98], [0.8, 0.6]]
    assert spectrum.rank_for(0.9).tolist() == [[2, 1], [3, 3]]
    assert spectrum.rank_for(1.0).tolist() == [[3, 3], [3, 3]]
    for index in (0, 4):
        with pytest.raises(ValueError, match="must be from 1 to 3"):
            spectrum.at(index)


def test_rounding_does_not_add_a_rank():
    assert spectrum_of([[torch.eye(10).expand(1, 1, 10, 10)]]).rank_for(0.9).item() == 9

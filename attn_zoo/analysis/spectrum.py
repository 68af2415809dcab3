"""Cumulative spectrum of attention matrices: c(k) = (σ₁ + … + σ_k) / (σ₁ + … + σ_n), averaged over sequences. σ₁ to σ_n are the
singular values, the largest first.

Paper: Wang et al. 2020, arXiv:2006.04768, Section 3 and Figure 1.
Symbols: the paper's P is ``weights``, its eigenvalue index is the index k, counted from 1, and its sentences are sequences.
Differs: the paper's figure is labelled with eigenvalues, but its text is about singular values. P is not symmetric, so singular
    values are used here, summed without squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAPER_INDEX = 128
"""Number of largest singular values whose share the heat map of the Linformer paper shows, for sequences of 512 tokens."""

_ROUNDING = 1e-6
"""Tolerance of ``rank_for``: the rounding error of singular values of float32 matrices."""


def cumulative_spectrum(weights: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... rank"]:
    """Return the sum of the k largest singular values divided by the sum of all, for k = 1 to rank = min(queries, keys).

    The computation is in float64 for float64 matrices, and in float32 for others.

    Raises:
        ValueError: an entry is not finite, or a matrix is zero, so shares are undefined.
    """
    if not bool(weights.isfinite().all()):
        raise ValueError(
            "an attention matrix must hold finite numbers only, but this one holds NaN or infinity. Make sure that every "
            "query sees at least one key"
        )
    matrices = weights if weights.dtype == torch.float64 else weights.float()
    sums = torch.linalg.svdvals(matrices).cumsum(dim=-1)
    total = sums[..., -1:]
    if bool((total == 0).any()):
        raise ValueError(
            "an attention matrix must not be all zeros, because its singular values would have no sum. Leave out sequences of "
            "padding only"
        )
    return sums / total


def default_index(length: int) -> int:
    """Return the default number k for a heat map that shows the sum of the k largest singular values as a share of the sum of all.
    It is a quarter of the length, but at least 1 and at most 128, as in the Linformer paper."""
    return min(PAPER_INDEX, max(1, length // 4))


@dataclass(frozen=True)
class Spectrum:
    """Cumulative singular values of the attention matrix of every head of every layer, averaged over sequences."""

    mean: Float[Tensor, "layers heads rank"]
    """Cumulative singular values as shares of their sum, averaged over sequences, in float64."""
    deviation: Float[Tensor, "layers heads rank"]
    """Standard deviation of the cumulative shares over sequences, in float64. Zero for a single sequence."""
    sequences: int

    @property
    def rank(self) -> int:
        """Number of singular values of a matrix. For self-attention, it is the length of the sequences."""
        return self.mean.shape[-1]

    def at(self, index: int) -> Float[Tensor, "layers heads"]:
        """Return the sum of the k = ``index`` largest singular values as a share of the sum of all, averaged over sequences.

        Raises:
            ValueError: ``index`` is not from 1 to ``rank``.
        """
        self.check_index(index)
        return self.mean[..., index - 1]

    def standard_error(self, index: int) -> Float[Tensor, "layers heads"]:
        """Return the standard error of the mean over sequences that ``at(index)`` returns.

        Raises:
            ValueError: ``index`` is not from 1 to ``rank``.
        """
        self.check_index(index)
        return self.deviation[..., index - 1] / self.sequences**0.5

    def rank_for(self, share: float) -> Int[Tensor, "layers heads"]:
        """Return, for each head, the smallest k for which ``at(k)``, the share of the k largest singular values, is at least
        ``share``.

        Raises:
            ValueError: ``share`` is not in (0, 1].
        """
        if not 0.0 < share <= 1.0:
            raise ValueError(
                f"share must be greater than 0 and at most 1, because it is a share of the sum of the singular values; got {share}"
            )
        return (self.mean < share - _ROUNDING).sum(dim=-1) + 1

    def check_index(self, index: int) -> None:
        """Check ``index``, a number of singular values.

        Raises:
            ValueError: ``index`` is not from 1 to ``rank``.
        """
        if not 1 <= index <= self.rank:
            raise ValueError(
                f"index must be from 1 to {self.rank}, because each attention matrix has {self.rank} singular values; got {index}"
            )


class SpectrumAverage:
    """Running mean, over sequences, of the cumulative singular values of attention matrices."""

    def __init__(self) -> None:
        self._sequences = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, layers: Sequence[Float[Tensor, "batch heads queries keys"]]) -> None:
        """Add the attention matrices of some sequences to the mean. ``layers`` has one tensor for each layer.

        Raises:
            ValueError: heads or lengths differ between layers or from earlier calls.
        """
        shapes = [tuple(layer.shape) for layer in layers]
        if len(set(shapes)) != 1:
            raise ValueError(f"the attention matrices of all layers must have the same shape; got {shapes or 'no layer'}")
        # One layer at a time: stacking all matrices would double the memory. Sums over sequences are in float64.
        curves = torch.stack([cumulative_spectrum(layer).double().cpu() for layer in layers], dim=1)
        if self._mean is None or self._squares is None:
            self._mean, self._squares = torch.zeros_like(curves[0]), torch.zeros_like(curves[0])
        if curves[0].shape != self._mean.shape:
            raise ValueError(
                "all sequences must have the same layers, heads and length: expected (layers, heads, length) = "
                f"{tuple(self._mean.shape)}, got {tuple(curves[0].shape)}. Cut all sequences to one length"
            )
        for curve in curves:  # Welford's update avoids cancellation
            self._sequences += 1
            step = curve - self._mean
            self._mean = self._mean + step / self._sequences
            self._squares = self._squares + step * (curve - self._mean)

    def result(self) -> Spectrum:
        """Return the mean spectrum of all sequences that were added.

        Raises:
            ValueError: no sequence was added.
        """
        if self._mean is None or self._squares is None:
            raise ValueError("an average must have at least one sequence; got none. Call add() first")
        deviation = (self._squares / max(1, self._sequences - 1)).sqrt()
        return Spectrum(self._mean, deviation, self._sequences)

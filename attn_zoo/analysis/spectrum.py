"""How many directions an attention matrix uses: c(k) = (σ₁ + … + σ_k) / (σ₁ + … + σ_n), averaged over sequences.

Paper: Wang et al. 2020, arXiv:2006.04768, Section 3 and Figure 1.
Symbols: P → weights; the paper's eigenvalue index → index k, counted from 1; its sentences → sequences.
Differs: the figure's axes speak of eigenvalues, its text of singular values. P is not symmetric, so these are singular
    values, summed as they are and not squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAPER_INDEX = 128
"""Where the paper cuts its heat map, at a length of 512."""

_ROUNDING = 1e-6
"""A share counts as reached this far below it: singular values of float32 matrices are no more exact."""


def cumulative_spectrum(weights: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... rank"]:
    """Share of the sum of all singular values that the k largest hold, for k = 1 to rank = min(queries, keys).

    Computed in float64 for float64 matrices, else in float32.

    Raises:
        ValueError: an entry is not finite, or a matrix is all zero and has no shares.
    """
    if not bool(weights.isfinite().all()):
        raise ValueError("an attention matrix holds NaN or infinity, so it has no singular values; look for a row that sees no key")
    matrices = weights if weights.dtype == torch.float64 else weights.float()
    sums = torch.linalg.svdvals(matrices).cumsum(dim=-1)
    total = sums[..., -1:]
    if bool((total == 0).any()):
        raise ValueError("an attention matrix is all zero, so its singular values have no shares; leave out sequences of padding")
    return sums / total


def default_index(length: int) -> int:
    """Where to read the curve: the paper's 128 of 512, a quarter of what is shorter, 128 of what is longer."""
    return min(PAPER_INDEX, max(1, length // 4))


@dataclass(frozen=True)
class Spectrum:
    """Average cumulative spectrum of every head of every layer."""

    mean: Float[Tensor, "layers heads rank"]
    """Mean over sequences, float64."""
    deviation: Float[Tensor, "layers heads rank"]
    """Standard deviation over sequences, float64; zero where there is only one."""
    sequences: int

    @property
    def rank(self) -> int:
        """Number of singular values, the length of the sequences where attention is to themselves."""
        return self.mean.shape[-1]

    def at(self, index: int) -> Float[Tensor, "layers heads"]:
        """Value of the curve at the ``index`` largest singular values: the paper's heat map.

        Raises:
            ValueError: there are not that many.
        """
        self.check_index(index)
        return self.mean[..., index - 1]

    def standard_error(self, index: int) -> Float[Tensor, "layers heads"]:
        """Standard error over sequences of ``at(index)``.

        Raises:
            ValueError: there are not that many singular values.
        """
        self.check_index(index)
        return self.deviation[..., index - 1] / self.sequences**0.5

    def rank_for(self, share: float) -> Int[Tensor, "layers heads"]:
        """Fewest singular values whose mean share reaches ``share``.

        Raises:
            ValueError: ``share`` is not in (0, 1].
        """
        if not 0.0 < share <= 1.0:
            raise ValueError(f"a share of the singular values lies in (0, 1]; got {share}")
        return (self.mean < share - _ROUNDING).sum(dim=-1) + 1

    def check_index(self, index: int) -> None:
        """Refuse an index beyond the singular values there are.

        Raises:
            ValueError: naming both.
        """
        if not 1 <= index <= self.rank:
            raise ValueError(f"the index counts singular values, of which a matrix here has {self.rank}; got {index}")


class SpectrumAverage:
    """Running mean over sequences, so that no matrix is kept."""

    def __init__(self) -> None:
        self._sequences = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, layers: Sequence[Float[Tensor, "batch heads queries keys"]]) -> None:
        """Take in the matrices of some sequences, layer by layer.

        Raises:
            ValueError: layers, heads or lengths differ from layer to layer or from what came before.
        """
        shapes = [tuple(layer.shape) for layer in layers]
        if len(set(shapes)) != 1:
            raise ValueError(f"an average needs equally many heads and positions in every layer; got {shapes or 'no layer'}")
        # Layer by layer: all matrices side by side would double the memory. Means in float64, as they add up over sequences.
        curves = torch.stack([cumulative_spectrum(layer).double().cpu() for layer in layers], dim=1)
        if self._mean is None or self._squares is None:
            self._mean, self._squares = torch.zeros_like(curves[0]), torch.zeros_like(curves[0])
        if curves[0].shape != self._mean.shape:
            raise ValueError(
                f"every sequence must give curves of shape (layers, heads, rank) = {tuple(self._mean.shape)}, "
                f"got {tuple(curves[0].shape)}; cut all sequences to one length"
            )
        for curve in curves:  # Welford's update, which loses no digits to cancellation
            self._sequences += 1
            step = curve - self._mean
            self._mean = self._mean + step / self._sequences
            self._squares = self._squares + step * (curve - self._mean)

    def result(self) -> Spectrum:
        """The average so far.

        Raises:
            ValueError: nothing was added.
        """
        if self._mean is None or self._squares is None:
            raise ValueError("there is no average of no sequences; add some first")
        deviation = (self._squares / max(1, self._sequences - 1)).sqrt()
        return Spectrum(self._mean, deviation, self._sequences)

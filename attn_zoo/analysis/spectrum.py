"""Cumulative spectrum of attention matrices: c(k) = (σ₁ + … + σ_k) / (σ₁ + … + σ_n), averaged over sequences. σ₁ to σ_n are the
singular values, the largest first.

Paper: Wang et al. 2020, arXiv:2006.04768, Section 3 and Figure 1.
Symbols: the paper's P is ``weights``, its eigenvalue index is the index k, counted from 1, and its sentences are sequences.
Differs: the paper's figure is labelled with eigenvalues, but its text is about singular values. P is not symmetric, so singular
    values are used here, summed without squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.terminal import table

_ROUNDING = 1e-6
"""Tolerance of ``rank_for``: the rounding error of singular values of float32 matrices."""


def cumulative_spectrum(weights: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... rank"]:
    """Return the sum of the k largest singular values divided by the sum of all, for k = 1 to rank = min(queries, keys).

    The computation is in float64 for float64 matrices, and in float32 for others.

    Raises:
        ValueError: an entry is not finite.
    """
    if not bool(weights.isfinite().all()):
        raise ValueError(
            "an attention matrix must hold finite numbers only, but this one holds NaN or infinity. Make sure that every "
            "query sees at least one key"
        )
    matrices = weights if weights.dtype == torch.float64 else weights.float()
    sums = torch.linalg.svdvals(matrices).cumsum(dim=-1)
    return sums / sums[..., -1:]


@dataclass(frozen=True)
class Spectrum:
    """Cumulative singular values of the attention matrix of every head of every layer, as shares of their sum."""

    curves: Float[Tensor, "sequences layers heads rank"]

    @property
    def mean(self) -> Float[Tensor, "layers heads rank"]:
        """Mean over sequences."""
        return self.curves.mean(dim=0)

    @property
    def rank(self) -> int:
        """Number of singular values of a matrix. For self-attention, it is the length of the sequences."""
        return self.curves.shape[-1]

    @property
    def index(self) -> int:
        """The number k for a heat map of ``at(k)``: a quarter of the length, but at least 1 and at most 128, as in the Linformer
        paper."""
        return min(128, max(1, self.rank // 4))

    def at(self, index: int) -> Float[Tensor, "layers heads"]:
        """Return the sum of the k = ``index`` largest singular values as a share of the sum of all, averaged over sequences.

        Raises:
            ValueError: ``index`` is not from 1 to ``rank``.
        """
        if not 1 <= index <= self.rank:
            raise ValueError(
                f"index must be from 1 to {self.rank}, because each attention matrix has {self.rank} singular values; got {index}"
            )
        return self.mean[..., index - 1]

    def standard_error(self, index: int) -> Float[Tensor, "layers heads"]:
        """Return the standard error of ``at(index)`` over sequences, of which there must be two or more."""
        return self.curves[..., index - 1].std(dim=0) / len(self.curves) ** 0.5

    def rank_for(self, share: float) -> Int[Tensor, "layers heads"]:
        """Return, for each head, the smallest k for which ``at(k)`` is at least ``share``, which is from 0 to 1."""
        return (self.mean < share - _ROUNDING).sum(dim=-1) + 1


def spectrum_of(batches: Iterable[Sequence[Float[Tensor, "batch heads queries keys"]]]) -> Spectrum:
    """Return the cumulative singular values of attention matrices. Each of ``batches`` has one tensor for each layer, as
    ``attention_matrices`` returns them.

    Raises:
        ValueError: there is no batch, or heads or lengths differ between layers or batches.
    """
    curves: list[Tensor] = []
    shapes: set[tuple[int, ...]] = set()
    for layers in batches:
        shapes |= {(len(layers), *layer.shape[1:]) for layer in layers}
        if len(shapes) != 1 or not layers:
            raise ValueError(
                "all layers and sequences must have attention matrices of one shape (layers, heads, queries, keys); got "
                f"{' and '.join(map(str, sorted(shapes))) or 'no layer'}. Cut all sequences to one length"
            )
        # One layer at a time: stacking all matrices would double the memory.
        curves.append(torch.stack([cumulative_spectrum(layer).double().cpu() for layer in layers], dim=1))
    if not curves:
        raise ValueError("a spectrum must have at least one sequence; got none")
    return Spectrum(torch.cat(curves))


def summary(spectrum: Spectrum) -> dict[str, Any]:
    """Return a summary of a spectrum as a dictionary for JSON.

    For each layer, and for all together, the summary has the minimum, mean and maximum over heads of two numbers:

    - ``least``, ``mean``, ``most``: the sum of the ``index`` largest singular values, divided by the sum of all;
    - ``rank_least``, ``rank_mean``, ``rank_most``: how many of the largest singular values make up 90 % of the sum of all.
    """
    shares, ranks = spectrum.at(spectrum.index), spectrum.rank_for(0.9).double()
    rows = [(str(at), *pair) for at, pair in enumerate(zip(shares, ranks, strict=True))] + [("all", shares, ranks)]
    error = float(spectrum.standard_error(spectrum.index).max()) if len(spectrum.curves) > 1 else None
    return {
        "sequences": len(spectrum.curves),
        "rank": spectrum.rank,
        "index": spectrum.index,
        "layers": [{"layer": name, **_over_heads("", share), **_over_heads("rank_", rank)} for name, share, rank in rows],
        "standard_error": error,
    }


def _over_heads(prefix: str, heads: Tensor) -> dict[str, float]:
    figures = {"least": heads.min(), "mean": heads.mean(), "most": heads.max()}
    return {f"{prefix}{name}": float(figure) for name, figure in figures.items()}


def spectrum_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return the result of ``attn-zoo analyze spectrum`` as a table in the format ``terminal`` or ``github``. It has one row per
    layer, and notes below."""
    index = found["index"]
    head = ["layer", f"least share at k = {index}", "mean", "most", "least k for 90 %", "mean", "most"]
    body = [
        [
            layer["layer"],
            *(f"{layer[name]:.3f}" for name in ("least", "mean", "most")),
            *(f"{layer[name]:.0f}" for name in ("rank_least", "rank_mean", "rank_most")),
        ]
        for layer in found["layers"]
    ]
    notes = [
        f"{found['model']} (weights: {found['weights']}); {found['sequences']} sequence{'s' * (found['sequences'] > 1)} of "
        f"{found['data']}; rank at most {found['rank']}.",
    ]
    if not found["trained"]:
        notes.append("The model is untrained, and initial weights often attend almost uniformly, which is of rank one.")
    error = f"; a head's standard error is at most {found['standard_error']:.4f}" if found["standard_error"] is not None else ""
    notes.append(
        f"With equal singular values, the share would be {index / found['rank']:.3f}{error}. "
        "Columns and method: docs/reference/measurements.md#analyze-spectrum."
    )
    return table(head, body, format) + "\n\n" + "\n".join(f"- {note}" for note in notes)

"""Relative error of softmax attention if n keys and values are projected to k, for several kinds of projection.

Paper: Wang et al. 2020, arXiv:2006.04768, Theorem 1 and Eq. 7.
Symbols: the paper's n is the number of keys; P = softmax(Q Kᵀ / √d); R, E and F are k × n matrices; ε is the relative error.
Differs: each head has its own E and F. For one column w of V, the theorem bounds ‖P̃ w - P w‖ / ‖P w‖ with high probability, where
    P̃ is a low-rank matrix that replaces P. Here the error is that of the whole output of a head, in the Frobenius norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.error import exact_attention, relative_error
from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.analysis.spectrum import cumulative_spectrum
from attn_zoo.analysis.starts import Start, initial_rows
from attn_zoo.contract.length_maps import equal_bounds, segment_means

Matrices = Float[Tensor, "heads k n"]
Outputs = Float[Tensor, "sequences heads n head_dim"]

_RATE = 3e-3
"""Learning rate of Adam for learned E and F, whose entries are of the order of k / n."""
_BATCH = 8
"""Number of sequences in a step of Adam."""


class Kind(Enum):
    """Kind of projection from n positions to k. ``theorem`` is the random matrix of Theorem 1 of the Linformer paper. The other
    kinds are matrices E (for keys) and F (for values) in Eq. 7 of this paper."""

    theorem = "theorem"
    """The output is P Rᵀ R V, where R has entries from N(0, 1/k), as in Theorem 1. It needs softmax's matrix P, so it costs more
    than softmax attention."""
    random = "random"
    """E and F have entries from N(0, 1/n) for n keys, the initialisation of Linformer."""
    pooling = "pooling"
    """E and F map keys and values to means over k equal segments."""
    spectrum = "spectrum"
    """E and F are the k leading eigenvectors of the second moment of the keys, scaled, and rotated to be as near to ``pooling`` as
    possible."""
    learned = "learned"
    """E and F are trained to reproduce the output of softmax attention, starting from ``pooling``."""


@dataclass(frozen=True)
class ProjectionErrors:
    """Errors of attention whose n keys and values are projected to k, relative to softmax attention, for each ``Kind`` of
    projection. They are measured on sequences to which no projection was fitted. Singular values of softmax's attention matrices
    are included."""

    lengths: tuple[int, ...]
    """Projected lengths k, the smallest first."""
    errors: Mapping[Kind, Float[Tensor, "lengths draws layers sequences heads"]]
    """Relative errors, by kind. Only ``theorem`` and ``random`` can have more than one random draw."""
    shares: Float[Tensor, "lengths layers heads"]
    """Sum of the k largest singular values of softmax's attention matrix as a share of the sum of all, averaged over sequences."""
    uniform: float
    """Mean error if every output is the plain average of all values."""

    def mean(self, kind: Kind) -> list[float]:
        """Return the mean error of a kind of projection for each projected length. The mean is over random draws, layers,
        sequences and heads."""
        return [float(error) for error in self.errors[kind].mean(dim=(1, 2, 3, 4))]

    def exponent(self, kind: Kind) -> float | None:
        """Return the exponent a in error ~ k^a, where k is the projected length, or None if there is only one length. It is fitted
        to the logarithms of the mean errors."""
        if len(self.lengths) < 2:
            return None
        k = torch.tensor(self.lengths, dtype=torch.float64).log()
        error = torch.tensor(self.mean(kind), dtype=torch.float64).log()
        return float(((k - k.mean()) * (error - error.mean())).sum() / (k - k.mean()).square().sum())


def measure_projections(
    layers: Sequence[AttentionInputs], lengths: Sequence[int], *, draws: int = 3, steps: int = 200, seed: int = 0
) -> ProjectionErrors:
    """Return the errors of attention whose n keys and values are projected to k, for every kind of projection (see ``Kind``).
    Projections that depend on data are fitted to the first half of the sequences. All errors are measured on the second half.

    Args:
        layers: queries, keys and values of each layer.
        lengths: projected lengths k.
        draws: number of draws of random matrices.
        steps: number of steps of Adam for ``learned``.

    Raises:
        ValueError: there are fewer than two sequences, inputs have padding or are causal, or a length is not in [1, n).
    """
    n = layers[0].geometry.keys
    if any(not 1 <= k < n for k in lengths) or not lengths:
        raise ValueError(
            f"every projected length must be from 1 to {n - 1}, so that it is less than the {n} keys; got "
            f"{', '.join(map(str, lengths)) or 'none'}"
        )
    if layers[0].query.shape[0] < 2:
        raise ValueError(
            "there must be at least two sequences, because projections are fitted on the first half and measured on the "
            f"second half; got {layers[0].query.shape[0]}"
        )
    if any(layer.causal or (layer.key_valid is not None and not bool(layer.key_valid.all())) for layer in layers):
        raise ValueError(
            "inputs must be bidirectional and without padding, because projections mix all positions. Give other inputs"
        )
    ordered = tuple(sorted(set(lengths)))
    halves = [_halves(layer.double()) for layer in layers]
    generator = torch.Generator().manual_seed(seed)
    errors: dict[Kind, list[Tensor]] = {kind: [] for kind in Kind}
    for k in ordered:
        for kind, found in errors.items():
            count = draws if kind in (Kind.theorem, Kind.random) else 1
            drawn = [torch.stack([_error(kind, k, *half, steps, generator) for half in halves]) for _ in range(count)]
            found.append(torch.stack(drawn))
    exact = [exact_attention(test) for _, test in halves]
    averages = [test.value.mean(dim=2, keepdim=True).expand_as(out) for (_, test), out in zip(halves, exact, strict=True)]
    spectra = [cumulative_spectrum(weights_of(test)).mean(dim=0) for _, test in halves]
    return ProjectionErrors(
        ordered,
        {kind: torch.stack(found) for kind, found in errors.items()},
        torch.stack([torch.stack([spectrum[:, k - 1] for spectrum in spectra]) for k in ordered]),
        float(torch.stack([relative_error(*pair) for pair in zip(averages, exact, strict=True)]).mean()),
    )


def least_length(n: int, error: float) -> float:
    """Return the smallest projected length k for which Theorem 1 of the Linformer paper guarantees a relative error below ε =
    ``error``.

    It is k = 5 log n / (ε² - ε³), where n is the number of keys.

    Raises:
        ValueError: ε is not in (0, 1).
    """
    if not 0 < error < 1:
        raise ValueError(f"the relative error of Theorem 1 must be greater than 0 and less than 1; got {error}")
    return 5 * math.log(n) / (error**2 - error**3)


def weights_of(inputs: AttentionInputs) -> Float[Tensor, "sequences heads n n"]:
    """Return softmax's matrix P = softmax(Q Kᵀ / √d) for queries Q and keys K with heads of width d."""
    return (inputs.query @ inputs.key.mT / inputs.query.shape[-1] ** 0.5).softmax(dim=-1)


def project(inputs: AttentionInputs, e: Matrices, f: Matrices) -> Outputs:
    """Return the output of Linformer's attention, softmax(Q (E K)ᵀ / √d) F V (Eq. 7 of the paper). Q, K and V are the queries,
    keys and values, E and F are the projections, and d is the width of a head."""
    ek, fv = (torch.einsum("hkn,bhnd->bhkd", matrix, x) for matrix, x in ((e, inputs.key), (f, inputs.value)))
    return (inputs.query @ ek.mT / inputs.query.shape[-1] ** 0.5).softmax(dim=-1) @ fv


def _halves(layer: AttentionInputs) -> tuple[AttentionInputs, AttentionInputs]:
    half = layer.query.shape[0] // 2
    first = AttentionInputs(layer.query[:half], layer.key[:half], layer.value[:half])
    return first, AttentionInputs(layer.query[half:], layer.key[half:], layer.value[half:])


def _error(
    kind: Kind, k: int, fit: AttentionInputs, test: AttentionInputs, steps: int, generator: torch.Generator
) -> Float[Tensor, "sequences heads"]:
    _, heads, n, _ = test.query.shape
    exact = exact_attention(test)
    if kind is Kind.theorem:
        r = torch.randn(heads, k, n, generator=generator, dtype=torch.float64) * k**-0.5
        return relative_error((weights_of(test) @ r.mT) @ (r @ test.value), exact)
    if kind is Kind.random:
        e, f = (torch.randn(heads, k, n, generator=generator, dtype=torch.float64) * n**-0.5 for _ in range(2))
    elif kind is Kind.learned:
        e, f = _fitted(fit, k, steps, generator)
    else:
        moments = torch.einsum("bhid,bhjd->hij", fit.key, fit.key)
        e = f = torch.stack([initial_rows(moment, k, Start[kind.name]) for moment in moments])
    return relative_error(project(test, e, f), exact)


def _fitted(fit: AttentionInputs, k: int, steps: int, generator: torch.Generator) -> tuple[Matrices, Matrices]:
    """Train E and F with Adam in float32 to minimise the mean squared relative error. Their initial rows are means over equal
    segments."""
    sequences, heads, n, _ = fit.query.shape
    parts = [part.float() for part in (fit.query, fit.key, fit.value, exact_attention(fit))]
    start = torch.stack([segment_means(equal_bounds(n, k))] * heads).float()
    e, f = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimizer = torch.optim.Adam([e, f], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randperm(sequences, generator=generator)[:_BATCH]
        query, key, value, exact = (part[chosen] for part in parts)
        optimizer.zero_grad()
        gap = project(AttentionInputs(query, key, value), e, f) - exact
        loss = (gap.square().sum(dim=(2, 3)) / exact.square().sum(dim=(2, 3))).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    return e.detach().double(), f.detach().double()

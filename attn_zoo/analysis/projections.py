"""Relative error of softmax attention if n keys and values are projected to k, for several kinds of projection.

Paper: Wang et al. 2020, arXiv:2006.04768, Theorem 1 and Eq. 7.
Symbols: the paper's n is the number of keys; P = softmax(Q Kᵀ / √d); R, E and F are k × n matrices; ε is the relative error.
Differs: each head has its own E and F. For one column w of V, the theorem bounds ‖P̃ w - P w‖ / ‖P w‖ with high probability, where
    P̃ is a low-rank matrix that replaces P. Here the error is that of the whole output of a head, in the Frobenius norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.error import exact_attention, relative_error
from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.analysis.spectrum import cumulative_spectrum
from attn_zoo.analysis.starts import Start, initial_rows
from attn_zoo.contract.length_maps import equal_bounds, segment_means
from attn_zoo.terminal import table

KINDS: Mapping[str, str] = {
    "theorem": "Theorem 1",
    "random": "random E, F",
    "pooling": "means",
    "spectrum": "spectrum of the keys",
    "learned": "learned E, F",
}
"""Kinds of projection from n positions to k, with the name of each in a picture.

- ``theorem``: the output is P Rᵀ R V, where R has entries from N(0, 1/k), as in Theorem 1. It needs softmax's matrix P, so it costs
  more than softmax attention. The other kinds are matrices E (for keys) and F (for values) in Eq. 7.
- ``random``: E and F have entries from N(0, 1/n) for n keys, the initialisation of Linformer.
- ``pooling``: E and F map keys and values to means over k equal segments.
- ``spectrum``: E and F are the k leading eigenvectors of the second moment of the keys, scaled, and rotated to be as near to
  ``pooling`` as possible.
- ``learned``: E and F are trained to reproduce the output of softmax attention, starting from ``pooling``.
"""
_BEST = 2 / 3
"""Error ε for which Theorem 1 needs the smallest projected length, k = 5 log n / (ε² - ε³)."""

Matrices = Float[Tensor, "heads k n"]


def measure_projections(
    layers: Sequence[AttentionInputs], lengths: Sequence[int], *, draws: int = 3, steps: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Return the errors of attention whose n keys and values are projected to k, for every kind of projection, as a dictionary for
    JSON. Projections that depend on data are fitted to the first half of the sequences. All errors are measured on the second
    half.

    - ``k``: projected lengths, the smallest first.
    - ``error``, ``over_heads``: for each kind and k, the mean error and its standard deviation over the heads of all layers.
    - ``exponent``: for each kind, a in error ~ k^a, fitted to logarithms. None if there is only one length.
    - ``share``: for each k, the sum of the k largest singular values of P as a share of the sum of all, averaged over heads.
    - ``uniform``: error if every output is the plain average of all values.
    - ``theorem_from``: smallest k for which Theorem 1 guarantees an error below some ε < 1.

    Args:
        layers: queries, keys and values of each layer, without padding.
        lengths: projected lengths k.
        draws: number of draws of the kinds ``theorem`` and ``random``.
        steps: number of steps of Adam for the kind ``learned``.

    Raises:
        ValueError: there are fewer than two sequences, inputs are causal, or a length is not in [1, n).
    """
    n, sequences = layers[0].geometry.keys, len(layers[0].query)
    if any(not 1 <= k < n for k in lengths) or not lengths:
        raise ValueError(
            f"every projected length must be from 1 to {n - 1}, so that it is less than the {n} keys; got "
            f"{', '.join(map(str, lengths)) or 'none'}"
        )
    if sequences < 2:
        raise ValueError(
            "there must be at least two sequences, because projections are fitted on the first half and measured on the "
            f"second half; got {sequences}"
        )
    if any(layer.causal for layer in layers):
        raise ValueError("inputs must be bidirectional, because projections mix all positions. Give other inputs")
    ordered = sorted(set(lengths))
    doubles = [layer.double() for layer in layers]
    halves = [(layer.sequences(slice(sequences // 2)), layer.sequences(slice(sequences // 2, None))) for layer in doubles]
    generator = torch.Generator().manual_seed(seed)
    by_head: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for k in ordered:
        for kind, found in by_head.items():
            count = draws if kind in ("theorem", "random") else 1
            errors = [torch.stack([_error(kind, k, *half, steps, generator) for half in halves]) for _ in range(count)]
            found.append(torch.stack(errors).mean(dim=(0, 2)))  # layers, heads
    tests = [test for _, test in halves]
    averages = [relative_error(test.value.mean(dim=2, keepdim=True).expand_as(test.value), exact_attention(test)) for test in tests]
    spectra = torch.stack([cumulative_spectrum(weights_of(test)).mean(dim=0) for test in tests])
    means = {kind: [float(error.mean()) for error in found] for kind, found in by_head.items()}
    return {
        "k": ordered,
        "error": means,
        "over_heads": {kind: [float(error.std(correction=0)) for error in found] for kind, found in by_head.items()},
        "exponent": {kind: _exponent(ordered, errors) for kind, errors in means.items()},
        "share": [float(spectra[..., k - 1].mean()) for k in ordered],
        "uniform": float(torch.stack(averages).mean()),
        "theorem_from": 5 * math.log(n) / (_BEST**2 - _BEST**3),
    }


def weights_of(inputs: AttentionInputs) -> Float[Tensor, "sequences heads n n"]:
    """Return softmax's matrix P = softmax(Q Kᵀ / √d) for queries Q and keys K with heads of width d."""
    return (inputs.query @ inputs.key.mT / inputs.query.shape[-1] ** 0.5).softmax(dim=-1)


def project(inputs: AttentionInputs, e: Matrices, f: Matrices) -> Float[Tensor, "sequences heads n head_dim"]:
    """Return the output of Linformer's attention, softmax(Q (E K)ᵀ / √d) F V (Eq. 7 of the paper). Q, K and V are the queries,
    keys and values, E and F are the projections, and d is the width of a head."""
    ek, fv = (torch.einsum("hkn,bhnd->bhkd", matrix, x) for matrix, x in ((e, inputs.key), (f, inputs.value)))
    return (inputs.query @ ek.mT / inputs.query.shape[-1] ** 0.5).softmax(dim=-1) @ fv


def projections_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return the result of ``attn-zoo analyze projections`` as one table per model, in the format ``terminal`` or ``github``. A
    table has one row per kind of projection and one column per projected length, and notes below."""
    parts = []
    for model in found["models"]:
        head = [f"{model['model']}, {model['weights']}", *(f"k = {k}" for k in model["k"]), "falls as"]
        powers = {kind: "-" if exponent is None else f"k^{exponent:.2f}" for kind, exponent in model["exponent"].items()}
        body = [[kind, *(f"{error:.3f}" for error in model["error"][kind]), powers[kind]] for kind in KINDS]
        body.append(["share of singular values", *(f"{share:.3f}" for share in model["share"]), "-"])
        notes = [
            f"{model['sequences']} sequences of {model['data']}; n = {model['length']}.",
            f"The average of all values has an error of {model['uniform']:.3f}. Theorem 1 gives no bound below k = "
            f"{model['theorem_from']:.0f}. Columns and method: docs/reference/measurements.md#analyze-projections.",
        ]
        parts += [table(head, body, format), "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts)


def _exponent(lengths: Sequence[int], errors: Sequence[float]) -> float | None:
    """Return the slope of the logarithms of the errors over those of the lengths."""
    if len(lengths) < 2:
        return None
    k, error = (torch.tensor(values, dtype=torch.float64).log() for values in (lengths, errors))
    return float(((k - k.mean()) * (error - error.mean())).sum() / (k - k.mean()).square().sum())


def _error(
    kind: str, k: int, fit: AttentionInputs, test: AttentionInputs, steps: int, generator: torch.Generator
) -> Float[Tensor, "sequences heads"]:
    _, heads, n, _ = test.query.shape
    exact = exact_attention(test)
    if kind == "theorem":
        r = torch.randn(heads, k, n, generator=generator, dtype=torch.float64) * k**-0.5
        return relative_error((weights_of(test) @ r.mT) @ (r @ test.value), exact)
    if kind == "random":
        e, f = (torch.randn(heads, k, n, generator=generator, dtype=torch.float64) * n**-0.5 for _ in range(2))
    elif kind == "learned":
        e, f = _fitted(fit, k, steps, generator)
    else:
        moments = torch.einsum("bhid,bhjd->hij", fit.key, fit.key)
        e = f = torch.stack([initial_rows(moment, k, Start(kind)) for moment in moments])
    return relative_error(project(test, e, f), exact)


def _fitted(fit: AttentionInputs, k: int, steps: int, generator: torch.Generator) -> tuple[Matrices, Matrices]:
    """Train E and F with Adam in float32 to minimise the mean squared relative error, on 8 sequences a step. Their initial rows are
    means over equal segments."""
    sequences, heads, n, _ = fit.query.shape
    parts = [part.float() for part in (fit.query, fit.key, fit.value, exact_attention(fit))]
    start = torch.stack([segment_means(equal_bounds(n, k))] * heads).float()
    e, f = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimizer = torch.optim.Adam([e, f], lr=3e-3)  # the entries of E and F are of the order of k / n
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randperm(sequences, generator=generator)[:8]
        query, key, value, exact = (part[chosen] for part in parts)
        optimizer.zero_grad()
        gap = project(AttentionInputs(query, key, value), e, f) - exact
        loss = (gap.square().sum(dim=(2, 3)) / exact.square().sum(dim=(2, 3))).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    return e.detach().double(), f.detach().double()

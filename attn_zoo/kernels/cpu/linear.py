"""Averages of values with the weights φ(q)·φ(k), over all keys or over the past. They are computed from the sums of φ(k) vᵀ and
of φ(k).

For a head with m features, the first sum has m × d numbers, the second m. Averages over the past are computed in chunks, and
several chunks form a block. The backward pass recomputes the features, weights and sums of one block at a time. So only the inputs,
the outputs, one number per query and the sums before each block are saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.kernels.cpu._chunks import filled, into_chunks, row_bytes, spans
from attn_zoo.kernels.cpu._tiling import like_tokens
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries


@runtime_checkable
class Features(Protocol):
    """Feature map φ, applied to each query and each key, with its gradient."""

    def of(self, x: Float[Tensor, "b h r d"]) -> Float[Tensor, "b h r m"]:
        """Return the features φ(x) in a new tensor."""

    def gradient(self, x: Float[Tensor, "b h r d"], features: Tensor, gradient: Tensor) -> Float[Tensor, "b h r d"]:
        """Return the gradient of x, given φ(x) and the gradient of φ(x). ``features`` and ``gradient`` may be overwritten."""


def average_of_all(features: Features, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
    """Return Σⱼ φ(q)·φ(kⱼ) vⱼ / Σⱼ φ(q)·φ(kⱼ) over all valid keys. If all weights are zero, the result is zero."""
    out: Tensor = _All.run(features, query, key, value, key_valid)
    return out


def average_of_past(
    features: Features,
    summed: Float[Tensor, "b h m d"],
    mass: Float[Tensor, "b h m"],
    query: Float[Tensor, "b h n d"],
    key: Float[Tensor, "b h n d"],
    value: Float[Tensor, "b h n d"],
    key_valid: Bool[Tensor, "b n"] | None,
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h m d"], Float[Tensor, "b h m"]]:
    """Return, for each query, the average of the values up to its position, with the weights φ(q)·φ(k). The average includes the
    tokens of earlier calls, given as sums.

    Args:
        summed: sum of φ(k) vᵀ over the tokens of earlier calls.
        mass: sum of φ(k) over the tokens of earlier calls.

    Returns:
        The averages, and the two sums with the tokens of this call added.
    """
    out, summed, mass = _Past.run(features, summed, mass, query, key, value, key_valid)
    return out, summed, mass


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Feature map φ that acts on each element, with its gradient. ``name`` chooses the function: elu, relu or squared_relu."""

    name: str
    floor: float

    def of(self, x: Float[Tensor, "b h r d"]) -> Float[Tensor, "b h r d"]:
        """Return the features: elu(x) + 1 for elu, max(x, 0) + ``floor`` for relu, max(x, 0)² + ``floor`` for squared_relu."""
        positive = x.clamp(min=0)
        if self.name == "elu":
            return x.clamp(max=0).exp_().add_(positive)  # not elu + 1, which would round small features to zero
        return (positive.square_() if self.name == "squared_relu" else positive).add_(self.floor)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Float[Tensor, "b h r d"]:
        """Return the gradient of x, given the gradient of φ(x)."""
        if self.name == "elu":
            return features.clamp_(max=1).mul_(gradient)
        slope = x.clamp(min=0)
        return (slope.mul_(2) if self.name == "squared_relu" else slope.sign_()).mul_(gradient)


class SoftmaxOverHead:
    """Feature map exp(x) / Σ exp(x) over the channels of a head."""

    def of(self, x: Float[Tensor, "b h r d"]) -> Float[Tensor, "b h r d"]:
        """Return the features: the softmax of x over the channels of a head."""
        return x.softmax(dim=-1)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Float[Tensor, "b h r d"]:
        """Return the gradient of x, given the gradient of φ(x)."""
        return features.mul_(gradient - (gradient * features).sum(dim=-1, keepdim=True))


def features_of(name: str, floor: float) -> Features:
    """Return the feature map of this name: ``elu``, ``relu``, ``squared_relu`` or ``softmax``."""
    return SoftmaxOverHead() if name == "softmax" else Elementwise(name, floor)


class _All(OnceDifferentiable):
    """Autograd function of ``average_of_all``: one pass over blocks of keys and one over blocks of queries, both forward and
    backward.
    """

    @staticmethod
    def forward(ctx: Any, features: Features, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
        grad_queries, grad_keys = (spans(x.shape[2], row_bytes(x)) for x in (query, key))
        summed = mass = None
        for rows in grad_keys:
            phi = _flat(_valid_features(features, key, valid, rows))
            if summed is None or mass is None:
                summed, mass = torch.bmm(phi.mT, _flat(value[:, :, rows])), phi.sum(dim=1, keepdim=True)
            else:
                _add_product(summed, phi.mT, _flat(value[:, :, rows]))
                mass += phi.sum(dim=1, keepdim=True)
        assert summed is not None and mass is not None
        out, scale = like_tokens(query), query.new_empty(*query.shape[:3], 1)
        for rows in grad_queries:
            phi = _flat(features.of(query[:, :, rows]))
            top = torch.bmm(phi, summed)
            _divide(top, phi.mul_(mass).sum(dim=-1, keepdim=True), out[:, :, rows], scale[:, :, rows])
        ctx.save_for_backward(query, key, value, valid, out, scale, summed, mass)
        ctx.features, ctx.grad_queries, ctx.grad_keys = features, grad_queries, grad_keys
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, out, scale, summed, mass = ctx.saved_tensors
        features, batch = ctx.features, query.shape[:2]
        grad_query, grad_key, grad_value = (like_tokens(x) for x in (query, key, value))
        grad_summed, grad_mass = torch.zeros_like(summed), torch.zeros_like(mass)
        with without_autocast(grad_out.device):
            for rows in ctx.grad_queries:
                phi = features.of(query[:, :, rows])
                grad_top, grad_bottom = (_flat(x) for x in _quotient_gradients(grad_out, out, scale, rows))
                grad_phi = torch.bmm(grad_top, summed.mT).addcmul_(grad_bottom, mass).unflatten(0, batch)
                _add_product(grad_summed, _flat(phi).mT, grad_top)
                grad_mass += (_flat(phi) * grad_bottom).sum(dim=1, keepdim=True)
                grad_query[:, :, rows] = features.gradient(query[:, :, rows], phi, grad_phi)
            for rows in ctx.grad_keys:
                phi = _valid_features(features, key, valid, rows)
                grad_value[:, :, rows] = torch.bmm(_flat(phi), grad_summed).unflatten(0, batch)
                grad_phi = torch.bmm(_flat(value[:, :, rows]), grad_summed.mT).add_(grad_mass).unflatten(0, batch)
                grad_key[:, :, rows] = features.gradient(key[:, :, rows], phi, grad_phi)
        return None, grad_query, grad_key, grad_value, None


class _Past(OnceDifferentiable):
    """Autograd function of ``average_of_past``, over chunks of all examples and heads: (batch · heads · chunks, chunk, width)."""

    @staticmethod
    def forward(
        ctx: Any, features: Features, summed: Tensor, mass: Tensor, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = query.shape[2]
        out, scale = like_tokens(query), query.new_empty(*query.shape[:3], 1)
        blocks, starts = spans(n, row_bytes(query)), [summed, mass]
        summed, mass = _flat(summed), _flat(mass)
        for rows in blocks:
            if rows.start:
                starts += [summed, mass]
            phi_q, phi_k, values = _chunks_of(features, query, key, value, valid, rows, n)
            before, summed = _sums(summed, torch.bmm(phi_k.mT, values))
            mass_before, mass = _sums(mass, phi_k.sum(dim=1))
            weights = torch.bmm(phi_q, phi_k.mT).tril_()
            top = _add_product(torch.bmm(phi_q, before), weights, values)
            bottom = weights.sum(dim=-1, keepdim=True) + phi_q.mul_(mass_before[:, None]).sum(dim=-1, keepdim=True)
            _divide(top, bottom, out[:, :, rows], scale[:, :, rows])
        ctx.save_for_backward(query, key, value, valid, out, scale, *starts)
        ctx.features, ctx.spans = features, blocks
        return out, summed.unflatten(0, query.shape[:2]), mass.unflatten(0, query.shape[:2])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_summed: Tensor, grad_mass: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, out, scale, *starts = ctx.saved_tensors
        starts[:2] = (_flat(start) for start in starts[:2])
        features, n, batch = ctx.features, query.shape[2], query.shape[:2]
        grad_query, grad_key, grad_value = (like_tokens(x) for x in (query, key, value))
        grad_summed, grad_mass = _flat(grad_summed), _flat(grad_mass)
        with without_autocast(grad_out.device):
            for at, rows in reversed(list(enumerate(ctx.spans))):
                length = rows.stop - rows.start
                phi_q, phi_k, values = _chunks_of(features, query, key, value, valid, rows, n)
                grad_top, grad_bottom = (_cut(x, phi_q.shape[1]) for x in _quotient_gradients(grad_out, out, scale, rows))
                before, _ = _sums(starts[2 * at], torch.bmm(phi_k.mT, values))
                mass_before, _ = _sums(starts[2 * at + 1], phi_k.sum(dim=1))
                after, grad_summed = _sums(grad_summed, torch.bmm(phi_q.mT, grad_top), later=True)
                mass_after, grad_mass = _sums(grad_mass, (phi_q * grad_bottom).sum(dim=1), later=True)
                weights = torch.bmm(phi_q, phi_k.mT).tril_()
                grad_values = _add_product(torch.bmm(phi_k, after), weights.mT, grad_top)
                grad_value[:, :, rows] = _joined(grad_values, batch, length)
                grad_weights = torch.bmm(grad_top, values.mT).add_(grad_bottom).tril_()
                grad_phi_q = _add_product(torch.bmm(grad_top, before.mT), grad_weights, phi_k).addcmul_(
                    grad_bottom, mass_before[:, None]
                )
                grad_phi_k = _add_product(torch.bmm(values, after.mT), grad_weights.mT, phi_q).add_(mass_after[:, None])
                for whole, x, phi, grad in ((grad_query, query, phi_q, grad_phi_q), (grad_key, key, phi_k, grad_phi_k)):
                    parts = _joined(phi, batch, length), _joined(grad, batch, length)
                    whole[:, :, rows] = features.gradient(x[:, :, rows], *parts)
        return None, grad_summed.unflatten(0, batch), grad_mass.unflatten(0, batch), grad_query, grad_key, grad_value, None


def _chunks_of(
    features: Features, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, rows: slice, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of queries and keys, and values, of some rows in chunks. Padding of the last chunk has zero features."""
    chunk, _ = filled(length)
    phi_q = features.of(query[:, :, rows])
    return _cut(phi_q, chunk), _cut(_valid_features(features, key, valid, rows), chunk), _cut(value[:, :, rows], chunk)


def _valid_features(features: Features, key: Tensor, valid: Tensor | None, rows: slice) -> Tensor:
    phi = features.of(key[:, :, rows])
    return phi if valid is None else phi.masked_fill_(~valid[:, None, rows, None], 0)


def _add_product(to: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Compute ``to.baddbmm_(left, right)`` in a form that PyTorch's FLOP counter counts."""
    return torch.baddbmm(to, left, right, out=to)


def _sums(start: Float[Tensor, "bh *w"], parts: Float[Tensor, "bhc *w"], *, later: bool = False) -> tuple[Tensor, Tensor]:
    """Return for each chunk ``start`` plus the parts of all earlier chunks, or of all later ones, and the total."""
    split = parts.unflatten(0, (start.shape[0], -1))
    if torch.compiler.is_compiling():  # the loop would hold for one number of chunks
        order = split.flip(1) if later else split
        running = torch.cat([start[:, None], order], dim=1).cumsum(dim=1)
        return (running[:, :-1].flip(1) if later else running[:, :-1]).flatten(0, 1), running[:, -1]
    sums = torch.empty_like(split)
    each, part = (x.unbind(1)[::-1] if later else x.unbind(1) for x in (sums, split))
    each[0].copy_(start)
    for c in range(1, len(each)):
        torch.add(each[c - 1], part[c - 1], out=each[c])
    return sums.flatten(0, 1), each[-1] + part[-1]


def _divide(top: Tensor, bottom: Tensor, out: Tensor, scale: Tensor) -> None:
    """Write the quotient to ``out``, and the reciprocal of the denominator to ``scale``. If all weights vanish, the quotient is
    zero.
    """
    rows = out.shape[2]
    inverse = bottom.clamp_(min=_floor(bottom)).reciprocal_().view(*out.shape[:2], -1, 1)[:, :, :rows]
    scale.copy_(inverse)
    top = top.view(*out.shape[:2], -1, out.shape[3])[:, :, :rows]
    if torch.compiler.is_compiling():  # which takes no view as ``out``
        out.copy_(top * inverse)
    else:
        torch.mul(top, inverse, out=out)


def _quotient_gradients(grad_out: Tensor, out: Tensor, scale: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the gradients of numerators and denominators. They are zero for denominators that were replaced by the floor."""
    grad_top = grad_out[:, :, rows] * scale[:, :, rows]
    grad_bottom = (grad_top * out[:, :, rows]).sum(dim=-1, keepdim=True).neg_()
    return grad_top, grad_bottom.masked_fill_(scale[:, :, rows] >= 1 / _floor(scale), 0)


def _floor(x: Tensor) -> float:
    """Return the floor of denominators: the root of the smallest number. The gradient, which divides by its square, then stays
    finite.
    """
    return float(torch.finfo(x.dtype).tiny ** 0.5)


def _flat(x: Float[Tensor, "b h *w"]) -> Float[Tensor, "bh *w"]:
    return x.flatten(0, 1)


def _cut(x: Float[Tensor, "b h r w"], chunk: int) -> Float[Tensor, "bhc chunk w"]:
    return into_chunks(x, chunk).reshape(-1, chunk, x.shape[3])


def _joined(x: Float[Tensor, "bhc chunk w"], batch: torch.Size, length: int) -> Float[Tensor, "b h r w"]:
    return x.view(*batch, -1, x.shape[2])[:, :, :length]

"""Averages of values over all keys, with weights φ(q)·φ(k) of positive features φ. Two softmaxes compute them from the
logarithms ℓ = log φ.

For each feature m, the first softmax is that of ℓₘ(k) over the keys. It gives vₘ, the weighted mean of the values, and zₘ, the
log-sum-exp of ℓₘ(k). For each query, the second softmax is that of ℓₘ(q) + zₘ over the features. It gives the output, the
weighted mean of the vₘ. No sum under- or overflows, at any scale of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.kernels.cpu._softmax import softmax_and_lse
from attn_zoo.kernels.cpu._tiling import like_tokens, rows_of_step, sequences
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries

HIDDEN = -1e30
"""Log weight of a hidden key. It is so low that the key has no influence, but finite, so an example of padding alone gives no
NaN.
"""


@runtime_checkable
class LogFeatureMap(Protocol):
    """Map from a projection ω·x to log features ℓ, element by element."""

    def logs(self, projected: Tensor) -> Tensor:
        """Return the log features ℓ of a projection, in a new tensor."""

    def slope(self, projected: Tensor) -> Tensor:
        """Return the derivative of the log features ℓ with respect to the projection ω·x."""


def average_over_features(
    log_map: LogFeatureMap | None, directions: Float[Tensor, "m d"], query: Queries, key: Keys, value: Keys, key_valid: KeyValid
) -> Queries:
    """Return Σⱼ φ(q)·φ(kⱼ) vⱼ / Σⱼ φ(q)·φ(kⱼ) over all valid keys. Queries and keys are multiplied by d^-1/4 before their features
    are computed.

    The inputs and two results per feature (a mean of the values and a log-sum-exp) are saved for the backward pass.

    Args:
        log_map: map from ω·x to log features, where ω is a row of ``directions``; None means ℓ = ω·x - |x|²/2, the log features of
            the softmax kernel.
    """
    out: Tensor = _Averages.run(log_map, directions * directions.shape[1] ** -0.25, query, key, value, key_valid)
    return out


@dataclass(frozen=True, slots=True)
class ReluFeatures:
    """Map from ω·x to the log feature log(relu(ω·x) / √m + floor), where m is the number of features."""

    features: int
    floor: float

    def logs(self, projected: Tensor) -> Tensor:
        """Return the log features of a projection."""
        return projected.relu().mul_(self.features**-0.5).add_(self.floor).log_()

    def slope(self, projected: Tensor) -> Tensor:
        """Return the derivative of the log features with respect to the projection ω·x."""
        return (projected + self.floor * self.features**0.5).reciprocal_().masked_fill_(projected <= 0, 0)


class _Averages(OnceDifferentiable):
    """Autograd function of ``average_over_features``. It handles one long or many short sequences at a time, in steps of some
    rows.
    """

    @staticmethod
    def forward(
        ctx: Any, log_map: LogFeatureMap | None, scaled: Tensor, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None
    ) -> Tensor:
        (batch, heads, _, d), m = query.shape, scaled.shape[0]
        out, means, totals = like_tokens(query), query.new_empty(batch, heads, m, d), query.new_empty(batch, heads, m, 1)
        for which in _together(scaled, query, key):
            mean, total = _read_keys(_Keys(log_map, scaled, key, valid, which), _flat(value[which]))
            means[which], totals[which] = mean.view_as(means[which]), total.view_as(totals[which])
            _average(log_map, scaled, query[which], mean, total, out[which])
        ctx.save_for_backward(scaled, query, key, value, valid, means, totals)
        ctx.log_map = log_map
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        scaled, query, key, value, valid, means, totals = ctx.saved_tensors
        grad_query, grad_key, grad_value = (like_tokens(x) for x in (query, key, value))
        with without_autocast(grad_out.device):
            for which in _together(scaled, query, key):
                mean, total = _flat(means[which]), _flat(totals[which])
                given = query[which], mean, total, grad_out[which], grad_query[which]
                grad_mean, grad_total = _query_gradients(ctx.log_map, scaled, *given)
                keys = _Keys(ctx.log_map, scaled, key, valid, which)
                # A log-sum-exp also has a gradient through the weights that it normalises in the average.
                grad_total -= (grad_mean * mean).sum(dim=-1, keepdim=True)
                _key_gradients(keys, _flat(value[which]), total, grad_mean, grad_total, grad_key[which], grad_value[which])
        return None, None, grad_query, grad_key, grad_value, None


class _Keys:
    """Logarithms of the features of keys, (sequences, m, rows), and their gradient."""

    def __init__(
        self, log_map: LogFeatureMap | None, scaled: Tensor, key: Tensor, valid: Tensor | None, which: tuple[slice, slice]
    ) -> None:
        self.key, self.log_map, self.root = _flat(key[which]), log_map, scaled.shape[1] ** -0.5
        self.scaled = scaled.expand(self.key.shape[0], -1, -1)
        self.shift = (
            self.key.square().sum(dim=-1).mul_(-self.root / 2) if log_map is None else self.key.new_zeros(self.key.shape[:2])
        )
        if valid is not None:
            heads = self.key.shape[0] // valid[which[0]].shape[0]
            self.shift.masked_fill_(~valid[which[0]].repeat_interleave(heads, dim=0), HIDDEN)

    def steps(self) -> Iterator[slice]:
        """Return the slices of rows of each step."""
        return _rows(self.key, self.scaled.shape[1])

    def logs(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Compute ℓ of some rows. If there is a ``log_map``, also return their projections."""
        return _logs(self.log_map, self.scaled, self.key[:, rows].mT, self.shift[:, None, rows])

    def gradient(self, rows: slice, grad_logs: Tensor, projected: Tensor | None) -> Float[Tensor, "s r d"]:
        """Return the gradient of the keys from that of ℓ."""
        grad_keys = torch.bmm(_product_gradient(self.log_map, grad_logs, projected).mT, self.scaled)
        if self.log_map is not None:
            return grad_keys
        return grad_keys.addcmul_(self.key[:, rows], grad_logs.sum(dim=1)[..., None], value=-self.root)


def _read_keys(keys: _Keys, value: Tensor) -> tuple[Float[Tensor, "s m d"], Float[Tensor, "s m 1"]]:
    """Return the average of the values and the log-sum-exp of each feature, merged step by step."""
    mean = total = None
    for rows in keys.steps():
        logs, _ = keys.logs(rows)
        weights, here = softmax_and_lse(logs)
        average = torch.bmm(weights, value[:, rows])
        if mean is None or total is None:
            mean, total = average, here
        else:
            mean.lerp_(average, (here - total).sigmoid_())
            total = torch.logaddexp(total, here)
    assert mean is not None and total is not None
    return mean, total


def _average(log_map: LogFeatureMap | None, scaled: Tensor, query: Tensor, mean: Tensor, total: Tensor, out: Tensor) -> None:
    """Write the output of each query to ``out``: the average over the features of their averages of the values."""
    queries, across = _flat(query), scaled.T.expand(mean.shape[0], -1, -1)
    for rows in _rows(queries, scaled.shape[0]):
        logs, _ = _logs(log_map, queries[:, rows], across, total.mT)
        found = torch.bmm(logs.softmax(dim=-1), mean)
        out[:, :, rows] = found.view_as(out[:, :, rows])


def _query_gradients(
    log_map: LogFeatureMap | None, scaled: Tensor, query: Tensor, mean: Tensor, total: Tensor, grad_out: Tensor, grad_query: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the gradient of the queries, and return the gradients of the averages and of the log-sum-exps."""
    grad_mean, grad_total = torch.zeros_like(mean), torch.zeros_like(total.mT)
    queries, grad_rows, along = _flat(query), _flat(grad_out), scaled.expand(mean.shape[0], -1, -1)
    for rows in _rows(queries, scaled.shape[0]):
        logs, projected = _logs(log_map, queries[:, rows], along.mT, total.mT)
        weights = logs.softmax(dim=-1)
        torch.baddbmm(grad_mean, weights.mT, grad_rows[:, rows], out=grad_mean)
        grad_logs = torch.bmm(grad_rows[:, rows], mean.mT).mul_(weights)
        grad_logs.addcmul_(weights, grad_logs.sum(dim=-1, keepdim=True), value=-1)
        grad_total += grad_logs.sum(dim=1, keepdim=True)
        found = torch.bmm(_product_gradient(log_map, grad_logs, projected), along)
        grad_query[:, :, rows] = found.view_as(grad_query[:, :, rows])
    return grad_mean, grad_total.mT


def _key_gradients(
    keys: _Keys, value: Tensor, total: Tensor, grad_mean: Tensor, grad_total: Tensor, grad_key: Tensor, grad_value: Tensor
) -> None:
    """Write the gradients of keys and values, computed from the gradients of the averages and log-sum-exps."""
    for rows in keys.steps():
        logs, projected = keys.logs(rows)
        weights, here = softmax_and_lse(logs)
        weights.mul_(here.sub_(total).exp_())
        grad_value[:, :, rows] = torch.bmm(weights.mT, grad_mean).view_as(grad_value[:, :, rows])
        grad_logs = torch.baddbmm(grad_total, grad_mean, value[:, rows].mT).mul_(weights)
        grad_key[:, :, rows] = keys.gradient(rows, grad_logs, projected).view_as(grad_key[:, :, rows])


def _logs(log_map: LogFeatureMap | None, left: Tensor, right: Tensor, shift: Tensor) -> tuple[Tensor, Tensor | None]:
    """Compute ℓ of a product, plus ``shift``. If there is a ``log_map``, also return the product."""
    if log_map is None:
        return torch.baddbmm(shift, left, right), None
    projected = torch.bmm(left, right)
    return log_map.logs(projected).add_(shift), projected


def _product_gradient(log_map: LogFeatureMap | None, grad_logs: Tensor, projected: Tensor | None) -> Tensor:
    """Return the gradient of the product from that of ℓ."""
    return grad_logs if log_map is None or projected is None else grad_logs.mul_(log_map.slope(projected))


def _together(scaled: Tensor, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Return slices of examples and heads whose rows fit in one step, or slices of a single sequence."""
    longest, m = max(query.shape[2], key.shape[2]), scaled.shape[0]
    return sequences(query.shape[0], query.shape[1], longest * m * query.element_size(), query.device)


def _rows(x: Float[Tensor, "s r d"], m: int) -> Iterator[slice]:
    return rows_of_step(x.shape[1], x.shape[0] * m * x.element_size(), x.device)


def _flat(x: Float[Tensor, "b h *w"]) -> Float[Tensor, "bh *w"]:
    return x.flatten(0, 1)

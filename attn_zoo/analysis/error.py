"""Approximation error of mechanisms, and their cost.

For each head, the error is ‖Y - Y_exact‖ / ‖Y_exact‖, where Y is the output of the mechanism and Y_exact that of softmax attention
for the same inputs. Everything is computed in float64, so rounding does not contribute to an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.analysis.feeding import attend, build_layers
from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.contract import Attention
from attn_zoo.count import activation_bytes
from attn_zoo.registry import build_attention


@dataclass(frozen=True, eq=False)
class ApproximationError:
    """Errors of the outputs of one mechanism relative to softmax attention, with the cost of the mechanism and other facts about
    it."""

    errors: Float[Tensor, "draws layers sequences heads"]
    """Relative errors by random draw, layer, sequence and head. A mechanism that is not random has one draw."""
    drawn: bool
    """True if a new mechanism has random parts, such as random features, hashes or initial weights."""
    flops: int
    """FLOPs of one layer for one sequence, by the mechanism's formula."""
    activation_bytes: int | None
    """Bytes that autograd saves for one layer and one sequence, in float32 on a CPU. None if they cannot be counted from shapes."""
    parameters: int
    """Number of trainable parameters of one layer. They have their initial values."""
    streams: Mapping[str, str]
    """Additional inputs (streams) by name, each with the input from which a newly built layer computes it: ``query``, ``key``
    or ``value``."""
    reads: tuple[str, ...]
    """Inputs that the mechanism uses: some of ``query``, ``key`` and ``value``."""
    tied: float | None
    """Mean error relative to softmax(Q Qᵀ / √d) V, if the mechanism uses the queries Q as keys. None for other mechanisms."""
    warnings: tuple[str, ...]
    """Warnings of the mechanism about these options, one sentence each."""

    @property
    def mean(self) -> float:
        """Mean of the errors over random draws, layers, sequences and heads."""
        return float(self.errors.mean())

    @property
    def by_layer(self) -> list[float]:
        """Mean error of each layer: the mean over random draws, sequences and heads."""
        return [float(error) for error in self.errors.mean(dim=(0, 2, 3))]

    @property
    def over_heads(self) -> float | None:
        """Standard deviation of the error over the heads of all layers. None if there is only one head."""
        heads = self.errors.mean(dim=(0, 2)).flatten()
        return float(heads.std()) if len(heads) > 1 else None

    @property
    def over_draws(self) -> float | None:
        """Standard deviation of the mean error over the random draws. None if there is only one draw."""
        means = self.errors.mean(dim=(1, 2, 3))
        return float(means.std()) if len(means) > 1 else None


class Reference:
    """Inputs of attention layers with the exact outputs of softmax attention. Mechanisms are compared with these outputs.

    Raises:
        ValueError: there is no layer, or an exact output is zero or not finite, so relative errors are undefined.
    """

    def __init__(self, layers: Sequence[AttentionInputs]) -> None:
        if not layers:
            raise ValueError("the inputs must come from at least one layer; got none")
        self.layers = [layer.double() for layer in layers]
        self.exact = [exact_attention(layer) for layer in self.layers]
        for layer, exact in zip(self.layers, self.exact, strict=True):
            relative_error(exact, exact, layer.query_valid)

    def error(self, name: str, options: Mapping[str, Any], *, seeds: int = 1, first_seed: int = 0) -> ApproximationError:
        """Return the errors with which a mechanism approximates softmax attention. The mechanism is built for every layer and, if
        it draws random numbers, for every seed.

        Args:
            name: name of the mechanism.
            seeds: number of seeds, counted from ``first_seed``.

        Raises:
            UnknownNameError: no such mechanism or option.
            ValueError, UnsupportedError: the mechanism cannot be built with these options for these inputs.
        """
        errors, tied = [], []
        for seed in range(first_seed, first_seed + seeds):
            built, drawn = build_layers(name, self.layers, options, seed)
            outputs = [_attend_one_by_one(*pair) for pair in zip(built, self.layers, strict=True)]
            errors.append(self._compare(outputs, self.exact))
            if built[0].card.can.shares_query_key:
                tied.append(float(self._compare(outputs, self._tied).mean()))
            if not drawn:
                break
        mechanism = built[0]
        card, geometry = mechanism.card, mechanism.geometry
        cost = card.cost(geometry, mechanism.options)
        return ApproximationError(
            errors=torch.stack(errors),
            drawn=drawn,
            flops=cost.flops,
            activation_bytes=activation_bytes(card, geometry, mechanism.options),
            parameters=sum(p.numel() for p in mechanism.parameters() if p.requires_grad),
            streams={stream.name: stream.starts_as for stream in card.streams(geometry, mechanism.options)},
            reads=card.reads,
            tied=sum(tied) / len(tied) if tied else None,
            warnings=card.build.warnings(geometry, mechanism.options),
        )

    @cached_property
    def _tied(self) -> list[Tensor]:
        """Exact outputs if the queries serve as keys."""
        return [exact_attention(replace(layer, key=layer.query)) for layer in self.layers]

    def _compare(self, outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> Float[Tensor, "layers sequences heads"]:
        """Return the relative errors of the outputs of every layer."""
        triples = zip(outputs, exact, self.layers, strict=True)
        return torch.stack([relative_error(out, right, layer.query_valid) for out, right, layer in triples])


def exact_attention(inputs: AttentionInputs) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return softmax(Q Kᵀ / √d) V in float64, for queries Q, keys K and values V with heads of width d."""
    return _attend_one_by_one(build_attention("softmax", inputs.geometry).eval(), inputs.double())


def relative_error(
    out: Float[Tensor, "batch heads queries head_dim"],
    exact: Float[Tensor, "batch heads queries head_dim"],
    query_valid: Bool[Tensor, "batch queries"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Return the error ‖out - exact‖ / ‖exact‖ of each head in the Frobenius norm. Queries that are not real tokens are left out.

    Raises:
        ValueError: an exact output is zero or not finite.
    """
    gap = out - exact
    if query_valid is not None:
        padding = ~query_valid[:, None, :, None]
        gap, exact = gap.masked_fill(padding, 0), exact.masked_fill(padding, 0)
    whole = torch.linalg.vector_norm(exact, dim=(2, 3))
    if not bool((whole.isfinite() & (whole > 0)).all()):
        raise ValueError(
            "the exact output of every head must be finite and not zero, because errors are divided by it. Give other inputs"
        )
    return torch.linalg.vector_norm(gap, dim=(2, 3)) / whole


def _attend_one_by_one(mechanism: Attention, inputs: AttentionInputs) -> Tensor:
    """Compute the output one sequence at a time, to limit the memory of the scores."""
    return torch.cat([attend(mechanism, inputs.sequence(at)) for at in range(inputs.query.shape[0])])

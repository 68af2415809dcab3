"""Gated delta product: yₜ = Sᵀ qₜ / √d, after token t has updated the memory S. The token first multiplies S by its decay a. It
then applies r updates: S ← S + βⱼ kⱼ (vⱼ − Sᵀ kⱼ)ᵀ, for j = 1 … r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._chunked import CHUNK, ChunkedMemory, Updates, recurrence_flops
from attn_zoo.attention.linear._forget_gate import ForgetGate
from attn_zoo.attention.linear.delta_rule import unit_length
from attn_zoo.contract import FLOAT, Bound, Capabilities, Cost, Geometry, Stream, bounded
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of the gated delta product."""

    rules: int = bounded(2, Bound(lambda rules: 1 <= rules <= CHUNK, f"must be an integer from 1 to {CHUNK}"))
    """r, the number of updates (delta rules) per token. With r = 1 this is the gated delta rule."""
    negative_eigenvalues: bool = True
    """If true, β is between 0 and 2 instead of 0 and 1. One update can then reflect the memory, and several updates can
    rotate it.
    """
    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""


def streams(geometry: Geometry, options: Options) -> tuple[Stream, ...]:
    """Return the streams, which are further projections of the tokens: one for the decay, one for the strength β of each update,
    and the keys and values of each update after the first.
    """
    later = range(2, options.rules + 1)
    strengths = (f"strength_{rule}" for rule in range(1, options.rules + 1))
    return (
        Stream("decay", of="keys", starts_as="key", per_head=True),
        *(Stream(name, of="keys", starts_as="key", per_head=True) for name in strengths),
        *(Stream(f"key_{rule}", of="keys", starts_as="key") for rule in later),
        *(Stream(f"value_{rule}", of="keys", starts_as="value") for rule in later),
    )


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the recurrence, computed chunk by chunk. The parameters are A and b, two numbers per head, which set the
    decay. The state is the matrix S of each head.
    """
    forward, backward = recurrence_flops(geometry, delta=True, each=options.rules)
    state = FLOAT * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(forward, 2 * geometry.heads, backward_flops=backward, state_bytes=state)


@register_attention(
    "delta_product",
    title="Gated delta product (DeltaProduct)",
    paper="Siems et al. 2025, arXiv:2502.10297",
    equation="the product of generalised Householder matrices, with a decay per token",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    streams=streams,
    variants={"three": {"rules": 3, "negative_eigenvalues": False}, "raw": {"normalise": False}},
)
class DeltaProduct(ChunkedMemory[Options]):
    """Memory of fixed size that each token updates by several delta rules. The memory can therefore track states such as
    permutations.

    Paper: Siems et al. 2025 (DeltaProduct, its gated form). The decay is that of the gated delta rule.
    Symbols: n_h → rules; α → exp of the log decays from ForgetGate; β, k and v of rule j → computed from the streams
        ``strength_j``, ``key_j`` and ``value_j``, which are further projections of the tokens. The first rule uses the keys and
        values of the layer.
    Differs: all rules start with equal weights, because the weights of a stream start as a copy of those of keys or values. At the
        start, two rules of strength β therefore equal one rule of strength β (2 - β), which is at most 1. In the paper each
        rule starts with weights of its own. This class applies SiLU to queries and keys and scales them to unit norm. The
        authors' code also applies SiLU to values, which are twice as wide as keys there, and as wide as keys here. Short
        convolutions and the output gate belong to the layer, whose gate is a sigmoid (SiLU in the authors' code). The layer's
        weights of ``decay`` and ``strength_j`` have one column per channel and are summed over a head. A and b of the decay
        start as in ``gated_delta_rule``. A decay is at least 2e-9 per token. The RMSNorm of the outputs has no learned scale.
        The paper's form is causal; the bidirectional form adds the outputs of both reading directions. Padded tokens leave the
        memory unchanged.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.forget = ForgetGate(geometry.heads)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Queries:
        """Return the outputs: apply the updates of one token after another."""
        query, keys, values, betas = self._prepared(query, key, value, streams)
        alpha = self.forget(streams["decay"], key_valid).exp()

        def update(S: Tensor, q: Tensor, a: Tensor, *rules: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S
            for k, v, b in zip(rules[::3], rules[1::3], rules[2::3], strict=True):
                S = S + b * k @ (v - S.mT @ k).mT
            return S, S.mT @ q

        return self.scan(update, query, alpha, *(x for rule in zip(keys, values, betas, strict=True) for x in rule))

    def updates(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Updates:
        """Return the updates of the memory, r per token, where r is the option ``rules``. Only the first update of a token decays
        the memory.
        """
        query, *rules = self._prepared(query, key, value, streams)
        first = self.forget(streams["decay"], key_valid)
        keys, values, betas, decays = (
            torch.stack(parts, dim=3).flatten(2, 3)
            for parts in (*rules, [first] + [torch.zeros_like(first)] * (self.options.rules - 1))
        )
        return Updates(query, keys, values, decays, betas)

    def _prepared(self, query: Queries, key: Keys, value: Keys, streams: dict[str, Any]) -> tuple[Any, ...]:
        """Return the queries, and three lists with one tensor per rule: keys, values and strengths."""
        later, most = range(2, self.options.rules + 1), 2.0 if self.options.negative_eigenvalues else 1.0
        keys = [unit_length(F.silu(k)) for k in (key, *(streams[f"key_{rule}"] for rule in later))]
        betas = [most * streams[f"strength_{rule}"].sigmoid() for rule in range(1, self.options.rules + 1)]
        values = [value, *(streams[f"value_{rule}"] for rule in later)]
        return unit_length(F.silu(query), query.shape[-1] ** -0.5), keys, values, betas

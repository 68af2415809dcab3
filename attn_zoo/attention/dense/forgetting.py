"""Forgetting attention: Y = softmax(Q Kᵀ / √d + D) V with Dᵢⱼ = Σ log fₗ over l from j + 1 to i. The gate of token l is fₗ =
σ(w·xₗ + b), with one vector w and one number b per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import (
    FLOAT,
    Attention,
    Capabilities,
    Cost,
    DropoutOptions,
    Geometry,
    Stream,
    allowed_pairs,
    softmax_over_valid,
)
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, PerHead, Queries


@dataclass
class Options(DropoutOptions):
    """Options of forgetting attention."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores Q Kᵀ and of the weighted sums of values. The state holds keys, values, and one running sum of
    log gates per head and token.
    """
    n, inner, sums = geometry.keys, geometry.inner_dim, geometry.key_value_dim // geometry.head_dim
    flops = 4 * n * n * inner
    state = FLOAT * n * (geometry.cached_width() + sums) if geometry.causal else None
    return Cost(flops, 0, backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "forgetting",
    title="Forgetting attention (FoX)",
    paper="Lin et al. 2025, arXiv:2503.02130",
    equation="Section 3, softmax attention with a bias of summed log forget gates",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
    streams=lambda *_: (Stream("gate", of="keys", starts_as="key", per_head=True),),
)
class Forgetting(Attention[Options]):
    """Softmax attention with a forget gate per token. The weight of a key is reduced by the gates of all tokens after the key, up
    to the query.

    Paper: Lin et al. 2025, Section 3.
    Symbols: f → σ of the stream ``gate``, a further projection of the tokens; D → the sums of log gates.
    Differs: the layer's weights of ``gate`` have one column per channel and are summed over a head. They start as a copy of those
        of keys, and b starts at 0; a layer without biases has no b. The sums of log gates are added to the scores q·k / √d, and
        are not divided by √d. The gate at the key's own position is left out. The paper's form is causal. If attention is
        bidirectional, the weight of a key after the query is reduced by the gates from the query's position to the position
        before the key. The gate of a padded token is 1.
    """

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, gate: PerHead) -> Queries:
        """Return the outputs. For query i and key j, the log gates of j + 1 to i are added or, if j > i, those of i to j − 1."""
        logs = self._log_gates(gate, key_valid)
        t = torch.arange(query.shape[2], device=query.device)
        j = t[:, None]
        added = [torch.where(j < i, (j < t) & (t <= i), (i <= t) & (t < j)) for i in range(len(t))]  # for each i: (keys, tokens)
        bias = torch.stack([logs @ each.mT.to(logs.dtype) for each in added], dim=-2)
        scores = query @ key.mT / query.shape[-1] ** 0.5 + bias
        return softmax_over_valid(scores, allowed_pairs(query, key, key_valid, causal=self.geometry.causal)) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, gate: PerHead) -> Queries:
        """Return the outputs from the n × n weights. Each sum of log gates is the difference of two running sums."""
        scores = query @ (key * query.shape[-1] ** -0.5).mT + self._bias(gate, key_valid).to(query.dtype)
        weights = softmax_over_valid(scores, allowed_pairs(query, key, key_valid, causal=self.geometry.causal))
        return F.dropout(weights, self.options.dropout, self.training) @ value

    def _log_gates(self, gate: PerHead, key_valid: KeyValid) -> Float[Tensor, "batch heads keys"]:
        logs = F.logsigmoid(gate[..., 0])
        return logs if key_valid is None else logs.masked_fill(~key_valid[:, None], 0)

    def _bias(self, gate: PerHead, key_valid: KeyValid) -> Float[Tensor, "batch heads keys keys"]:
        """Return D, computed from running sums: from the key to the query or, for later keys, from the query to the key."""
        logs = self._log_gates(gate.to(torch.promote_types(gate.dtype, torch.float32)), key_valid)
        sums = logs.cumsum(dim=-1)
        past = sums[..., :, None] - sums[..., None, :]
        if self.geometry.causal:
            return past
        before = sums - logs
        future = before[..., None, :] - before[..., :, None]
        return torch.where(torch.ones_like(past, dtype=torch.bool).tril(), past, future)

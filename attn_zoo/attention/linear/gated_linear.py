"""Gated linear attention: Sₜ = diag(αₜ) Sₜ₋₁ + φ(kₜ) vₜᵀ and yₜ = Sₜᵀ φ(qₜ) / √d, with αₜ = sigmoid(gₜ)^(1/τ) for each feature,
from logits gₜ and a temperature τ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._recurrence import Answer, NormalisedMemory
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream, above_zero, bounded
from attn_zoo.kernels import fla
from attn_zoo.kernels.cpu._chunks import filled, into_chunks
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

CHUNK = 32
"""Number of positions in a chunk. Weights are computed within a chunk only, and earlier chunks are read from the memory S."""
LOWEST = -120 / CHUNK
"""Smallest logarithm of a gate. The product of the gates of half a chunk is then at least exp(-60), so float32 can hold this
product and its inverse.
"""


class FeatureMap(Enum):
    """Feature map φ, applied to each element of queries and keys."""

    silu = "silu"
    """silu(x), as in flash-linear-attention's layer with a short convolution. Features have a positive mean, so before training the
    outputs are averages of the values.
    """
    none = "none"
    """x unchanged, as in the paper."""

    def __call__(self, x: Keys) -> Keys:
        """Return φ(x)."""
        return F.silu(x) if self is FeatureMap.silu else x


@dataclass
class Options:
    """Options of gated linear attention."""

    feature_map: FeatureMap = FeatureMap.silu
    temperature: float = bounded(16.0, above_zero("divides the logarithm of each gate"))
    """τ: the larger it is, the more slowly the memory decays."""
    normalise: bool = True
    """If true, each head's output is divided by its root mean square."""

    def __post_init__(self) -> None:
        self.feature_map = FeatureMap(self.feature_map)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the weights within chunks, and of updating and reading the memory S. If bidirectional, both directions are
    counted. The backward pass computes the forward pass again. The state is the matrix S of each head.
    """
    d = geometry.head_dim
    chunk, n = filled(geometry.keys, CHUNK)
    flops = geometry.inner_dim * 4 * n * (chunk + d) * (1 if geometry.causal else 2)
    state = FLOAT * geometry.inner_dim * d if geometry.causal else None
    return Cost(flops, 0, backward_flops=3 * flops, state_bytes=state)


@register_attention(
    "gated_linear",
    title="Gated linear attention (GLA)",
    paper="Yang et al. 2024, arXiv:2312.06635",
    equation="Section 4, the gated recurrence by chunks",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled", "fla"),
    streams=lambda *_: (Stream("gate", of="keys", starts_as="key"),),  # logits g, one for each feature
    variants={"sharp": {"temperature": 1.0}, "raw": {"normalise": False}, "without_a_map": {"feature_map": "none"}},
    version=2,  # 1 had no feature map
)
class GatedLinear(NormalisedMemory[Options]):
    """Memory of fixed size, in which each feature decays at a rate computed from the token.

    Paper: Yang et al. 2024, Section 4: the recurrence, its chunks, gates with a temperature, and the norm of the outputs.
    Symbols: α → gates; τ → temperature; W_α x → the stream ``gate``, a further projection of the tokens; φ → feature_map.
    Differs: by default, this class applies silu to queries and keys. The paper has no feature map; flash-linear-attention's layer
        applies silu after its short convolutions. The projection of the gate has full rank (rank 16 in the paper), and starts as a
        copy of that of keys. Keys are as wide as values (half as wide in the paper). The RMSNorm of the outputs has no learned
        scale. The paper's output gate belongs to the layer, where it is a sigmoid (swish in the paper). Gates are at least
        exp(-3.75), so all logits below about -3.75 τ give this gate. The paper's form is causal; the bidirectional form adds the
        outputs of both reading directions. Padded tokens leave the memory unchanged.
    """

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, gate: Keys) -> Queries:
        """Return the outputs: each token updates the memory S, and then the token's query reads S."""
        phi = self.options.feature_map
        alpha = self._log_gates(*self.rows(query, key, value, key_valid, gate=gate)[3:]).exp()

        def update(S: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
            S = a * S + phi(k) @ v.mT
            return S, S.mT @ phi(q) * query.shape[-1] ** -0.5

        return self.scan(update, query, key, value, alpha)

    def rows(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> list[Tensor]:
        """Return queries, keys, values, the logits of the gates and, if there is padding, the mask of valid keys."""
        return [query, key, value, streams["gate"], *(() if key_valid is None else (key_valid[:, None, :, None],))]

    def read_fla(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of flash-linear-attention's kernel, which starts from a memory of zeros and gets log gates in float32.
        ``state`` is ignored and returned unchanged.
        """
        query, key, value, *gate = self.rows(*inputs, **streams)
        query, key = map(self.options.feature_map, (query, key))
        return fla.answers("gla", query, key, value, self._log_gates(*gate), scale=query.shape[-1] ** -0.5), state

    def _log_gates(self, gate: Keys, valid: Tensor | None = None) -> Keys:
        """Return log α. At padded tokens it is 0, so the memory does not decay."""
        logs = (F.logsigmoid(gate) / self.options.temperature).clamp(min=LOWEST)
        return logs if valid is None else logs.masked_fill(~valid, 0)

    def by_chunks(self, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of consecutive positions, and the memory S after them. ``state`` is S before them.

        Let bᵢ be the sum of the log gates (log α) up to position i of a chunk. Query i gives key j the weight (φ(qᵢ) exp bᵢ)·(φ(kⱼ)
        exp -bⱼ) / √d. To avoid overflow, half of the chunk's last b is subtracted from each b.
        """
        query, key, value, gate, *valid = rows
        n, phi = query.shape[2], self.options.feature_map
        inputs = phi(query) * query.shape[-1] ** -0.5, phi(key), value, self._log_gates(gate, *valid)
        query, key, value, log_gates = (into_chunks(x, min(CHUNK, n)) for x in inputs)
        sums = log_gates.cumsum(dim=-2)
        middle = sums[..., -1:, :] / 2
        query, key = query * (sums - middle).exp(), key * (middle - sums).exp()
        before = []
        for keep, summed in zip(middle.exp().mT.unbind(2), (key.mT @ value).unbind(2), strict=True):
            before.append(state * keep)
            state = (before[-1] + summed) * keep
        out = (query @ key.mT).tril() @ value + query @ torch.stack(before, dim=2)
        return out.flatten(2, 3)[:, :, :n], state

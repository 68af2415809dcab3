"""MEGA: Y = softmax(Q Kᵀ / √d) V + Z with softmax within chunks, Q = κ_q ∘ Z + μ_q, K = κ_k ∘ Z and Z = silu(EMA(X) + ω ∘ X).

EMA computes h damped moving averages of each channel, sₜ = α ∘ β xₜ + (1 - α ∘ δ) ∘ sₜ₋₁, and returns their weighted sum η·sₜ. All
Greek letters are learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.recurrent._moving_average import moving_average, moving_average_flops
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid
from attn_zoo.contract.options import bounded, share_of_length
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options(DropoutOptions):
    """Options of MEGA."""

    chunk: int = share_of_length(4, most=128)
    """c, the number of positions in a chunk; 128 on most tasks of the paper. A single chunk gives full attention."""
    expansion: int = bounded(16)
    """h, the number of moving averages per channel."""


def directions(geometry: Geometry) -> int:
    """Return the number of directions of the moving averages: one if causal, else two."""
    return 1 if geometry.causal else 2


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the moving averages, and of attention within each chunk. The state holds ``expansion`` averages per
    channel, and the keys and values of one chunk.
    """
    inner, ways, chunk = geometry.inner_dim, directions(geometry), min(options.chunk, geometry.keys)
    slots = math.ceil(geometry.keys / chunk) * chunk
    flops = moving_average_flops(geometry, ways, options.expansion) + 4 * inner * slots * chunk
    held = options.expansion + 2 * chunk
    state = FLOAT * inner * held if geometry.causal else None
    return Cost(flops, inner * (4 * ways * options.expansion + 4), backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "mega",
    title="MEGA's attention (chunks, no gates)",
    paper="Ma et al. 2022, arXiv:2209.10655",
    equation="Multi-dimensional damped EMA; queries and keys of it; MEGA-chunk",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, shares_query_key=True),
    time="n c d + n h d",
    memory="n c + n h d",
    cost=cost,
    reads=("query", "value"),
    variants={"small": {"chunk": 6, "expansion": 2}},
    version=2,  # 1 had neither ω ∘ X nor Z in the output
)
class Mega(Attention[Options]):
    """Softmax attention within chunks, plus moving averages that reach across chunks. Queries and keys are computed from the
    averages.

    Paper: Ma et al. 2022: multi-dimensional damped EMA, queries and keys from one shared representation Z, MEGA-chunk, candidate
        output.
    Symbols: α, δ → sigmoid of decay_in and decay_out; β → spread; η → gather; κ and μ → gain and offset; X → the layer's query
        projection; ω → residual, as in the published code; h → expansion; c → chunk.
    Differs: Z is silu(EMA(X) + ω ∘ X); the paper projects EMA(X) before silu. Attention has several heads, and values are projected
        without silu. Z is added to the outputs before the layer's output projection; the paper projects Z and the outputs
        separately. These parts are left out: the reset gate, the update gate between the candidate output and X, the bias of
        relative positions and the laplace function. Keys have no offset, because softmax would cancel it. Queries and keys start
        equal to Z, with κ = 1 and μ = 0. η starts from N(0, 1/h), and ω from N(0, 1). If bidirectional, a second average runs
        backwards, and is added to the first. Padded tokens keep their positions and enter as zeros: the average decays over them as
        over real tokens.
    Nature: A value is seen within its chunk only. Other chunks see only averages, which fade with the distance. In training on
        recall, the loss does not fall below that of the control ``uniform``: the network guesses among the values (accuracy of 12 %
        with 8 key-value pairs after 1,200 steps).
    """

    saturates = (("chunk", "is at least the number of tokens ({n}), so every token sees all tokens"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        heads, d, h = geometry.heads, geometry.head_dim, options.expansion
        shape = (directions(geometry), heads, d, h)
        self.decay_in = nn.Parameter(0.2 * torch.randn(shape))
        self.decay_out = nn.Parameter(0.2 * torch.randn(shape))
        signs = 1.0 - 2 * (torch.arange(h) % 2)  # initial signs of the published code, for stability
        self.spread = nn.Parameter(0.02 * torch.randn(shape) + signs)
        self.gather = nn.Parameter(torch.randn(shape) * h**-0.5)
        self.residual = nn.Parameter(torch.randn(heads, 1, d))
        self.gain = nn.Parameter(torch.ones(2, heads, 1, d))
        self.offset = nn.Parameter(torch.zeros(heads, 1, d))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: compute the moving averages token by token, then attend with n × n weights, masked to the chunk of
        the query.
        """
        enter, leave = self.decay_in.sigmoid(), self.decay_out.sigmoid()
        n, averages = query.shape[2], []
        for way, order in enumerate([range(n), range(n - 1, -1, -1)][: directions(self.geometry)]):
            state, found = torch.zeros_like(enter[way]), {}
            for t in order:
                state = enter[way] * self.spread[way] * query[:, :, t, :, None] + (1 - enter[way] * leave[way]) * state
                found[t] = (self.gather[way] * state).sum(dim=-1)
            averages.append(torch.stack([found[t] for t in range(n)], dim=2))
        shared = F.silu(torch.stack(averages).sum(dim=0) + self.residual * query)
        chunk = torch.arange(n, device=query.device) // self.options.chunk
        allowed, same = allowed_pairs(query, value, key_valid, causal=self.geometry.causal), chunk[:, None] == chunk
        scores = (self.gain[0] * shared + self.offset) @ (self.gain[1] * shared).mT * query.shape[-1] ** -0.5
        return softmax_over_valid(scores, same if allowed is None else same & allowed) @ value + shared

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: compute queries and keys from the moving averages, then attend in all chunks at once. Scores have
        shape (batch, heads, number of chunks, chunk length, chunk length).
        """
        n, chunk = query.shape[2], min(self.options.chunk, query.shape[2])
        shared = self._averages(query)
        inputs = shared * self.gain[0] + self.offset, shared * self.gain[1], value
        queries, keys, values = (into_chunks(x.to(value.dtype), chunk) for x in inputs)
        valid = torch.ones(1, n, dtype=torch.bool, device=query.device) if key_valid is None else key_valid
        allowed = F.pad(valid, (0, -n % chunk)).unflatten(1, (-1, chunk))[:, None, :, None]
        if self.geometry.causal:
            allowed = allowed & torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).tril()
        weights = softmax_over_valid(queries * query.shape[-1] ** -0.5 @ keys.mT, allowed)
        out = F.dropout(weights, self.options.dropout, self.training) @ values
        return (out.flatten(2, 3)[:, :, :n] + shared).to(value.dtype)

    def _averages(self, x: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """Return Z, computed in float32 or more, also under autocast, because long sums need this precision."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x.device):
            enter, leave = self.decay_in.to(dtype).sigmoid(), self.decay_out.to(dtype).sigmoid()
            averages = moving_average(x.to(dtype), 1 - enter * leave, enter * self.spread, self.gather.to(dtype))
            return F.silu(averages + self.residual * x).contiguous()

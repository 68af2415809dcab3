"""Sinkhorn attention: Y_b = softmax(Q_b [K_b ; (R K)_b]ᵀ / √d) [V_b ; (R V)_b] for each block b.

R is a soft permutation of the blocks: exponentials of scores between blocks, with columns and rows normalised in turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import Attention, Capabilities, Cost, DropoutOptions, Geometry, softmax_over_valid
from attn_zoo.contract.options import above_zero, at_least, bounded
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions

LEAST = 1e-6
"""Smallest divisor of a sorted key or value, which is a weighted sum of valid tokens divided by the sum of their weights. If that
sum is smaller, attention gives the sorted key hardly any weight.
"""


@dataclass
class Options(DropoutOptions):
    """Options of Sinkhorn attention."""

    block_scale: float = bounded(1.0, above_zero("multiplies √n"))
    """b / √n, where b is the size of a block, and n the length for which the mechanism is built. At 1, sorting and attention each
    cost about n^1.5.
    """
    balancing: int = bounded(8, at_least(1, "normalisations"))
    """Number of times that the columns and then the rows of R are normalised."""
    temperature: float = bounded(0.75, above_zero("divides scores"))
    """τ, the divisor of the scores between blocks. The lower it is, the nearer R is to a permutation."""


def block_size(keys: int, options: Options) -> int:
    """Return the size b of a block, in positions. It is at most the length of the sequence."""
    return max(1, round(min(options.block_scale * math.sqrt(keys), keys)))


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of the scores between blocks, the sorted keys R K and values R V (R is the soft permutation
    of the blocks), and attention from each block to its own keys and its sorted keys.
    """
    b, h, d = block_size(geometry.keys, options), geometry.heads, geometry.head_dim
    blocks = math.ceil(geometry.keys / b)
    count = 2 * blocks * blocks * b  # shares of valid tokens in the sorted places: R has a gradient, the mask has none
    rest = 2 * blocks * blocks * (1 + 2 * b) * d + 8 * blocks * b * b * d
    return Cost(flops=h * (rest + count), parameters=0, backward_flops=h * (2 * rest + count))


@register_attention(
    "sinkhorn",
    title="Sinkhorn (sorted blocks)",
    paper="Tay et al. 2020, arXiv:2002.11296",
    equation="Section 3.1 to 3.3",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n^1.5 d",
    memory="n^1.5",
    cost=cost,
    softmax_limit=lambda geometry: Sinkhorn(geometry, Options(block_scale=geometry.keys)),
    variants={"sharp": {"temperature": 0.2, "balancing": 20}, "short": {"balancing": 3, "block_scale": 0.7}},
)
class Sinkhorn(Attention[Options]):
    """Softmax attention from each block to its own keys and to the keys of a second block, which is a weighted mean of blocks. A
    soft permutation of the blocks (soft sorting) gives the weights.

    Paper: Tay et al. 2020: Section 3.1 (sorting network), Section 3.2 (Sinkhorn balancing), Section 3.3 (attention to the query's
        own block and the second block, which the paper calls sorted).
    Symbols: B → block, N_B → blocks, R → permutation, τ → temperature.
    Differs: the score of two blocks is the product of the mean query of one and the mean key of the other. The paper's network
        computes N_B scores from the sum of a block, so the network fits a single length. No Gumbel noise is added. Each place in
        the second block holds a mean of valid tokens, weighted by R. Padded tokens are left out, so the sum of the weights of a
        place can be below one. The logarithm of this sum is added to the score of the place. Blocks of padding alone are left out,
        and the outputs at their queries have no meaning. A single softmax runs over the keys of both blocks. There is only the
        bidirectional form. The paper's SortCut is left out. R is computed in float32 or more.
    Nature: All queries of a block see the same second block. If adjacent queries need tokens of different blocks, most of these
        tokens are not found (task ``needles``: accuracy of 12 % after 690 steps, as for a guess among 8 values).
    """

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if there is a single block."""
        b, n = block_size(geometry.keys, options), geometry.keys
        return (f"a block of {b} positions holds all {n} tokens: every token sees all, and nothing is sorted",) if b >= n else ()

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Sections 3.1 to 3.3, computed block by block with plain exponentials. Each place in the second
        (sorted) block averages valid tokens with weights from the soft permutation R. The attention weight of the place is
        multiplied by the sum of these weights.
        """
        n, d, b = query.shape[2], query.shape[3], block_size(self.geometry.keys, self.options)
        valid = query.new_ones(query.shape[0], n) if key_valid is None else key_valid.to(query.dtype)
        starts, valid = range(0, n, b), F.pad(valid, (0, -n % b))[:, None]
        query, key, value = (F.pad(t, (0, 0, 0, -n % b)) for t in (query, key, value))
        real = valid.unflatten(2, (-1, b))  # (batch, 1, blocks, b)
        full, count = real.amax(dim=-1), real.sum(dim=-1).clamp(min=1)[..., None]
        mean_query, mean_key = ((t.unflatten(2, (-1, b)) * real[..., None]).sum(dim=3) / count for t in (query, key))
        r = (mean_query @ mean_key.mT / d**0.5 / self.options.temperature).exp() * full[..., None, :]
        for _ in range(self.options.balancing):
            r = _normalise(r, (r * full[..., None]).sum(dim=-2, keepdim=True))
            r = _normalise(r, r.sum(dim=-1, keepdim=True))
        outputs = []
        for block, start in enumerate(starts):
            own, row = slice(start, start + b), r[:, :, block, :, None]  # (batch, heads, blocks, 1)
            share = (row * real).sum(dim=2)
            both = []
            for tokens in (key, value):
                sorted_tokens = (row[..., None] * tokens.unflatten(2, (-1, b))).sum(dim=2) / share.clamp(min=LEAST)[..., None]
                both.append(torch.cat([tokens[:, :, own], sorted_tokens], dim=2))
            count = torch.cat([valid[:, :, own].expand_as(share), share], dim=2)[:, :, None]
            weights = (query[:, :, own] @ both[0].mT / d**0.5).exp() * count
            outputs.append(_normalise(weights, weights.sum(dim=-1, keepdim=True)) @ both[1])
        return torch.cat(outputs, dim=2)[:, :, :n]

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs. The blocks of keys are sorted softly. Each block attends to its own keys and its sorted keys in one
        softmax.
        """
        n, d = query.shape[2:]
        b = block_size(self.geometry.keys, self.options)
        fill = -n % b
        valid = real_positions(query, key_valid)
        inside = F.pad(valid, (0, fill)).unflatten(1, (-1, b))
        own_query, own_key, own_value = (F.pad(t, (0, 0, 0, fill)).unflatten(2, (-1, b)) for t in (query, key, value))
        permutation = self._permutation(own_query, own_key, inside)
        with without_autocast(query.device):  # the reciprocal of a small share leaves the range of float16
            wide = permutation.dtype
            share = permutation @ inside[:, None].to(wide)
            scale = share.clamp(min=LEAST).reciprocal()[..., None]
            sorted_key, sorted_value = (
                ((permutation @ t.to(wide).flatten(3)).unflatten(3, (b, d)) * scale).to(query.dtype) for t in (own_key, own_value)
            )
        scaled = own_query * d**-0.5
        prior = share.clamp(min=torch.finfo(share.dtype).tiny).log()[..., None, :]
        scores = torch.cat([scaled @ own_key.mT, scaled @ sorted_key.mT + prior], dim=-1)
        shape = (*scores.shape[:-2], 1, b)
        allowed = torch.cat([inside[:, None, :, None].expand(shape), (share > 0)[..., None, :]], dim=-1)
        weights = F.dropout(softmax_over_valid(scores, allowed), self.options.dropout, self.training).to(value.dtype)
        out = weights[..., :b] @ own_value + weights[..., b:] @ sorted_value
        return out.flatten(2, 3)[:, :, :n]

    def _permutation(
        self,
        query: Float[Tensor, "batch heads blocks b head_dim"],
        key: Float[Tensor, "batch heads blocks b head_dim"],
        inside: Bool[Tensor, "batch blocks b"],
    ) -> Float[Tensor, "batch heads blocks blocks"]:
        """Return the soft permutation R: exp(scores), with columns and rows normalised in turn. A block of padding has a column of
        zeros.
        """
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            real, count = inside[:, None, :, :, None], inside.sum(dim=-1).clamp(min=1)[:, None, :, None]
            few_queries, few_keys = (t.to(dtype).masked_fill(~real, 0).sum(dim=3) / count for t in (query, key))
            logs = few_queries @ few_keys.mT * (query.shape[-1] ** -0.5 / self.options.temperature)
            empty, lowest = ~inside.any(dim=-1)[:, None], torch.finfo(dtype).min
            logs = logs.masked_fill(empty[..., None, :], lowest)
            for _ in range(self.options.balancing):
                column = logs.masked_fill(empty[..., :, None], lowest).logsumexp(dim=-2, keepdim=True)
                logs = (logs - column).masked_fill(empty[..., None, :], lowest)
                logs = (logs - logs.logsumexp(dim=-1, keepdim=True)).masked_fill(empty[..., None, :], lowest)
            return logs.exp().masked_fill(empty[..., None, :], 0)


def _normalise(parts: Tensor, total: Tensor) -> Tensor:
    """Divide parts by their total. If the total is zero, they stay zero."""
    return parts / total.masked_fill(total == 0, 1)

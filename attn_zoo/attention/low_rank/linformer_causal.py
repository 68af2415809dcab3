"""Block-causal Linformer: Y_b = softmax(Q_b [E K_1 ; … ; E K_{b-1} ; K_b]ᵀ / √d) [F V_1 ; … ; F V_{b-1} ; V_b] for each block b.

This is the causal form: a query sees its own block up to itself, and the projected keys E K and values F V of every earlier block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor, nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, resample, softmax_over_valid
from attn_zoo.contract.options import above_zero, at_least, bounded
from attn_zoo.kernels.cpu.linformer_causal import attend_blocks, spans
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(DropoutOptions):
    """Options of the block-causal Linformer."""

    projected_length: int = bounded(4, at_least(1, "projected keys"))
    """k, the number of projected keys per block."""
    block_scale: float = bounded(1.0, above_zero("multiplies √(n k)"))
    """c / √(n k), where c is the size of a block, n the length for which the mechanism is built, and k ``projected_length``. At 1,
    attention within blocks and attention between blocks take about the same FLOPs.
    """


def block_size(keys: int, options: Options) -> int:
    """Return the number of tokens in a block: at most ``keys``, but always at least ``projected_length`` + 1, so that blocks are
    compressed.
    """
    wished = min(options.block_scale * math.sqrt(keys * options.projected_length), keys)
    return max(options.projected_length + 1, round(wished))


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of three steps: projecting each block that another block sees, attention within blocks, and
    attention to the projected keys.

    The state holds keys and values of the present block, and projected keys and values of the blocks before it.
    """
    n, k, c = geometry.keys, options.projected_length, block_size(geometry.keys, options)
    blocks = list(spans(n, c))
    projected = len(blocks) - 1 if geometry.causal else len(blocks)
    projected = projected if len(blocks) > 1 else 0
    products = 2 * projected * k * c
    for at, (start, end) in enumerate(blocks):
        rows, seen = end - start, at if geometry.causal else projected
        products += 2 * rows * (rows + seen * k)
    own, short = geometry.cached_width(), 2 * geometry.key_value_dim
    held = max(at * k * short + (end - start) * own for at, (start, end) in enumerate(blocks))
    flops = 2 * products * geometry.inner_dim
    state = FLOAT * held if geometry.causal else None
    return Cost(flops, 2 * k * c, backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "linformer_causal",
    title="Linformer, block-causal",
    paper="after Wang et al. 2020, arXiv:2006.04768",
    equation="Eq. 7 for each earlier block",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^1.5 d",
    memory="n^1.5",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: LinformerCausal(geometry, Options(block_scale=geometry.keys)),
    variants={"short_blocks": {"block_scale": 0.7, "projected_length": 3}},
)
class LinformerCausal(Attention[Options]):
    """Softmax attention to the tokens of a query's own block, and to the projected keys of other blocks or, if causal, of earlier
    blocks.

    Paper: Wang et al. 2020, Eq. 7. The paper's E mixes all positions, so it has no causal form. Here E maps one block of c tokens
        to k projected keys. If causal, only later blocks see them. With c = √(n k), a query is compared with at most about 2 √(n k)
        keys.
    Symbols: E → key_projection, F → value_projection, k → projected_length, c → block.
    Differs: the paper has no blocks. One E and one F serve all blocks and heads, and start from N(0, 1/c). A block of padding alone
        is left out. Other padded tokens are set to zero before they are projected. For inputs of other lengths, c and the
        parameters stay the same, so FLOPs of long inputs grow with the square of the length.
    """

    key_projection: nn.Parameter
    value_projection: nn.Parameter

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.block = block_size(geometry.keys, options)
        for name in ("key_projection", "value_projection"):
            setattr(self, name, nn.Parameter(torch.randn(options.projected_length, self.block) * self.block**-0.5))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if a block is as long as the input."""
        c, n = block_size(geometry.keys, options), geometry.keys
        return (f"a block has {c} tokens, at least as many as the input ({n}), so nothing is compressed",) if c >= n else ()

    @torch.no_grad()
    def resize_length(self, length: int) -> None:
        """Change the number of keys and the size of blocks in place, and interpolate the projections."""
        resized = self.geometry_at(length)
        self.block = block_size(length, self.options)
        for name in ("key_projection", "value_projection"):
            before: nn.Parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(resample(before, self.block), requires_grad=before.requires_grad))
        self.geometry = resized

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the projected keys of all blocks and over all n keys. Keys that a query does not
        see are masked.
        """
        n, k, c = key.shape[2], self.options.projected_length, self.block
        at, blocks = torch.arange(n, device=key.device), math.ceil(n / c)
        e, f = (torch.block_diag(*[weight] * blocks)[:, :n] for weight in (self.key_projection, self.value_projection))
        keys, values = torch.cat([e @ key, key], dim=2), torch.cat([f @ value, value], dim=2)
        block = torch.cat([torch.arange(blocks, device=key.device).repeat_interleave(k), at // c])
        own, projected = at[:, None] // c == block, torch.arange(len(block), device=key.device) < blocks * k
        if self.geometry.causal:
            allowed = torch.where(projected, block < at[:, None] // c, own & (F.pad(at, (blocks * k, 0)) <= at[:, None]))
        else:
            allowed = own != projected
        if key_valid is not None:
            holds = torch.stack([rows.any(dim=1) for rows in key_valid.split(c, dim=1)], dim=1).repeat_interleave(k, dim=1)
            allowed = allowed & torch.cat([holds, key_valid], dim=1)[:, None, None]
        return softmax_over_valid(query @ keys.mT / query.shape[-1] ** 0.5, allowed) @ values

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed for all blocks at once."""
        n, c = key.shape[2], self.block
        key = key * key.shape[-1] ** -0.5
        valid = real_positions(query, key_valid)
        query, key, value = (F.pad(x, (0, 0, 0, -n % c)).unflatten(2, (-1, c)) for x in (query, key, value))
        valid = F.pad(valid, (0, -n % c)).unflatten(1, (-1, c))
        short_key = torch.einsum("kc,bhzcd->bhzkd", self.key_projection, key).flatten(2, 3)
        short_value = torch.einsum("kc,bhzcd->bhzkd", self.value_projection, value).flatten(2, 3)
        far, near = (query.flatten(2, 3) @ short_key.mT).unflatten(2, (-1, c)), query @ key.mT
        allowed = self._allowed(valid).expand(*near.shape[:1], -1, -1, -1)[:, None]
        weights = F.dropout(softmax_over_valid(torch.cat([far, near], dim=-1), allowed), self.options.dropout, self.training)
        far, near = weights.split([far.shape[-1], c], dim=-1)
        return ((far.flatten(2, 3) @ short_value).unflatten(2, (-1, c)) + near @ value).flatten(2, 3)[:, :, :n]

    def _allowed(self, valid: Bool[Tensor, "batch blocks c"]) -> Bool[Tensor, "batch blocks c columns"]:
        """Return the mask over the projected keys of all blocks and the keys of the query's own block. Other (causal: earlier)
        blocks are seen if they hold a token.
        """
        (_, blocks, c), one = valid.shape, valid.new_ones(())
        others, own = one.expand(blocks, blocks), one.expand(c, c)
        if self.geometry.causal:
            others, own = others.tril(-1), own.tril()
        else:
            others = ~torch.eye(blocks, dtype=torch.bool, device=valid.device)
        far = (others & valid.any(dim=-1)[:, None]).repeat_interleave(self.options.projected_length, dim=-1)
        return torch.cat([far[:, :, None].expand(-1, -1, c, -1), own & valid[:, :, None]], dim=-1)

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed block by block to save memory."""
        projections = self.key_projection, self.value_projection
        return attend_blocks(query, key, value, key_valid, *projections, causal=self.geometry.causal, dropout=self.dropout_rate)

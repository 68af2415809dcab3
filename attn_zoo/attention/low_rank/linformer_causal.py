"""Block-causal Linformer: a query sees its own block token by token and every earlier block through E K and F V of that block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT, softmax_bytes
from attn_zoo.attention._masks import check_dropout, softmax_over_valid
from attn_zoo.attention.low_rank._projections import resample
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of the block-causal Linformer."""

    projected_length: int = 4
    """k, the number of projected keys of a block."""
    block_scale: float = 1.0
    """A block holds c = block_scale · √(n k) tokens; at 1 both parts of the work are about equal."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        if self.projected_length < 1:
            raise ValueError(f"projected_length counts projected keys, so it is at least 1; got {self.projected_length}")
        if not 0 < self.block_scale < math.inf:
            raise ValueError(f"linformer_causal.block_scale multiplies √(n k), so it is above 0; got {self.block_scale}")
        check_dropout("linformer_causal", self.dropout)


def block_size(keys: int, options: Options) -> int:
    """c, no more than the sequence and above k, so that projecting shortens."""
    wished = min(options.block_scale * math.sqrt(keys * options.projected_length), keys)
    return max(options.projected_length + 1, round(wished))


def spans(length: int, block: int) -> Iterator[tuple[int, int]]:
    """First position of each block, and the one after its last."""
    return ((start, min(start + block, length)) for start in range(0, length, block))


def cost(geometry: Geometry, options: Options) -> Cost:
    """E K and F V of every block that another may see, Q Kᵀ and P V within blocks, Q K'ᵀ and P V' with the projected keys.

    Kept: the scaled keys, the blocks that are projected and what comes of them, the weights. State: keys and values of the
    block being read, and projected ones of those before.
    """
    n, k, c = geometry.keys, options.projected_length, block_size(geometry.keys, options)
    blocks = list(spans(n, c))
    projected = len(blocks) - 1 if geometry.causal else len(blocks)
    projected = projected if len(blocks) > 1 else 0
    products = 2 * projected * k * c
    kept = FLOAT * geometry.inner_dim * (n + 2 * projected * (c + k))
    for at, (start, end) in enumerate(blocks):
        rows, seen = end - start, at if geometry.causal else projected
        products += 2 * rows * (rows + seen * k)
        kept += softmax_bytes(geometry.heads * rows, rows + seen * k, masks=rows * (rows + seen * k))
    held = max(at * k + end - start for at, (start, end) in enumerate(blocks))
    flops = 2 * products * geometry.inner_dim
    return Cost(
        flops=flops,
        parameters=2 * k * c,
        backward_flops=2 * flops,
        activation_bytes={"eager": kept},
        state_bytes=2 * FLOAT * geometry.inner_dim * held if geometry.causal else None,
    )


def one_block(geometry: Geometry) -> Attention:
    """A block as long as the sequence leaves nothing to project: softmax attention."""
    return LinformerCausal(geometry, Options(block_scale=geometry.keys))


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
    softmax_limit=one_block,
    variants={"short_blocks": {"block_scale": 0.7, "projected_length": 3}},
)
class LinformerCausal(Attention):
    """Softmax over the tokens of a query's own block and the projected keys of the other blocks it may see.

    Paper: Wang et al. 2020, Eq. 7, whose E mixes all positions and so has no causal form. Here E maps one block
        of c tokens to k, and a block is seen through it only by later blocks. With c = √(n k) a query
        has at most about 2 √(n k) keys.
    Symbols: E → key_projection, F → value_projection, k → projected_length, c → block.
    Differs: everything above; the paper has no such form. Without causality a query sees all other
        blocks projected. One E and one F serve all blocks and heads and start from N(0, 1/c). A
        block of padding alone is left out, other padded tokens are zero before they are projected.
        At lengths other than the one built for c stays, and with it the parameters; far beyond it the
        work grows with the square of the length.
    """

    options: Options
    key_projection: nn.Parameter
    value_projection: nn.Parameter

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.block = block_size(geometry.keys, options)
        for name in ("key_projection", "value_projection"):
            setattr(self, name, nn.Parameter(torch.randn(options.projected_length, self.block) * self.block**-0.5))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A block as long as the input."""
        c, n = block_size(geometry.keys, options), geometry.keys
        return (f"a block of {c} tokens is no shorter than the {n} there are: nothing is compressed",) if c >= n else ()

    @torch.no_grad()
    def resize_length(self, length: int) -> None:
        """Go over to the blocks of another length, E and F interpolated."""
        resized = self.geometry_at(length)
        self.block = block_size(length, self.options)
        for name in ("key_projection", "value_projection"):
            before: nn.Parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(resample(before, self.block), requires_grad=before.requires_grad))
        self.geometry = resized

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Block by block, so that no temporary is longer than the keys that a block sees."""
        n, k = key.shape[2], self.options.projected_length
        key = key * key.shape[-1] ** -0.5
        blocks = list(spans(n, self.block))
        short_key, short_value, short_valid = self._project(key, value, key_valid)
        out = []
        for at, (start, end) in enumerate(blocks):
            seen = slice(0, at * k) if self.geometry.causal else slice(0, short_key.shape[2])
            rows, own = query[:, :, start:end], slice(start, end)
            scores = torch.cat([rows @ short_key[:, :, seen].mT, rows @ key[:, :, own].mT], dim=-1)
            allowed = self._allowed(at, seen, own, None if key_valid is None else (short_valid, key_valid), query.device)
            weights = F.dropout(softmax_over_valid(scores, allowed), self.options.dropout, self.training)
            far, near = weights.split([scores.shape[-1] - (end - start), end - start], dim=-1)
            out.append(far @ short_value[:, :, seen] + near @ value[:, :, own])
        return torch.cat(out, dim=2)

    def _project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Projected keys and values of the blocks that another one may see, k after k, and which hold a real token."""
        batch, heads, n, d = key.shape
        k, blocks = self.options.projected_length, -(-n // self.block)
        count = (blocks - 1 if self.geometry.causal else blocks) if blocks > 1 else 0
        missing = max(0, count * self.block - n)  # the last block may be short

        def project(weight: Tensor, tokens: Tensor) -> Tensor:
            filled = F.pad(tokens[:, :, : count * self.block], (0, 0, 0, missing)).unflatten(2, (count, self.block))
            return (weight @ filled).reshape(batch, heads, count * k, d)

        valid = None
        if key_valid is not None:
            valid = F.pad(key_valid[:, : count * self.block], (0, missing)).unflatten(1, (count, self.block)).any(dim=-1)
            valid = valid.repeat_interleave(k, dim=1)
        return project(self.key_projection, key), project(self.value_projection, value), valid

    def _allowed(
        self, at: int, seen: slice, own: slice, valid: tuple[Tensor | None, Tensor] | None, device: torch.device
    ) -> Bool[Tensor, "#batch 1 rows columns"] | None:
        """Which of the projected keys ``seen`` and the keys ``own`` each query of block ``at`` may see; None means all."""
        rows, k, far = own.stop - own.start, self.options.projected_length, seen.stop
        allowed = torch.ones(1, 1, rows, far + rows, dtype=torch.bool, device=device)
        if self.geometry.causal:
            allowed[..., far:] = allowed[0, 0, :, far:].tril()
        else:
            allowed[..., at * k : min(far, (at + 1) * k)] = False  # its own block it sees directly
        if valid is None:
            return allowed
        grad_far, grad_own = valid
        assert grad_far is not None
        return allowed & torch.cat([grad_far[:, seen], grad_own[:, own]], dim=-1)[:, None, None]

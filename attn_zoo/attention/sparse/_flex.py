"""PyTorch's FlexAttention over the pairs that a pattern lets see each other, for the ``flex`` implementations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import INDEX
from attn_zoo.contract import Attention, Geometry
from attn_zoo.kernels.cpu._tiling import rows_of_block

MaskMod = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Whether in a head a query sees a key, by the numbers of all three, which broadcast."""

BLOCK = 128
"""Pairs of so many queries and keys are computed or left out together."""


class FlexAttends(Attention):
    """A mechanism whose pairs are fixed before its inputs are known, so that FlexAttention can serve it."""

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """FlexAttention drops no weights."""
        if implementation == "flex" and options.dropout > 0:
            return f"{cls.card.name}.dropout needs implementation=eager: flex has no dropout of weights"
        return None


def flex_attention_over(
    sees: MaskMod,
    query: Float[Tensor, "batch heads n head_dim"],
    key: Float[Tensor, "batch heads n head_dim"],
    value: Float[Tensor, "batch heads n head_dim"],
    key_valid: Bool[Tensor, "batch n"] | None,
    *,
    by_head: bool = False,
) -> Float[Tensor, "batch heads n head_dim"]:
    """Softmax attention of each query to the valid keys it sees; zeros where there is none.

    Args:
        by_head: whether heads see different keys.
    """
    from torch.nn.attention.flex_attention import BlockMask

    n = query.shape[2]
    some, whole = seen_blocks(sees, n, query.shape[1] if by_head else 1, query.device)
    if key_valid is None:
        partial, full = _listed(some & ~whole), _listed(whole)
        mask = BlockMask.from_kv_blocks(*partial, *full, BLOCK, lambda b, h, q, k: sees(h, q, k), (n, n))
    else:
        mask = BlockMask.from_kv_blocks(
            *_listed(some), None, None, BLOCK, lambda b, h, q, k: sees(h, q, k) & key_valid[b, k], (n, n)
        )
    out: Tensor = compiled_flex()(query, key, value, block_mask=mask)
    return out


def seen_blocks(sees: MaskMod, n: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which blocks of pairs hold some that see each other, and which nothing else, (1, heads, n / 128, n / 128) each.

    Some rows of blocks at a time, where PyTorch's ``create_block_mask`` holds all n × n pairs.
    """
    blocks = -(-n // BLOCK)
    keys, every = torch.arange(blocks * BLOCK, device=device), torch.arange(heads, device=device)[:, None, None]
    rows = BLOCK * max(1, rows_of_block(heads * len(keys) * INDEX) // BLOCK)
    some, whole = [], []
    for queries in keys.split(rows):
        seen = sees(every, queries[:, None].clamp(max=n - 1), keys.clamp(max=n - 1)) & (queries[:, None] < n) & (keys < n)
        squares = seen.expand(heads, -1, -1).unflatten(2, (blocks, BLOCK)).unflatten(1, (-1, BLOCK))
        some.append(squares.any(dim=4).any(dim=2))
        whole.append(squares.all(dim=4).all(dim=2))
    return torch.cat(some, dim=1)[None], torch.cat(whole, dim=1)[None]


def _listed(table: Bool[Tensor, "1 heads rows columns"]) -> tuple[Tensor, Tensor]:
    """How many blocks each row of blocks has, and their numbers, first those it has."""
    order = table.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return table.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


@lru_cache(maxsize=1)
def compiled_flex() -> Any:
    """FlexAttention is only block-sparse when it is compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)

"""PyTorch's FlexAttention for the ``flex`` implementations. The visible pairs of positions do not depend on the input, so
tables of blocks are cached.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.kernels.derivatives import refuse_graph_of_gradients, refuse_transforms
from attn_zoo.shapes import Keys, KeyValid, Queries

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of three tensors that broadcast: head, query and key indices. It returns True if the query sees the key."""

BLOCK = 128
"""Number of queries and of keys in a block. FlexAttention computes or skips a block as a whole."""

PAIRS_AT_ONCE = 2**21
"""Number of pairs of positions that are evaluated at once when tables of blocks are built. Their indices take 16 MiB."""

MOST_CACHED = 64
"""Maximum number of cached tables of blocks. The oldest is dropped first."""


class PairTables(NamedTuple):
    """Mask function at one length, and its tables of blocks for FlexAttention."""

    mask_mod: MaskMod
    plain: BlockMask
    """Table that lists partially masked blocks and full blocks."""
    padded: BlockMask
    """Table that lists the same blocks, all as partially masked, because padding may mask any pair."""


_CACHE: dict[Hashable, PairTables] = {}


def cached_tables(fixed_by: Hashable, pairs: Callable[[], MaskMod], n: int, heads: int, device: torch.device) -> PairTables:
    """Return the tables of blocks at length ``n``. They are built once for each length, device and ``fixed_by``.

    Args:
        fixed_by: part of the cache key. Equal values must mean that the same pairs are visible. Tensors in it are compared by
            identity.
        pairs: function without arguments that returns the mask function.
        heads: number of heads; 1 if the same pairs are visible in all heads.
    """
    from torch._guards import detect_fake_mode

    if torch.compiler.is_compiling() or detect_fake_mode() is not None:  # a traced tensor must not outlive its trace
        return _make_tables(pairs(), n, heads, device)
    key = (fixed_by, n, heads, device)
    if key not in _CACHE:
        if len(_CACHE) >= MOST_CACHED:
            del _CACHE[next(iter(_CACHE))]
        with torch.inference_mode(False), torch.no_grad():  # so that tables built in evaluation serve training
            _CACHE[key] = _make_tables(pairs(), n, heads, device)
    return _CACHE[key]


def _make_tables(mask_mod: MaskMod, n: int, heads: int, device: torch.device) -> PairTables:
    from torch.nn.attention.flex_attention import BlockMask

    def of_example(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask_mod(h, q, k)

    some, whole = blocks_of_pairs(mask_mod, n, heads, device)
    plain = BlockMask.from_kv_blocks(*_listed(some & ~whole), *_listed(whole), BLOCK, of_example, (n, n))
    padded = BlockMask.from_kv_blocks(*_listed(some), None, None, BLOCK, of_example, (n, n))
    return PairTables(mask_mod, plain, padded)


def flex_attention_over(tables: PairTables, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
    """Return the outputs of softmax attention from each query to the valid keys that it sees, computed by FlexAttention. A query
    that sees no valid key gets zeros.
    """
    mask = tables.plain
    if key_valid is not None:
        mask = copy.copy(tables.padded)
        mask.mask_mod = lambda b, h, q, k: tables.mask_mod(h, q, k) & key_valid[b, k]
    refuse_transforms(query, key, value)
    return refuse_graph_of_gradients(compiled_flex()(query, key, value, block_mask=mask))


def blocks_of_pairs(mask_mod: MaskMod, n: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two masks of blocks. The first is True if any pair in the block is visible, the second if all pairs are. Both have
    shape (1, heads, n / 128, n / 128), rounded up.
    """
    blocks = -(-n // BLOCK)
    keys, every = torch.arange(blocks * BLOCK, device=device), torch.arange(heads, device=device)[:, None, None]
    rows = BLOCK * max(1, PAIRS_AT_ONCE // (heads * len(keys)) // BLOCK)
    some, whole = [], []  # a few rows of blocks at a time; PyTorch's create_block_mask holds all n × n pairs
    for queries in keys.split(rows):
        inside = (queries[:, None] < n) & (keys < n)
        allowed = mask_mod(every, queries[:, None].clamp(max=n - 1), keys.clamp(max=n - 1)) & inside
        squares = allowed.expand(heads, -1, -1).unflatten(2, (blocks, BLOCK)).unflatten(1, (-1, BLOCK))
        some.append(squares.any(dim=4).any(dim=2))
        whole.append(squares.all(dim=4).all(dim=2))
    return torch.cat(some, dim=1)[None], torch.cat(whole, dim=1)[None]


def _listed(table: Bool[Tensor, "1 heads rows columns"]) -> tuple[Tensor, Tensor]:
    """Return the number of marked blocks in each row, and the indices of all blocks with the marked ones first, as FlexAttention
    expects.
    """
    order = table.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return table.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


@lru_cache(maxsize=1)
def compiled_flex() -> Any:
    """Return FlexAttention, compiled. Without compilation it does not skip blocks."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)

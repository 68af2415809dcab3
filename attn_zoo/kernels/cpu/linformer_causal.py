"""Block-causal Linformer, computed block by block. Temporary tensors hold the scores of one block at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.shapes import Keys, KeyValid, Queries


def spans(length: int, block: int) -> Iterator[tuple[int, int]]:
    """Return two positions for each block: its first, and the one after its last."""
    return ((start, min(start + block, length)) for start in range(0, length, block))


def attend_blocks(
    query: Queries,
    key: Keys,
    value: Keys,
    key_valid: KeyValid,
    key_projection: Float[Tensor, "k c"],
    value_projection: Float[Tensor, "k c"],
    *,
    causal: bool,
    dropout: float,
) -> Queries:
    """Return the outputs of softmax attention from each query to the tokens of its own block and to the k projected keys of
    each other block. If ``causal``, later tokens and later blocks are hidden.
    """
    n, (k, block) = key.shape[2], key_projection.shape
    key, blocks = key * key.shape[-1] ** -0.5, -(-n // block)
    count = (blocks - 1 if causal else blocks) if blocks > 1 else 0
    short_key, short_value = _project(key_projection, key, count), _project(value_projection, value, count)
    short_valid = (
        None if key_valid is None else _cut(key_valid[..., None], count, block).any(dim=-2)[..., 0].repeat_interleave(k, dim=1)
    )
    out = []
    for at, (start, end) in enumerate(spans(n, block)):
        seen = slice(0, at * k) if causal else slice(0, short_key.shape[2])
        rows, own = query[:, :, start:end], slice(start, end)
        scores = torch.cat([rows @ short_key[:, :, seen].mT, rows @ key[:, :, own].mT], dim=-1)
        allowed = _allowed(at, k, seen.stop, end - start, causal, query.device)
        if key_valid is not None and short_valid is not None:
            allowed = allowed & torch.cat([short_valid[:, seen], key_valid[:, own]], dim=-1)[:, None, None]
        weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~allowed, 0)
        far, near = F.dropout(weights, dropout).split([seen.stop, end - start], dim=-1)
        out.append(far @ short_value[:, :, seen] + near @ value[:, :, own])
    return torch.cat(out, dim=2)


def _cut(tokens: Float[Tensor, "*front n d"], count: int, block: int) -> Float[Tensor, "*front count block d"]:
    """Split off the first ``count`` blocks. The last one is filled up with zeros."""
    missing = max(0, count * block - tokens.shape[-2])
    return F.pad(tokens[..., : count * block, :], (0, 0, 0, missing)).unflatten(-2, (count, block))


def _project(weight: Float[Tensor, "k c"], tokens: Float[Tensor, "batch heads n d"], count: int) -> Tensor:
    """Project each of the first ``count`` blocks to k keys, and concatenate them."""
    batch, heads, _, d = tokens.shape
    k, block = weight.shape
    return (weight @ _cut(tokens, count, block)).reshape(batch, heads, count * k, d)


def _allowed(at: int, k: int, far: int, rows: int, causal: bool, device: torch.device) -> Bool[Tensor, "1 1 rows columns"]:
    """Return the mask of the ``far`` projected keys and the block's own keys that each query of block ``at`` sees."""
    column, row = torch.arange(far + rows, device=device), torch.arange(rows, device=device)
    if causal:
        return (column <= far + row[:, None])[None, None]
    own_projected = (at * k <= column) & (column < min(far, (at + 1) * k))  # tokens of the own block are seen instead
    return ~own_projected.expand(1, 1, rows, -1)

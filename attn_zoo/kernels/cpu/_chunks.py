"""Recurrences that are computed chunk by chunk. Attention weights are computed within a chunk; earlier positions enter as a
state.

Several chunks form a block, whose temporary tensors fit the caches of the processor. The backward pass recomputes each block,
so only the states between blocks are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.kernels.cpu._tiling import like_tokens
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import without_autocast

# On a CPU with head_dim 64, chunks of 128 positions take a tenth more time, and chunks of 32 save no time.
CHUNK = 64
"""Number of positions in a chunk."""

# With half or twice as many bytes, the computation takes the same time; with eight times as many, it takes longer.
BLOCK_BYTES = 2**19
"""Bytes of one tensor of a block. About a dozen such tensors exist at a time."""


def filled(length: int, most: int | None = None) -> tuple[int, int]:
    """Return the number of positions per chunk, which is at most ``most`` (by default ``CHUNK``), and the length rounded up to
    whole chunks.
    """
    chunk = min(CHUNK if most is None else most, length)
    return chunk, -(-length // chunk) * chunk


def spans(length: int, bytes_each: int) -> list[slice]:
    """Return a slice of rows for each block. A row takes ``bytes_each`` bytes. All blocks but the last hold whole chunks.

    If the last block would be shorter than a chunk, its rows belong to the block before instead.
    """
    if torch.compiler.is_compiling():  # the compiler tiles, and a list of blocks would hold for one length
        return [slice(0, length)]
    chunk, _ = filled(length)
    block = max(1, BLOCK_BYTES // (bytes_each * chunk)) * chunk
    starts = list(range(0, length, block))
    if len(starts) > 1 and length - starts[-1] < chunk:
        starts.pop()
    return [slice(*pair) for pair in pairwise([*starts, length])]


def row_bytes(x: Float[Tensor, "b h n w"]) -> int:
    """Return how many bytes one position takes in all examples and heads together."""
    return x.shape[0] * x.shape[1] * x.shape[3] * x.element_size()


def into_chunks(x: Float[Tensor, "b h r w"], chunk: int) -> Float[Tensor, "b h chunks chunk w"]:
    """Return the rows split into chunks. The last chunk is filled up with zeros."""
    missing = -x.shape[2] % chunk
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (-1, chunk))


def in_blocks(
    compute: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]], state: Tensor, *tensors: Tensor
) -> tuple[Tensor, Tensor]:
    """Call ``compute(rows of the tensors, state) -> (outputs, new state)`` for one block of rows after another. Return the
    outputs of all blocks and the last state.

    The backward pass recomputes each block, so only the inputs and the states between blocks are saved. The state and
    floating-point tensors get a gradient.
    """
    out, after = _InBlocks.run(compute, state, *tensors)
    return out, after


class _InBlocks(OnceDifferentiable):
    """Autograd function of ``in_blocks``."""

    @staticmethod
    def forward(ctx: Any, compute: Any, state: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.compute, ctx.spans = compute, spans(tensors[0].shape[2], row_bytes(tensors[0]))
        starts, out = [], like_tokens(tensors[0])
        for rows in ctx.spans:
            starts.append(state)
            out[:, :, rows], state = compute([t[:, :, rows] for t in tensors], state)
        ctx.save_for_backward(*starts, *tensors)
        return out, state

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        saved, blocks_read = ctx.saved_tensors, len(ctx.spans)
        starts, tensors = saved[:blocks_read], saved[blocks_read:]
        found = [like_tokens(t) if t.is_floating_point() else None for t in tensors]
        kept = [grad for grad in found if grad is not None]
        with without_autocast(grad_out.device):
            for rows, start in zip(reversed(ctx.spans), reversed(starts), strict=True):
                with torch.enable_grad():
                    blocks = [t[:, :, rows].detach().requires_grad_(t.is_floating_point()) for t in tensors]
                    before = start.detach().requires_grad_()
                    results = ctx.compute(blocks, before)
                leaves = [before, *(block for block in blocks if block.requires_grad)]
                grad_state, *grads = torch.autograd.grad(results, leaves, (grad_out[:, :, rows], grad_state))
                for whole, part in zip(kept, grads, strict=True):
                    whole[:, :, rows] = part
        return None, grad_state, *found

"""Tables of positions that are sorted by hash bucket and divided into chunks, for plain PyTorch and for tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from attn_zoo.shapes import KeyValid


class Layout(NamedTuple):
    """Positions sorted by bucket and divided into chunks of slots, for each hash round (one hash of all positions). A slot
    holds one position, or is empty.

    Each bucket starts a new chunk, so all positions of a chunk are in one bucket. Later positions and padding do not change the
    place of a position among the chunks of its bucket.
    """

    position: Int[Tensor, "rounds batch heads slots"]
    """Position that each of the ``chunks × chunk`` slots holds; n (the length) if the slot is empty."""
    slot: Int[Tensor, "rounds batch heads n"]
    """Slot of each position. Padding has no slot, and gets the number of slots instead."""
    before: Int[Tensor, "rounds batch heads chunks"]
    """For each chunk, the number of the previous chunk of the same bucket, or -1. If ``make`` was called with ``wraps``, the
    first chunk of a bucket has the last chunk of the bucket as its previous one, unless the bucket has only one chunk.
    """

    @classmethod
    def make(cls, bucket: Int[Tensor, "rounds batch heads n"], valid: KeyValid, buckets: int, chunk: int, *, wraps: bool) -> Layout:
        """Return the layout of all rounds, given the bucket of each position.

        Args:
            buckets: number of buckets.
            chunk: number of slots in a chunk.
            wraps: if True, the first chunk of a bucket has the last chunk of this bucket as its previous chunk.
        """
        n, count = bucket.shape[-1], most_chunks(bucket.shape[-1], buckets, chunk)
        if valid is not None:
            bucket = bucket.masked_fill(~valid[:, None, :], buckets)  # padding is a last bucket of its own
        in_order, order = bucket.sort(dim=-1, stable=True)
        rank = torch.arange(n, device=bucket.device) - torch.searchsorted(in_order, in_order)
        number = ((rank % chunk == 0).cumsum(dim=-1) - 1).masked_fill(in_order == buckets, count)
        slot = torch.where(number < count, number * chunk + rank % chunk, count * chunk)
        last = number.gather(-1, torch.searchsorted(in_order, in_order, right=True) - 1)
        before = torch.where(rank >= chunk, number - 1, torch.where(last > number, last, -1) if wraps else -1)
        front = bucket.shape[:-1]
        position = bucket.new_full((*front, count * chunk + 1), n).scatter(-1, slot, order)[..., :-1]
        before = bucket.new_full((*front, count + 1), -1).scatter(-1, number, before)[..., :-1]
        return cls(position.int(), torch.empty_like(slot).scatter(-1, order, slot).int(), before.int())

    def of_positions(self) -> tuple[Int[Tensor, "rounds batch heads n"], Int[Tensor, "rounds batch heads n"]]:
        """Return the numbers of two chunks for each position: its own chunk, and the chunk before (-1 if no chunk comes before)."""
        chunk = self.slot.long() // (self.position.shape[3] // self.before.shape[3])
        return chunk, F.pad(self.before.long(), (0, 1), value=-1).gather(3, chunk)

    def pairs(self) -> tuple[Int[Tensor, "rounds batch heads chunks c"], Int[Tensor, "rounds batch heads chunks 2*c"]]:
        """Return the positions of the queries and of the keys of each chunk. The keys are the positions of the chunk before,
        followed by those of the chunk itself. n (the length) marks an empty slot.
        """
        n, chunks = self.slot.shape[3], self.before.shape[3]
        own = self.position.long().unflatten(3, (chunks, -1))
        before = self.before.long().masked_fill(self.before < 0, chunks)[..., None].expand_as(own)
        return own, torch.cat([F.pad(own, (0, 0, 0, 1), value=n).gather(3, before), own], dim=4)


def most_chunks(n: int, buckets: int, chunk: int) -> int:
    """Return a number of chunks that is enough for n positions, however they are distributed over the buckets."""
    return (n + min(buckets, n) * (chunk - 1)) // chunk

"""Recurrent linear attention: a memory of fixed size, one matrix for each head, updated at every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_zoo.contract import Geometry, MemoryAttention, MemoryState, OptionsT
from attn_zoo.kernels.cpu._chunks import in_blocks
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries

RMS_FLOOR = 1e-5
"""Epsilon added to the mean square of an output, so that an output of zeros stays zeros."""

Answer = tuple[Queries, MemoryState]
Read = Callable[..., Answer]


class RecurrentAttention(MemoryAttention[OptionsT]):
    """Mechanism that reads a sequence into a ``MemoryState``: at once, in pieces or token by token.

    Subclasses implement ``read``, and ``read_all`` if the paper has a bidirectional form. ``read_tiled`` is ``read`` in blocks that
    fit a CPU's caches. ``read_fla`` is ``read`` by flash-linear-attention's kernels, which do not update the state.
    """

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Queries:
        """Return the outputs, computed in float32 or more, also under autocast, because long sums need this precision."""
        read = self.read if self.implementation == "eager" else getattr(self, f"read_{self.implementation}")
        dtype = torch.promote_types(value.dtype, torch.float32)
        with without_autocast(value.device):
            given = query.to(dtype), key.to(dtype), value.to(dtype), key_valid
            more = {name: stream.to(dtype) for name, stream in streams.items()}
            out = read(self.start(given[2]), *given, **more)[0] if self.geometry.causal else self.read_all(read, *given, **more)
            return self.finish(out).to(value.dtype)

    attend_tiled = attend_fla = attend

    def read_all(self, read: Read, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Queries:
        """Return the bidirectional outputs: the sum of what ``read`` returns forwards and of what it returns backwards over the
        sequence.
        """
        valid, flipped = None if key_valid is None else key_valid.flip(1), {name: x.flip(2) for name, x in streams.items()}
        forward, _ = read(self.start(value), query, key, value, key_valid, **streams)
        backward, _ = read(self.start(value), query.flip(2), key.flip(2), value.flip(2), valid, **flipped)
        return forward + backward.flip(2)


class NormalisedMemory(RecurrentAttention[OptionsT]):
    """Memory with head_dim rows. If ``options.normalise`` is set, the outputs have a root mean square of one.

    Subclasses implement ``by_chunks``: (tensors with one row per position, memory S before them) → (outputs, S after them).
    """

    by_chunks: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if the state is no smaller than the keys that it summarises."""
        d, n = geometry.head_dim, geometry.keys
        return (f"a state of {d} rows is no smaller than the {n} keys that it remembers",) if d >= n else ()

    def scan(self, update: Callable[..., tuple[Tensor, Tensor]], *streams: Tensor) -> Queries:
        """Return the outputs of all tokens: call ``update(S, *columns)`` for one token after another. ``update`` returns the new
        memory S and the output of the token. Each of ``streams``, of which the first holds the queries, gives one column of shape
        (…, 1) per token. If not causal, read backwards, too, and add the outputs.
        """

        def one_way(order: range) -> Tensor:
            state, outputs = streams[0].new_zeros(*streams[0].shape[:2], *self.state_shape()), dict[int, Tensor]()
            for t in order:
                state, outputs[t] = update(state, *(x[:, :, t, :, None] for x in streams))
            return torch.stack([outputs[t][..., 0] for t in range(len(order))], dim=2)

        n = streams[0].shape[2]
        out = one_way(range(n))
        return self.finish(out if self.geometry.causal else out + one_way(range(n - 1, -1, -1)))

    def rows(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> list[Tensor]:
        """Return the inputs of ``by_chunks``: tensors with one row per position."""
        return [query, key, value, *streams.values()]

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of the next tokens, and the state after them. All chunks are read at once."""
        out, summed = self.by_chunks(self.rows(*inputs, **streams), state.summed)
        return out, state.after(summed, out.shape[2])

    def read_tiled(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs and the state of ``read``. Blocks of chunks are read one after the other, and computed again in the
        backward pass.
        """
        out, summed = in_blocks(self.by_chunks, state.summed, *self.rows(*inputs, **streams))
        return out, state.after(summed, out.shape[2])

    def finish(self, out: Queries) -> Queries:
        """Return the outputs divided by their root mean square over a head, if ``normalise`` is set. This is RMSNorm without its
        scale, which the output projection can learn.
        """
        return out * torch.rsqrt(out.square().mean(dim=-1, keepdim=True) + RMS_FLOOR) if self.options.normalise else out

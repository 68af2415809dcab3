"""Recurrent linear attention: each head has a memory of fixed size, a matrix that every token updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from attn_zoo.contract import Geometry, MemoryAttention, MemoryState, OptionsT
from attn_zoo.kernels.cpu._chunks import in_blocks
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries

RMS_FLOOR = 1e-5
"""Number added to the mean square of an output, so that an output of zeros can be divided by its root mean square."""

Answer = tuple[Queries, MemoryState]
Read = Callable[..., Answer]


class RecurrentAttention(MemoryAttention[OptionsT]):
    """Base class of mechanisms that read a sequence into a ``MemoryState``: at once, in pieces or token by token.

    Subclasses implement ``read``. They also implement ``read_all`` if the paper has a bidirectional form. ``read_tiled`` computes
    the same as ``read``, in blocks that fit the caches of a CPU. ``read_fla`` calls the kernels of flash-linear-attention, which do
    not update the state.
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
        """Return the bidirectional outputs: those of ``read`` for the sequence plus those of ``read`` for the reversed sequence."""
        valid, flipped = None if key_valid is None else key_valid.flip(1), {name: x.flip(2) for name, x in streams.items()}
        forward, _ = read(self.start(value), query, key, value, key_valid, **streams)
        backward, _ = read(self.start(value), query.flip(2), key.flip(2), value.flip(2), valid, **flipped)
        return forward + backward.flip(2)


class NormalisedMemory(RecurrentAttention[OptionsT]):
    """Base class of mechanisms with a memory of head_dim rows per head, and with an RMSNorm of the outputs (see ``finish``).

    Subclasses implement ``by_chunks``: (tensors with one row per position, memory S before them) → (outputs, S after them).
    """

    by_chunks: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
    fla_widest: ClassVar[int | None] = None
    """Largest number of channels per head that flash-linear-attention's kernel supports. None if it has no limit."""

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return why the implementation cannot run, or None if it can. ``fla`` must not have heads wider than ``fla_widest``."""
        if implementation == "fla" and cls.fla_widest is not None and geometry.head_dim > cls.fla_widest:
            return (
                f"{cls.card.name}:fla must have a head_dim of at most {cls.fla_widest}; got {geometry.head_dim}. Use "
                "implementation=eager"
            )
        return super().refuses(implementation, geometry, options)

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if the memory has at least as many rows as there are keys."""
        d, n = geometry.head_dim, geometry.keys
        return (
            (f"the state has {d} rows, at least as many as the number of keys ({n}), so it compresses nothing",) if d >= n else ()
        )

    def scan(self, update: Callable[..., tuple[Tensor, Tensor]], *streams: Tensor) -> Queries:
        """Return the outputs, computed token by token and then passed to ``finish``. For each token, ``update(S, *columns)``
        returns the new memory S and the output. ``update`` gets one column of shape (…, 1) from each tensor in ``streams``, the
        first of which holds the queries. If bidirectional, the sequence is also read backwards, and the outputs are added.
        """

        def one_way(order: range) -> Tensor:
            state, outputs = streams[0].new_zeros(*streams[0].shape[:2], *self.state_shape()), dict[int, Tensor]()
            for t in order:
                state, outputs[t] = update(state, *(column[t] for column in columns))
            return torch.stack([outputs[t][..., 0] for t in range(len(order))], dim=2)

        n, columns = streams[0].shape[2], [x[..., None].unbind(2) for x in streams]
        out = one_way(range(n))
        return self.finish(out if self.geometry.causal else out + one_way(range(n - 1, -1, -1)))

    def rows(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> list[Tensor]:
        """Return the inputs of ``by_chunks``: tensors with one row per position."""
        return [query, key, value, *streams.values()]

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of the next tokens, and the state after them."""
        out, summed = self.by_chunks(self.rows(*inputs, **streams), state.summed)
        return out, state.after(summed, out.shape[2])

    def read_tiled(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs and the state of ``read``, computed in blocks of chunks. The backward pass computes each
        block again.
        """
        out, summed = in_blocks(self.by_chunks, state.summed, *self.rows(*inputs, **streams))
        return out, state.after(summed, out.shape[2])

    def finish(self, out: Queries) -> Queries:
        """Return the outputs. If ``normalise`` is true, each head's output is divided by its root mean square."""
        if not self.options.normalise:
            return out
        # Not out.square().mean(): its backward pass makes two more tensors of the size of the outputs.
        mean_square = (out * out).sum(dim=-1, keepdim=True) / out.shape[-1]
        return out * torch.rsqrt(mean_square + RMS_FLOOR)

"""Mechanisms with a memory of fixed size, one matrix S per head, which every token changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract.attention import Attention, OptionsT
from attn_zoo.contract.carried import check_state
from attn_zoo.contract.dtypes import check_dtype
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, Queries


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Recurrent state with one matrix S per head. Its size does not depend on the number of tokens read."""

    summed: Float[Tensor, "batch heads m d"]
    """The matrices S: sums Σ φ(k) vᵀ, or the result of the mechanism's own recurrence. If outputs are averages, the last column of
    S is z = Σ φ(k).
    """
    position: int = 0
    """Number of tokens read so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices S of all examples and heads."""
        return self.summed.nbytes

    def after(self, summed: Float[Tensor, "batch heads m d"], tokens: int) -> MemoryState:
        """Return the state after more tokens (``tokens`` in number), with ``summed`` as the new matrices S."""
        return MemoryState(summed, self.position + tokens)


class MemoryAttention(Attention[OptionsT]):
    """Mechanism that reads tokens into a ``MemoryState``. It computes in float32 or float64, also under autocast, because long
    sums need this precision.

    Subclasses implement ``read``. If the matrices S are not head_dim × head_dim, they also implement ``state_shape``.
    """

    read: Callable[..., tuple[Tensor, MemoryState]]
    """Function (state, query, key, value, key_valid, **streams) → (outputs, new state). Each output depends on the state and on
    positions up to its own. All tensors are float32 or float64.
    """

    def finish(self, out: Queries) -> Queries:
        """Apply the last operation of the mechanism to ``out``, and return the final outputs. The operation must treat each
        position separately. By default, ``out`` is returned unchanged.
        """
        return out

    def state_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the matrix S of a head."""
        return self.geometry.head_dim, self.geometry.head_dim

    def initial_state(
        self, batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> MemoryState:
        """Return the state before the first token: matrices of zeros, in float64 if ``dtype`` is float64, else in float32."""
        check_dtype(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return MemoryState(torch.zeros(batch, self.geometry.heads, *self.state_shape(), dtype=wide, device=device))

    def start(self, value: Keys) -> MemoryState:
        """Return the state before the first token, for inputs with the batch, dtype and device of ``value``."""
        return self.initial_state(len(value), dtype=value.dtype, device=value.device)

    def advance(self, query: Queries, key: Keys, value: Keys, state: Any, **streams: Keys) -> tuple[Queries, MemoryState]:
        """Return the outputs of the next tokens, and the state after them.

        Raises:
            ValueError: the mechanism, batch size, dtype or device of the state is wrong.
        """
        dtype = torch.promote_types(value.dtype, torch.float32)
        check_state(self.card.name, state, "summed", (len(value), self.geometry.heads, *self.state_shape()), dtype, value)
        with without_autocast(value.device):
            streams = {name: stream.to(dtype) for name, stream in streams.items()}
            out, after = self.read(state, query.to(dtype), key.to(dtype), value.to(dtype), None, **streams)
            return self.finish(out).to(value.dtype), after

"""Results of a layer that later calls use: the cached keys and values of a context, and the recurrent state of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import CarriedState


@dataclass(frozen=True, slots=True)
class Remembered:
    """Cached keys, values and streams (extra inputs) of a context, for later calls with other queries. See
    ``MultiHeadAttention.remember``.
    """

    key: Float[Tensor, "batch heads kept head_dim"] | None
    """Keys, as long as the context or already compressed. None if the mechanism reads no keys, or if latents are cached instead."""
    value: Float[Tensor, "batch heads kept head_dim"] | None
    """Values, as many as keys. None if latents are cached instead."""
    streams: Mapping[str, Float[Tensor, "batch heads _ _"]]
    """Streams that are projected from the context. Empty if latents are cached instead."""
    key_valid: Bool[Tensor, "batch keys"] | None
    """True for a real token of the context; None if all are real."""
    length: int
    """Number of tokens of the context."""
    latent: Float[Tensor, "batch keys latent_dim"] | None = None
    """Latents of the context, from which each call computes keys, values and streams. None if the layer has no
    latents, or if keys are compressed.
    """
    compressed: bool = False
    """True if keys and values are already compressed along the length."""

    @property
    def batch(self) -> int:
        """Number of examples in the batch."""
        kept = self.value if self.latent is None else self.latent
        assert kept is not None
        return kept.shape[0]


@dataclass(frozen=True, slots=True)
class LayerState:
    """Recurrent state of a layer after the tokens read so far. It is a ``CarriedState``; see ``MultiHeadAttention.step``."""

    mechanism: CarriedState
    tail: Float[Tensor, "batch held dim"]
    """Last tokens read, as many as the short convolution reaches back. Empty without a short convolution."""

    @property
    def position(self) -> int:
        """Number of tokens read so far."""
        return self.mechanism.position

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the state, for the whole batch."""
        return self.mechanism.nbytes + self.tail.nbytes


def check_layer_state(name: str, state: object, tokens: Float[Tensor, "batch n dim"], reach: int) -> None:
    """Raise an error if the state of a layer does not fit the next tokens.

    Args:
        name: name of the mechanism, for the message.
        state: state to check.
        tokens: next tokens of the layer.
        reach: number of earlier tokens that the short convolution reads.

    Raises:
        ValueError: there is no token, or the type, shape, dtype or device of the state is wrong.
    """
    if tokens.shape[1] == 0:
        raise ValueError(f"{name}: step() must get at least one token; got none")
    if not isinstance(state, LayerState):
        raise ValueError(
            f"{name}: state must come from initial_state() of this layer or from the previous step(); got {type(state).__name__}"
        )
    shape, tail = (tokens.shape[0], min(reach, state.position), tokens.shape[2]), state.tail
    wanted, got = (f"{tuple(size)} {of.dtype} on {of.device}" for size, of in ((shape, tokens), (tail.shape, tail)))
    if got != wanted:
        raise ValueError(
            f"{name}: the state does not fit these inputs: after {state.position} tokens its tail (the latest tokens) must "
            f"be {wanted}; got {got}. Start again with initial_state({tokens.shape[0]}, dtype={tokens.dtype}, "
            f"device={str(tokens.device)!r})"
        )

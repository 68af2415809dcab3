"""Results of a layer that later calls use: the cached keys of a context, and the state of a sequence that is read in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import CarriedState


@dataclass(frozen=True, slots=True)
class Remembered:
    """Cached keys, values and streams of a context, which calls with other queries use. See ``MultiHeadAttention.remember``."""

    key: Float[Tensor, "batch heads kept head_dim"] | None
    """Keys, as long as the context or already compressed; None if the mechanism reads none, or if there are latents."""
    value: Float[Tensor, "batch heads kept head_dim"] | None
    """Values, as long as the keys; None if there are latents."""
    streams: Mapping[str, Float[Tensor, "batch heads _ head_dim"]]
    """The streams of the keys; empty if there are latents."""
    key_valid: Bool[Tensor, "batch keys"] | None
    """True for a real token of the context; None if all are real."""
    length: int
    """Number of tokens of the context."""
    latent: Float[Tensor, "batch keys latent_dim"] | None = None
    """Latents of the context, from which a call makes keys, values and streams; None if there are none, or if compressed."""

    @property
    def batch(self) -> int:
        """Number of examples."""
        kept = self.value if self.latent is None else self.latent
        assert kept is not None
        return kept.shape[0]


@dataclass(frozen=True, slots=True)
class LayerState:
    """State that a layer carries from one piece of a sequence to the next. It is a ``CarriedState``; see
    ``MultiHeadAttention.step``.
    """

    mechanism: CarriedState
    tail: Float[Tensor, "batch held dim"]
    """Last tokens read, as many as the short convolution reaches back; empty without one."""

    @property
    def position(self) -> int:
        """Number of tokens read."""
        return self.mechanism.position

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in the state, for the whole batch."""
        return self.mechanism.nbytes + self.tail.nbytes


def check_layer_state(name: str, state: object, tokens: Float[Tensor, "batch n dim"], reach: int) -> None:
    """Raise an error if a state does not fit the next tokens of a layer.

    Args:
        name: name of the mechanism.
        reach: number of earlier tokens that the short convolution reads.

    Raises:
        ValueError: there is no token, or the state has another type, shape, dtype or device.
    """
    if tokens.shape[1] == 0:
        raise ValueError(f"{name}: step() must get at least one token; got none")
    if not isinstance(state, LayerState):
        raise ValueError(
            f"{name}: a state must come from the layer's initial_state() or the step before; got {type(state).__name__}"
        )
    shape, tail = (tokens.shape[0], min(reach, state.position), tokens.shape[2]), state.tail
    wanted, got = (f"{tuple(size)} {of.dtype} on {of.device}" for size, of in ((shape, tokens), (tail.shape, tail)))
    if got != wanted:
        raise ValueError(
            f"{name}: the state does not fit these inputs: after {state.position} tokens its tail must be {wanted}; got {got}; "
            f"start again with initial_state({tokens.shape[0]}, dtype={tokens.dtype}, device={str(tokens.device)!r})"
        )

"""Cache layer for transformers that holds the recurrent state of a mechanism in place of keys and values."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from attn_zoo.contract import UnsupportedError


class StateLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed
    """Cache layer with the recurrent state of one attention module during generation.

    ``update`` counts the new tokens and returns their keys and values, from which the mechanism computes the new ``state``.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Delete the recurrent state, so that the next token is the first."""
        self.state: Any = None
        """State of the mechanism, a ``CarriedState``; None before the first token."""
        self.tail: Float[Tensor, "batch held dim"] | None = None
        """Last tokens that a short convolution still needs for the next tokens."""
        self.length = 0
        """Number of tokens read so far."""
        self.closed = ""
        """Reason why generation cannot continue from this state. Empty if it can."""

    def lazy_initialization(self, *tensors: Tensor) -> None:
        """Mark the cache layer as initialised, without allocating memory."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Count the new tokens, and return their keys and values unchanged."""
        self.is_initialized = True
        self.keys = self.values = key_states.new_empty(0)  # as in a layer before its first keys; Mllama asks for their number
        self.length += key_states.shape[-2]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Return the number of keys that a mask covers, and the position of the first key."""
        # Older versions of transformers pass positions instead of ``query_length``.
        return self.length + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_seq_length(self) -> int:
        """Return the number of tokens that were read so far."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1, which means that there is no maximum."""
        return -1

    get_max_cache_shape = get_max_length  # name in older versions

    def reorder_cache(self, beam_idx: Int[Tensor, " beams"]) -> None:
        """Keep only the examples of the batch at the given indices, in the order of the indices."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Int[Tensor, " kept"]) -> None:
        """Keep only the examples of the batch at the given indices, in the order of the indices."""
        self._change(lambda tensor: tensor.index_select(0, indices.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each example of the batch ``repeats`` times."""
        self._change(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def crop(self, *args: Any) -> None:
        """Raise an error, because tokens cannot be removed from a recurrent state.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "tokens cannot be removed from a recurrent state, because the state does not store single tokens. Generate "
            "without an assistant model"
        )

    def offload(self) -> None:
        """Do nothing, because a recurrent state is small and stays on the device."""

    def prefetch(self) -> None:
        """Do nothing, because the recurrent state is already on the device."""

    def _change(self, change: Any) -> None:
        if self.tail is not None:
            self.tail = change(self.tail)
        if self.state is not None:
            held = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
            self.state = replace(self.state, **{name: change(value) for name, value in held.items() if isinstance(value, Tensor)})


def state_layer(cache: Cache, at: int) -> StateLayer | None:
    """Return the cache layer for the recurrent state of the attention module with index ``at``. Create the layer if the cache has
    no keys for this module.

    Returns:
        The layer, or None if the cache already holds keys and values of this module, or has a fixed size.
    """
    cache = getattr(cache, "self_attention_cache", cache)
    if cache.is_compileable:
        return None
    while len(cache.layers) <= at:
        cache.layers.append(DynamicLayer())
    layer = cache.layers[at]
    if not isinstance(layer, StateLayer):
        if layer.get_seq_length() > 0:
            return None
        cache.layers[at] = layer = StateLayer()
    return layer

"""A layer of transformers' cache that holds the state of a recurrent mechanism in place of keys and values."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from attn_zoo.contract import UnsupportedError


class StateLayer(CacheLayerMixin):
    """State of one attention module during generation, of a size that the mechanism decides.

    ``update`` counts the new tokens and hands their keys and values through; the mechanism reads them into ``state``.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Go back to before the first token."""
        self.state: Any = None
        """The mechanism's ``CarriedState``; None before the first token."""
        self.tail: Float[Tensor, "batch held dim"] | None = None
        """Last tokens that a short convolution reaches back to."""
        self.length = 0
        """Tokens read."""
        self.closed = ""
        """Reason why there is no state to go on from; empty where there is one."""

    def lazy_initialization(self, *tensors: Tensor) -> None:
        """Nothing to allocate."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Count the new tokens, (batch, heads, tokens, head_dim), and return their keys and values as they are."""
        self.is_initialized = True
        self.length += key_states.shape[-2]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Keys that a mask covers, and the position of the first; older versions of transformers give the positions themselves."""
        return self.length + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_seq_length(self) -> int:
        """Tokens read."""
        return self.length

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    get_max_cache_shape = get_max_length  # its name in older versions

    def reset(self) -> None:
        """Go back to before the first token."""
        self.forget()

    def reorder_cache(self, beam_idx: Int[Tensor, " beams"]) -> None:
        """Keep the given examples, in this order."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Int[Tensor, " kept"]) -> None:
        """Keep the given examples, in this order."""
        self._change(lambda tensor: tensor.index_select(0, indices.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each example so many times."""
        self._change(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def crop(self, *args: Any) -> None:
        """Refuse to take tokens back.

        Raises:
            UnsupportedError: always; a state does not hold single tokens.
        """
        raise UnsupportedError("a recurrent state holds no single tokens, so none can be taken back; generate without an assistant")

    def offload(self) -> None:
        """Stay on the device: a state is small."""

    def prefetch(self) -> None:
        """Stay on the device."""

    def _change(self, change: Any) -> None:
        if self.tail is not None:
            self.tail = change(self.tail)
        if self.state is not None:
            held = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
            self.state = replace(self.state, **{name: change(value) for name, value in held.items() if isinstance(value, Tensor)})


def state_layer(cache: Cache, at: int) -> StateLayer | None:
    """The layer of a cache that holds the state of attention module ``at``, put there where it has read nothing yet.

    Returns:
        The layer; None where the cache holds keys and values of these tokens already, or is of fixed size.
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

"""Base class of every attention mechanism, which checks every call.

Terms: *queries* and *keys*, as sizes, are numbers of positions. ``key_valid`` is True for a real token and False for padding. A
*window* is the number of keys that a position sees, itself included. A *mechanism* maps (query, key, value) to one output per
query. It has no projections of queries, keys and values; these belong to the *layer* around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import TypeVar

from attn_zoo.checks import check_whole
from attn_zoo.contract.attention_card import AttentionCard, choose_implementation
from attn_zoo.contract.carried import CarriedState
from attn_zoo.contract.claims import Geometry
from attn_zoo.contract.dtypes import check_floating, kind_of
from attn_zoo.contract.errors import UnknownNameError, UnsupportedError
from attn_zoo.contract.implementations import unavailable
from attn_zoo.contract.masks import hide_rows_without_keys
from attn_zoo.contract.options import check_bounds
from attn_zoo.contract.written import EarlierStates, begin_training_call, end_training_call
from attn_zoo.precision import autocast_dtype

OptionsT = TypeVar("OptionsT", bound=Any, default=Any)
"""Type variable for the options dataclass of a mechanism."""


class Attention(nn.Module, Generic[OptionsT]):
    """Base class of mechanisms. A mechanism maps queries, keys and values of separate heads to one output per query. Its card
    (``AttentionCard``) lists its options, implementations and capabilities.

    This class checks every call once. A mechanism implements ``attend``, and ``attend_x`` with the same signature for each
    further implementation ``x`` on its card. These methods may assume that shapes fit the geometry and that padded keys and
    values hold zeros. After the call of ``attend``, this class sets the outputs of an example without any valid key to zero.
    Outputs at padded *queries* are not changed; the caller must ignore them. A mechanism that declares ``stepwise`` also
    implements ``initial_state`` and ``advance``.

    ``definition`` has the signature of ``attend``. It is the equation in a few simple lines, without dropout: it computes the n
    × n weights, or loops over positions. The conformance tests compare ``attend`` with it.

    Args:
        geometry: sizes that the surrounding model fixes, such as the numbers of heads and keys.
        options: an instance of ``card.options``, the dataclass of the mechanism's options.
        implementation: a name on the card, or ``definition`` if the class defines it.

    Raises:
        ValueError: an option is outside its bound.
        UnknownNameError: the card does not offer the implementation.
        UnsupportedError: the geometry or the implementation needs a capability that the card does not declare.
    """

    card: ClassVar[AttentionCard]
    attend: Callable[..., Tensor]
    definition: Callable[..., Tensor] | None = None
    chosen_for: str | None = None
    """Device type for which ``auto`` chose the implementation. It is None if the caller named the implementation."""
    saturates: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Options that make the mechanism useless if their value is at least n, the number of keys. Each is paired with the end of
    its warning, which begins with ``option=value``.
    """
    options: OptionsT
    crosses: bool = False
    """True in cross-attention, where keys come from other tokens than queries; the surrounding layer sets it. If it is False and
    there are as many queries as keys, ``key_valid`` is also the mask of real queries.
    """
    written: tuple[str, ...] = ()
    """Names of the buffers that training calls write. All state that a call leaves for later calls must be in such buffers.
    Checkpoints of a run then hold this state, and gradient checkpointing does not write it twice (see ``contract.written``).
    """

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__()
        card = self.card
        if geometry.causal and not card.can.causal:
            raise UnsupportedError(f"{card.name} has no causal form. Build it with causal=False, or choose another mechanism")
        if geometry.queries != geometry.keys and not card.can.cross:
            raise UnsupportedError(
                f"{card.name} must have as many queries as keys; got {geometry.queries} and {geometry.keys}. Build it with "
                "equal lengths, or choose a mechanism that supports cross-attention"
            )
        check_bounds(card.name, options)
        self.geometry = geometry
        self.options = options
        self.earlier_states = EarlierStates()
        self.use(implementation)

    def use(self, implementation: str) -> None:
        """Switch to another implementation in place. Parameters and buffers stay the same. If ``auto`` chose the implementation
        before, it does not choose again.

        Raises:
            UnknownNameError: the card does not offer this implementation.
            UnsupportedError: this implementation does not support the options of the mechanism.
        """
        offered = (*self.card.implementations, *(("definition",) if self.definition is not None else ()))
        if implementation not in offered:
            raise UnknownNameError(f"implementation of {self.card.name}", implementation, offered)
        if reason := self.refuses(implementation, self.geometry, self.options):
            raise UnsupportedError(reason)
        self.implementation, self.chosen_for = implementation, None
        for part in self.modules():
            if "implementation" in vars(part):  # length maps have the attribute, too
                vars(part)["implementation"] = implementation

    @property
    def dropout_rate(self) -> float:
        """Dropout rate of the next call: ``options.dropout`` in training mode, and 0 in evaluation mode."""
        return float(self.options.dropout) if self.training else 0.0

    @property
    def _attend_name(self) -> str:
        return {"eager": "attend", "definition": "definition"}.get(self.implementation, f"attend_{self.implementation}")

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return the reason why this implementation cannot run with this geometry and these options, or None if it can.

        A mechanism with a limited implementation overrides this method.
        """
        return None

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return one warning for each option whose value is allowed but makes the mechanism useless. By default, these are the
        options in the class attribute ``saturates`` whose value is at least the number of keys.
        """
        n = geometry.keys
        return tuple(
            f"{name}={value} {words.format(n=n)}" for name, words in cls.saturates if (value := getattr(options, name)) >= n
        )

    def check_stack(self, stack: Sequence[Attention]) -> None:
        """Raise an error if this layer does not fit into ``stack``, the list of layers that it will join. ``join_layers`` calls
        this on every layer before ``join``.

        Raises:
            ValueError, UnsupportedError: the options of this layer, or the weights that it shares, do not fit the stack.
        """

    def join(self, layer: int, stack: Sequence[Attention]) -> None:
        """Tell this mechanism its number in ``stack``, the list of all layers with this mechanism. The first layer has the
        number 0.

        ``join_layers`` calls this method on each layer in turn. A mechanism overrides this method if options differ from layer to
        layer, or if layers share weights.
        """

    @property
    def resizes(self) -> bool:
        """True if ``resize_length`` can change the number of keys."""
        return self.card.can.any_length or type(self).resize_length is not Attention.resize_length

    def resize_length(self, length: int) -> None:
        """Change the number of keys to ``length``, in place. If the numbers of queries and keys were equal, change both.

        A mechanism overrides this method if it stores weights by position. These weights are replaced by new parameters, so
        create the optimiser afterwards.

        Raises:
            ValueError: the length is not a positive whole number.
            UnsupportedError: stored weights cannot be converted to the new length.
        """
        resized = self.geometry_at(length)
        if not self.card.can.any_length:
            raise UnsupportedError(f"{self.card.name} cannot be resized to {length} keys. Build it anew for that length")
        self.geometry = resized

    def geometry_at(self, length: int) -> Geometry:
        """Return a copy of the geometry with ``length`` keys. If the numbers of queries and keys were equal, the copy also has
        ``length`` queries.

        Raises:
            ValueError: the length is not an integer of at least 1.
        """
        check_whole("length", length)
        g = self.geometry
        return replace(g, keys=length, queries=length if g.queries == g.keys else g.queries)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load weights. If a shape does not fit, explain it in addition to the errors of torch."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        errors: list[str] = rest[-1]
        given = {name: (own, state_dict.get(prefix + name)) for name, own in self.named_parameters()}
        if other := [name for name, (own, saved) in given.items() if isinstance(saved, Tensor) and saved.shape != own.shape]:
            errors.append(
                f"{prefix}{other[0]} must have the shape of a {self.card.name} for {self.geometry.keys} keys, but has another "
                "one. If the weights come from another length, "
                + (
                    "call resize_length with that length, load the weights, and resize back"
                    if self.resizes
                    else "build it for that length, because it cannot be resized"
                )
            )

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"] | None,
        key: Float[Tensor, "batch heads keys head_dim"] | None,
        value: Float[Tensor, "batch heads keys head_dim"],
        *,
        key_valid: Bool[Tensor, "batch keys"] | None = None,
        streams: Mapping[str, Float[Tensor, "batch heads _ _"]] | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Check the inputs, and return the outputs. Subclasses inherit this method and never override it.

        Args:
            query, key, value: tensors as for ``scaled_dot_product_attention``. An input that ``card.reads`` does not name may be
                None. A mechanism that shares queries and keys takes one tensor for both, or None as key.
            key_valid: True for a real token. Padded keys and values may hold anything, NaN included.
            streams: the extra projections that ``card.streams`` names.

        Returns:
            Outputs in the shape of the queries. They are zero if there are no examples, queries or keys.

        Raises:
            ValueError: a shape or dtype does not fit, or an extra projection is missing or unexpected.
            UnsupportedError: the call needs a capability that the card does not declare.
        """
        given = dict(streams or {})
        self._check_request(query, key, value, key_valid, given)
        like = value if query is None else query
        if 0 in (value.shape[0], value.shape[2], like.shape[2]):  # nothing to map: zeros, through which gradients pass
            return like.masked_fill(torch.ones_like(like, dtype=torch.bool), 0)
        shared = self.card.can.shares_query_key
        if key_valid is not None:
            padding = ~key_valid[:, None, :, None]
            value = value.masked_fill(padding, 0)
            if shared and query is not None:
                query = query.masked_fill(padding, 0)
            elif key is not None:
                key = key.masked_fill(padding, 0)
            for stream in self.card.streams(self.geometry, self.options):
                if stream.of == "keys":
                    given[stream.name] = given[stream.name].masked_fill(padding[:, :, : stream.first], 0)
        attend, key = getattr(self, self._attend_name), query if shared else key
        if not (self.training and self.written):
            out: Tensor = attend(query, key, value, key_valid, **given)
            return hide_rows_without_keys(out, key_valid)
        present = begin_training_call(self)
        try:
            out = attend(query, key, value, key_valid, **given)
        finally:  # a repetition ends by an exception once it has what the backward pass needs
            end_training_call(self, present)
        return hide_rows_without_keys(out, key_valid)

    def initial_state(
        self, batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> CarriedState:
        """Return the recurrent state before the first token, for inputs of ``dtype`` on ``device``. Mechanisms that declare
        ``stepwise`` override this method.

        Raises:
            UnsupportedError: the card does not declare ``stepwise``.
        """
        raise UnsupportedError(_no_steps(self.card))

    def step(
        self,
        query: Float[Tensor, "batch heads n head_dim"] | None,
        key: Float[Tensor, "batch heads n head_dim"] | None,
        value: Float[Tensor, "batch heads n head_dim"],
        state: Any,
        **streams: Float[Tensor, "batch heads _ _"],
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], Any]:
        """Return the outputs of the next tokens, and the state after them. The outputs equal those of one call over the whole
        sequence. Subclasses never override this method.

        Args:
            query, key, value: as in ``forward``, without padding.
            state: the ``CarriedState`` from ``initial_state`` or from the previous step. The step does not modify it. Gradients
                flow through it.
            streams: the extra projections that ``card.streams`` names.

        Raises:
            ValueError: a shape, a dtype, the state or an extra projection does not fit.
            UnsupportedError: the card does not declare ``stepwise``, the mechanism was built with ``causal=False``, or the step
                ends beyond the length for which the mechanism was built.
        """
        card, g = self.card, self.geometry
        self.check_steps()
        if not isinstance(state, CarriedState):
            raise ValueError(
                f"{card.name}: state must come from initial_state() or from the previous step(); got {type(state).__name__}"
            )
        queries = self._check_tensors(query, key, value, streams, start=state.position)
        if queries != value.shape[2] or queries == 0:
            raise ValueError(
                f"{card.name}: step() must get at least one token, and equally many queries and keys; got {queries} queries "
                f"and {value.shape[2]} keys"
            )
        end = state.position + queries
        if end > g.keys and not card.can.any_length:
            raise UnsupportedError(
                f"{card.name} was built for {g.keys} tokens, but this step ends at token {end}. Build it for the longest "
                f"sequence{', or call resize_length' if self.resizes else ''}"
            )
        out, after = self.advance(query, query if card.can.shares_query_key else key, value, state, **streams)
        return out, after

    def check_steps(self) -> None:
        """Raise an UnsupportedError if the card does not declare ``stepwise``, or if the mechanism was built with
        ``causal=False``. The layer around the mechanism calls this method, too.
        """
        if not self.card.can.stepwise:
            raise UnsupportedError(_no_steps(self.card))
        if not self.geometry.causal:
            raise UnsupportedError(
                f"{self.card.name} must be built with causal=True to be called step by step; got causal=False. Build it with "
                "causal=True"
            )

    def advance(
        self, query: Any, key: Any, value: Float[Tensor, "batch heads n head_dim"], state: Any, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], Any]:
        """Return what ``step`` returns, for inputs that are already checked. Mechanisms that declare ``stepwise`` override this
        method.

        The mechanism defines the class of its state, and checks that a state fits the inputs.

        Raises:
            UnsupportedError: the card does not declare ``stepwise``.
        """
        raise UnsupportedError(_no_steps(self.card))

    def check_lengths(self, batch: int, queries: int, keys: int, key_valid: Tensor | None) -> None:
        """Raise an error if the mechanism does not support these numbers of queries and keys, or a padding mask. The layer
        around the mechanism calls this method, too.

        Raises:
            ValueError: the mask is not boolean of shape (batch, keys).
            UnsupportedError: the card does not declare these lengths or padding.
        """
        card, can, g = self.card, self.card.can, self.geometry
        if queries != keys and (g.causal or not can.cross):
            raise UnsupportedError(
                f"{card.name} must get as many queries as keys; got {queries} and {keys}. Give inputs of equal length"
            )
        if not can.any_length and (keys > g.keys or (keys < g.keys and not can.shorter)):
            advice = (
                f"Pad to {g.keys} keys and pass key_valid"
                if keys < g.keys
                else f"Build it for the longest input{', or call resize_length' if self.resizes else ''}"
            )
            raise UnsupportedError(f"{card.name} was built for {g.keys} keys; got {keys}. {advice}")
        if key_valid is None:
            return
        if not can.key_padding:
            raise UnsupportedError(
                f"{card.name} does not support padding, so key_valid must be None. Give it sequences without padding"
            )
        if not isinstance(key_valid, Tensor) or key_valid.dtype != torch.bool or key_valid.shape != (batch, keys):
            raise ValueError(
                f"{card.name}: key_valid must be boolean of shape (batch, keys) = ({batch}, {keys}), True for real "
                f"tokens; got {kind_of(key_valid)}"
            )

    def extra_repr(self) -> str:
        return f"{self.geometry}, {self.options}, implementation={self.implementation!r}"

    def _check_request(
        self, query: Tensor | None, key: Tensor | None, value: Tensor, key_valid: Tensor | None, streams: Mapping[str, Tensor]
    ) -> None:
        queries = self._check_tensors(query, key, value, streams)
        self.check_lengths(value.shape[0], queries, value.shape[2], key_valid)

    def _check_tensors(
        self, query: Tensor | None, key: Tensor | None, value: Tensor, streams: Mapping[str, Tensor], start: int = 0
    ) -> int:
        """Raise an error if tensors do not fit each other or the card, and return the number of queries. ``start`` tokens were read
        before.
        """
        card, can, g = self.card, self.card.can, self.geometry
        for name, tensor in {"value": value, "query": query, "key": key}.items():
            if tensor is None:
                if name in card.reads:
                    raise ValueError(f"{card.name} must get the {name}; got None")
                continue
            check_floating(card.name, name, tensor)
            if tensor.dim() != 4 or tensor.shape[1] != g.heads or tensor.shape[3] != g.head_dim:
                raise ValueError(
                    f"{card.name}: {name} must have shape (batch, heads={g.heads}, length, head_dim={g.head_dim}); "
                    f"got {tuple(tensor.shape)}"
                )
            if tensor.dtype != value.dtype or tensor.device != value.device:
                raise ValueError(
                    f"{card.name}: query, key and value must share dtype and device; "
                    f"got {name} {tensor.dtype} on {tensor.device}, value {value.dtype} on {value.device}"
                )
            if tensor.shape[0] != value.shape[0]:
                raise ValueError(
                    f"{card.name}: query, key and value must have one batch size; "
                    f"got {name} {tensor.shape[0]}, value {value.shape[0]}"
                )
        keys = value.shape[2]
        if key is not None and key.shape[2] != keys:
            raise ValueError(f"{card.name}: key and value must have the same length; got {key.shape[2]} and {keys}")
        queries = keys if query is None else query.shape[2]
        if can.shares_query_key and key is not None and key is not query:
            raise UnsupportedError(
                f"{card.name} uses one tensor for queries and keys, so key must be the query tensor or None; got another "
                "tensor. Pass the same tensor twice"
            )
        wanted = {stream.name: stream for stream in card.streams(g, self.options)}
        if set(streams) != set(wanted):
            raise ValueError(
                f"{card.name} must get the further inputs {sorted(wanted)} as keyword arguments; got {sorted(streams)}. Use "
                "MultiHeadAttention, which computes them"
            )
        for name, stream in wanted.items():
            length = queries if stream.of == "queries" else keys
            held = length if stream.first is None else min(max(stream.first - start, 0), length)
            shape = (value.shape[0], g.heads, held, 1 if stream.per_head else g.head_dim)
            check_floating(card.name, f"stream {name}", streams[name])
            if streams[name].shape != shape:
                raise ValueError(f"{card.name}: the input {name} must have shape {shape}; got {tuple(streams[name].shape)}")
        self.check_device(value)
        return queries

    def check_device(self, value: Tensor) -> None:
        """Raise an error if the implementation cannot run on the device of ``value``. If ``auto`` chose the implementation, switch
        to an implementation that runs on this device.

        Raises:
            UnsupportedError: the caller named the implementation, and it does not run on this device.
        """
        device, dtype = value.device, autocast_dtype(value)
        reason = unavailable(self.implementation, device, dtype)
        if self.chosen_for is not None and (reason or device.type not in (self.chosen_for, "meta")):
            self.use(choose_implementation(self.card, self.geometry, self.options, device, dtype))
            self.chosen_for = device.type
        elif reason:
            offered = ", ".join(self.card.implementations)
            raise UnsupportedError(f"{self.card.name}: {reason}. Choose another implementation of {offered}")


def _no_steps(card: AttentionCard) -> str:
    return (
        f"{card.name} cannot be called step by step, because it has no recurrent state. Give it the whole sequence at once, or "
        "choose a stepwise mechanism"
    )

"""Module that replaces the softmax attention of an attention module of transformers by a mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import Attention, UnsupportedError
from attn_zoo.integrations.transformers.description import NAME
from attn_zoo.integrations.transformers.sites import Site, projection, scaling_of
from attn_zoo.layer.projections import project_stream
from attn_zoo.short_convolution import ShortConvolution

if TYPE_CHECKING:  # transformers is an extra
    from attn_zoo.integrations.transformers.state_cache import StateLayer


class Attached(nn.Module):
    """Module that applies a mechanism to the projected queries, keys and values of an attention module of transformers.

    It is a submodule of the model, so it is trained, moved and saved with the model.

    Args:
        mechanism: mechanism that is built for the heads of the attention module.
        site: description of the attention module.
        convolution: short convolution that is applied to the tokens before their projections.

    Raises:
        UnsupportedError: the weights of an extra projection (stream) must start as a copy of those of a projection that the
            attention module does not have.
    """

    def __init__(self, mechanism: Attention, site: Site, convolution: ShortConvolution | None = None) -> None:
        super().__init__()
        self.mechanism, self.convolution = mechanism, convolution
        self.newest = _over_cached_keys(mechanism) if convolution is None else None
        """Mechanism for one new token over cached keys; None if it does not support this, or if a convolution needs past tokens."""
        self.recurrent = self.newest is None and mechanism.geometry.causal and mechanism.card.can.stepwise
        """True if the cache holds a recurrent state in place of keys and values."""
        self.name, self.rate = site.name, site.dropout
        self.crosses = mechanism.crosses = site.crosses
        self.head_dim, self.groups = site.head_dim, site.heads // site.key_heads
        self.scaling = scaling_of(site.module, site.head_dim)
        self.streams = mechanism.card.streams(mechanism.geometry, mechanism.options)
        self.stream_projections = nn.ModuleDict()
        for stream in self.streams:
            weight, bias = projection(site, stream.starts_as)
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device=weight.device, dtype=weight.dtype)
            linear.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
            self.stream_projections[stream.name] = linear
        self.tokens: tuple[Tensor, Tensor] | None = None
        """Tokens of the queries and of the keys, from ``hand_tokens`` to the streams of the same call."""
        self.carried: StateLayer | None = None
        """Cache layer with the state, during a call."""
        self.continued = False
        """True after the mechanism continued from a state in the present call of the attention module."""
        self.length: int | None = None
        """Number of tokens in the present call of the attention module, if a convolution or streams read them."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or pickle. It holds neither tokens nor a cache, because they belong to one call, and a
        call that raised an error leaves them behind.
        """
        return {**self.__dict__, "tokens": None, "carried": None}

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch key_heads keys head_dim"],
        value: Float[Tensor, "batch key_heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
        scaling: float | None,
    ) -> Float[Tensor, "batch queries heads head_dim"]:
        """Return the outputs of the mechanism.

        Args:
            query, key, value: projected tokens, after any rotation by position. Grouped heads of keys and values are repeated here.
            key_valid: True for a real token.
            scaling: factor by which query · key is multiplied. None means the module's default.

        Raises:
            UnsupportedError: the mechanism does not support the call.
        """
        card = self.mechanism.card
        if self.length not in (None, query.shape[2]):
            raise UnsupportedError(
                f"{self.name} must attend to its {self.length} tokens at once, because a short convolution or {card.name} reads "
                f"them together, but it attends to {query.shape[2]}, as with packed sequences. Give one sequence or image per call"
            )
        if self.groups > 1:
            key, value = (tensor.repeat_interleave(self.groups, dim=1) for tensor in (key, value))
        # Mechanisms divide the scores by √d; any other factor of the model's scaling is multiplied into the queries.
        factor = (self.scaling if scaling is None else scaling) * self.head_dim**0.5
        if abs(factor - 1.0) > 1e-12:
            if card.can.shares_query_key:
                raise UnsupportedError(
                    f"{self.name} must scale its scores by 1/√d, because {card.name} uses one tensor for queries and keys, and "
                    "so supports no other factor. Choose another mechanism"
                )
            query = query * factor
        key = query if card.can.shares_query_key else key
        layer, self.carried = self.carried, None
        if layer is not None:
            return self._step(query, key, value, layer).transpose(1, 2).contiguous()
        if self.continued:
            raise UnsupportedError(
                f"{self.name} calls attention more than once for each token, but the cache has one state, which {card.name} has "
                "already read. Call the model, or generate, with use_cache=False"
            )
        mechanism = self.mechanism if self.newest is None or query.shape[2] == key.shape[2] else self.newest
        mixed = mechanism(query, key, value, key_valid=key_valid, streams=self._project_streams(key_valid))
        return mixed.transpose(1, 2).contiguous()

    def _step(self, query: Tensor, key: Tensor, value: Tensor, layer: StateLayer) -> Tensor:
        """Compute the output for the new tokens, and store the new state in the cache layer."""
        state = layer.state
        self.continued = state is not None
        if state is None:
            state = self.mechanism.initial_state(len(value), dtype=value.dtype, device=value.device)
        out, layer.state = self.mechanism.step(query, key, value, state, **self._project_streams(None, state.position))
        return out

    def _project_streams(self, key_valid: Tensor | None, start: int = 0) -> Mapping[str, Tensor]:
        """Project the tokens of the call to the streams. ``start`` is the number of tokens that were read in earlier steps."""
        if not self.streams:
            return {}
        if self.tokens is None:
            raise UnsupportedError(
                f"{self.name} must call attention once for its tokens, because {self.mechanism.card.name} has further projections "
                "of them, but it calls attention again. List only other modules in layers=, or choose another mechanism"
            )
        (tokens, source), self.tokens = self.tokens, None
        if key_valid is not None:
            # Padding is set to zero, because a NaN in masked tokens would still give weight gradients of 0 · NaN.
            source = source.masked_fill(~key_valid[..., None], 0)
            tokens = tokens if self.crosses else source
        of = {"queries": tokens, "keys": source}
        linears, head_dim = self.stream_projections, self.head_dim
        return {s.name: project_stream(s, linears[s.name], of[s.of], head_dim, start) for s in self.streams}


def _over_cached_keys(mechanism: Attention) -> Attention | None:
    """Return a bidirectional copy of an exact causal mechanism, so that one new token can attend to all cached keys. Return None
    for other mechanisms.

    Also return None for a mechanism with parameters, such as sinks, because the copy would not follow changes of the parameters.
    """
    can, geometry = mechanism.card.can, mechanism.geometry
    if not (geometry.causal and can.exact and can.cross and can.any_length) or next(mechanism.parameters(), None) is not None:
        return None
    return type(mechanism)(replace(geometry, causal=False), mechanism.options, mechanism.implementation)


def attached_to(module: nn.Module) -> Attached | None:
    """Return the ``Attached`` module of an attention module, or None if its attention was not replaced."""
    attached = getattr(module, "zoo", None)
    return attached if isinstance(attached, Attached) else None


def hand_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Prepare the cache of an attention module, convolve its tokens and keep them. The extra projections
    (streams) of the mechanism need them later.

    This hook runs before the forward call of the module, because transformers does not pass the tokens to the attention interface.

    Returns:
        The module's arguments with convolved tokens, or None if they do not change.

    Raises:
        UnsupportedError: the mechanism needs all tokens in one call, the cache has a fixed size, or a convolution or a stream needs
            the tokens of a module that does not get them in one tensor.
    """
    attached = attached_to(module)
    if attached is None or module.config._attn_implementation != NAME:  # type: ignore[union-attr]
        return None
    # The argument is called past_key_values before transformers 5.24, and layer_past in GPT-NeoX.
    caches = () if attached.crosses else (kwargs.get(name) for name in ("cache", "past_key_values", "layer_past"))
    cache = next((given for given in caches if given is not None), None)
    mask, convolution = _mask_of(args, kwargs), attached.convolution
    layer = None if cache is None else _open_cache(attached, module, cache, mask)
    tokens: Any = kwargs.get("hidden_states", args[0] if args else None)
    if convolution is not None or attached.streams:
        _check_tokens(attached, args, kwargs)
        attached.length = tokens.shape[1]
    if convolution is not None and layer is not None:
        tokens, layer.tail = convolution.step(tokens, tokens[:, :0] if layer.tail is None else layer.tail)
    elif convolution is not None:
        tokens = convolution(tokens, mask)
    attached.carried, attached.continued = layer, False
    if attached.streams:
        attached.tokens = (tokens, _source_of(attached, kwargs) if attached.crosses else tokens)
    if convolution is None:
        return None
    return (args, {**kwargs, "hidden_states": tokens}) if "hidden_states" in kwargs else ((tokens, *args[1:]), kwargs)


def _check_tokens(attached: Attached, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error if an attention module does not get its tokens in one tensor, positionally or as ``hidden_states``.

    Raises:
        UnsupportedError: there is no such tensor, or queries, keys and values are projected from several tensors.
    """
    named = {f"argument {at}": given for at, given in enumerate(args, 1)} | {"hidden_states": kwargs.get("hidden_states")}
    if sum(isinstance(given, Tensor) and given.is_floating_point() and given.dim() == 3 for given in named.values()) == 1:
        return
    shapes = {name: tuple(given.shape) for name, given in (named | kwargs).items() if isinstance(given, Tensor)}
    reason, advice = f"{attached.mechanism.card.name} has further projections of them", "choose another mechanism"
    if attached.convolution is not None:
        reason, advice = "a short convolution reads them", "use short_convolution=0"
    raise UnsupportedError(
        f"{attached.name} must get its tokens in one tensor of shape (batch, length, dim), as its argument hidden_states or "
        f"without a name, because {reason}; got {', '.join(f'{name} of shape {shape}' for name, shape in shapes.items())}. List "
        f"only other modules in layers=, or {advice}"
    )


def _source_of(attached: Attached, kwargs: dict[str, Any]) -> Tensor:
    """Return the tokens from which a cross-attention module projects its keys.

    Raises:
        UnsupportedError: there are no such tokens.
    """
    given = (kwargs.get(name) for name in ("encoder_hidden_states", "key_value_states"))
    source: Tensor | None = next((tensor for tensor in given if tensor is not None), None)
    if source is None:
        raise UnsupportedError(
            f"{attached.name} must get the tokens of its keys as encoder_hidden_states or key_value_states, because "
            f"{attached.mechanism.card.name} has further projections of them. List only other modules in layers=, or choose "
            "another mechanism"
        )
    return source


def _open_cache(attached: Attached, module: Any, cache: Any, mask: Tensor | None) -> StateLayer | None:
    """Prepare the cache for a mechanism.

    Returns:
        The cache layer with the recurrent state, if the mechanism is recurrent, is evaluated and gets no padding. Otherwise None,
            because the whole sequence is processed at once or cached keys are used.

    Raises:
        UnsupportedError: the mechanism cannot continue from this cache.
    """
    name, reason = attached.mechanism.card.name, ""
    layer: StateLayer | None = None
    if attached.recurrent:
        from attn_zoo.integrations.transformers.state_cache import state_layer

        layer = state_layer(cache, module.layer_idx)
    if layer is not None:
        whole = (
            "the model was training" if module.training else "they include padding" if mask is not None and not mask.all() else ""
        )
        if not whole and not layer.closed:
            return layer
        reason = f"{name} has no state for the earlier tokens ({layer.closed or whole})" if layer.length > 0 else ""
        layer.closed = layer.closed or whole
    elif getattr(cache, "is_compileable", False) or (attached.mechanism.geometry.causal and attached.newest is None):
        reason = f"{name} cannot continue from this {type(cache).__name__}"
    if reason:
        raise UnsupportedError(f"{attached.name}: {reason}. Call the model, or generate, with use_cache=False")
    return None


def _mask_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the mask of real keys that ``key_mask`` made. It is the only boolean matrix among the arguments of the module."""
    candidates = (kwargs.get("attention_mask"), *args[1:])
    return next((mask for mask in candidates if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 2), None)


def refuse_weights(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error if attention weights are requested. This hook runs before the forward call of a model.

    Raises:
        UnsupportedError: ``output_attentions`` is True.
    """
    if kwargs.get("output_attentions") and model.config._attn_implementation == NAME:  # type: ignore[union-attr]
        raise UnsupportedError(
            "output_attentions must be False, because most mechanisms do not compute attention weights; got True. Run "
            "attn-zoo analyze matrix to see the matrix that a mechanism applies"
        )

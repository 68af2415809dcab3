"""Multi-head attention with any registered mechanism."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.checks import check_flag, check_number, check_shared_heads, check_text, check_whole
from attn_zoo.contract import (
    CompressingAttention,
    Geometry,
    UnknownNameError,
    UnsupportedError,
    check_dtype,
    check_floating,
    hide_rows_without_keys,
)
from attn_zoo.layer.order import Order, choose_order
from attn_zoo.layer.projections import OUTPUT_GATES, Projections, is_intercepted, is_plain
from attn_zoo.layer.states import LayerState, Remembered, check_layer_state
from attn_zoo.precision import autocast_dtype
from attn_zoo.registry import attentions, build_attention
from attn_zoo.short_convolution import ShortConvolution

CACHED_BYTES = 2**20
"""Size of the tokens in one block of queries, in bytes. With this size, a block and its temporary tensors fit the cache of one
core.
"""


class MultiHeadAttention(Projections):
    """Multi-head attention layer with any registered mechanism. Inputs and outputs have shape (batch, length, dim).

    The layer makes only the projections that the mechanism reads. A mechanism that shares queries and keys gets one projection for
    both. Some mechanisms read further inputs (streams) beside queries, keys and values; each has a projection of its own.

    Some mechanisms compress the length of the tokens X by a matrix E. They can compress before or after the projection W to keys or
    values (``order``), because (E X) W = E (X W).

    Args:
        dim: width of the tokens, divisible by ``heads``.
        heads: number of heads.
        attention: name of a registered mechanism.
        length: number of queries for which the mechanism is built.
        context_length: number of keys for which the mechanism is built, in cross-attention. None means self-attention.
        context_dim: width of the tokens of the context. None means ``dim``.
        causal: if True, position i sees positions up to i only.
        implementation: name of an implementation on the mechanism's card. ``auto`` means the first one that can run, in an order
            that is fixed for each device.
        fused: if True, one linear map computes queries, keys and values together (self-attention only).
        bias: if True, projections have a bias.
        output_dropout: probability of setting an output to zero in training. Dropout of attention weights is an option of the
            mechanism, ``dropout``.
        order: whether tokens are projected first or compressed along the length first; see ``Order``. ``compress_first`` raises an
            error if the mechanism or its implementation does not support it. A call of the layer raises one, too, if a projection
            to keys or values is an adapter, is quantised or parametrised, or has hooks.
        short_convolution: width of a depthwise convolution of the tokens before they are projected (self-attention only), in
            positions. 0 means none; 4 is usual. It is initialised as the identity; see ``ShortConvolution``.
        output_gate: ``elementwise`` multiplies each channel of the mechanism's output, before the output projection, by σ(x W_g +
            b). Here x are the tokens from which queries are projected. ``headwise`` has one such factor per head. Qiu et al. 2025,
            arXiv:2505.06708.
        key_value_heads: number of heads of keys and values. Each of them serves the same number of consecutive heads of queries:
            grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245). 1 gives multi-query attention (Shazeer 2019,
            arXiv:1911.02150). 0 means as many as ``heads``. Streams initialised as copies of keys or values have as many heads as
            keys.
        latent_dim: width of a latent vector RMSNorm(x W) of every token x. Keys, values and their streams are projected from it:
            multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2). 0 means none. A cache of keys and
            values holds the latent instead. Recurrent states that hold sums, and caches of compressed keys and values, hold no
            latents.
            Differs: there is no rotary key beside the latent, because the layer has no rotary positions. Queries are projected from
            the tokens, not from a latent.
        **options: options of the mechanism, which are the fields of ``card(attention).options``.

    Raises:
        ValueError: a size, rate, order, gate or option breaks its rule, ``dim`` is not divisible by ``heads``, or ``fused`` is set
            with a context or a latent.
        UnknownNameError: there is no such mechanism, implementation or option.
        UnsupportedError: the mechanism does not declare a requested capability, or a short convolution is requested with a context.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        attention: str = "softmax",
        *,
        length: int,
        context_length: int | None = None,
        context_dim: int | None = None,
        causal: bool = False,
        implementation: str = "auto",
        fused: bool = False,
        bias: bool = True,
        output_dropout: float = 0.0,
        order: str = "auto",
        short_convolution: int = 0,
        output_gate: str = "none",
        key_value_heads: int = 0,
        latent_dim: int = 0,
        **options: Any,
    ) -> None:
        for name, count in {"dim": dim, "heads": heads, "length": length}.items():
            check_whole(name, count)
        for name, given in {"context_length": context_length, "context_dim": context_dim}.items():
            if given is not None:
                check_whole(name, given)
        for name, flag in {"causal": causal, "fused": fused, "bias": bias}.items():
            check_flag(name, flag)
        check_number("output_dropout", output_dropout)
        check_whole("short_convolution", short_convolution, 0)
        check_text("output_gate", output_gate, OUTPUT_GATES)
        if dim % heads:
            raise ValueError(f"dim must be divisible by heads, and both must be at least 1; got dim={dim} and heads={heads}")
        if not 0.0 <= output_dropout < 1.0:
            raise ValueError(
                "output_dropout must be at least 0 and less than 1, because it is the share of outputs set to zero; got "
                f"{output_dropout}"
            )
        crosses = context_length is not None or context_dim is not None
        if fused and crosses:
            raise ValueError(
                "fused must be False with a context, because fused=True computes queries, keys and values from the same "
                "tokens. Use fused=False"
            )
        check_whole("latent_dim", latent_dim, 0)
        if fused and latent_dim:
            raise ValueError(
                "latent_dim must be 0 with fused=True, because one projection computes queries, keys and values; got "
                f"{latent_dim}. Use fused=False or latent_dim=0"
            )
        keys = length if context_length is None else context_length
        check_shared_heads("MultiHeadAttention", key_value_heads, heads)
        geometry = Geometry(heads, dim // heads, length, keys, causal, key_value_heads, latent_dim)
        if isinstance(attention, str) and re.search(r"[\[:+*]", attention):
            advice = "Give options as keyword arguments; brackets and hybrids are for the command line and replace_attention."
            raise UnknownNameError("attention", attention, attentions(), advice)
        device = torch.get_default_device()
        mechanism = build_attention(attention, geometry, implementation=implementation, device=device, **options)
        if crosses and not mechanism.card.can.cross:
            raise UnsupportedError(
                f"{attention} cannot be built with a context, because it computes queries and keys from the same tokens. "
                "Build it without a context"
            )
        if mechanism.card.can.shares_query_key and geometry.key_value_dim != dim:
            raise UnsupportedError(
                f"key_value_heads must be 0 (as many as heads) for {attention}, because one projection computes queries and "
                f"keys; got {key_value_heads} for {heads} heads"
            )
        if mechanism.card.can.shares_query_key and latent_dim:
            raise UnsupportedError(
                f"latent_dim must be 0 for {attention}, because one projection computes queries and keys; got {latent_dim}"
            )
        source = dim if context_dim is None else context_dim
        super().__init__(mechanism, dim, source, fused=fused, bias=bias, output_gate=output_gate)
        self.crosses = mechanism.crosses = crosses
        self.start_streams()
        self.short_convolution = self._make_short_convolution(short_convolution)
        self.output_dropout = nn.Dropout(output_dropout)
        self._asked_order = Order(order)
        self.set_order()

    def _make_short_convolution(self, width: int) -> ShortConvolution | None:
        if width == 0:
            return None
        if self.crosses:
            raise UnsupportedError(
                "short_convolution must be 0 for a layer that reads a context, because it runs over the tokens of "
                f"self-attention; got {width}"
            )
        return ShortConvolution(self.dim, width, causal=self.mechanism.geometry.causal)

    @torch.no_grad()
    def start_streams(self) -> None:
        """Set each stream (extra projection of the mechanism) to a copy of the projection that the stream's ``starts_as`` names.
        Call this after loading weights that lack the streams.

        Raises:
            UnsupportedError: the projection to be copied is an adapter, is quantised or parametrised, or has hooks.
        """
        for stream in self.streams:
            weight, bias = self._parameters_of(stream.starts_as)
            linear = self.stream_projections.get_submodule(stream.name)
            linear.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})

    def forward(
        self,
        tokens: Float[Tensor, "batch queries dim"],
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        *,
        key_valid: Bool[Tensor, "batch keys"] | None = None,
        remembered: Remembered | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the outputs of attention from ``tokens`` to ``context``. Without a context, the tokens attend to themselves or to
        remembered keys and values.

        Args:
            tokens: source of the queries.
            context: source of keys and values. It must be given if and only if the layer was built with a context.
            key_valid: True for a real token of the context. Padded tokens may hold anything, NaN included. In self-attention, the
                outputs at padded positions are finite, but have no meaning.
            remembered: result of ``remember``, used in place of the context and of ``key_valid``. Its mask concerns keys, so all
                ``tokens`` are real. A layer with a short convolution needs as many tokens as were remembered, padded at the same
                positions.

        Raises:
            ValueError: a shape or dtype does not fit, or a context is missing or unexpected.
            UnsupportedError: the call needs a capability that the mechanism does not declare, or the layer has a short convolution
                and gets another number of tokens than were remembered.
        """
        if remembered is not None:
            if context is not None or key_valid is not None:
                raise ValueError(
                    "context and key_valid must not be given with remembered, because remembered holds both. Leave both out"
                )
            return self._recall(tokens, remembered)
        source = self._source(tokens, context)
        self.mechanism.check_lengths(source.shape[0], tokens.shape[1], source.shape[1], key_valid)
        source = self._read(source, key_valid)
        tokens = tokens if self.crosses else source
        source = self._latent_of(source)
        if self._compresses(source.shape[1]):
            self.mechanism.check_device(source)
            return self._attend_compressed(tokens, *self._compressed_key_and_value(source, key_valid), key_valid)
        query, key, value = self._project_all(tokens, source)
        streams = {**self._project_streams("queries", tokens), **self._project_streams("keys", source)}
        return self._finish(self._mix(query, key, value, streams, key_valid), tokens)

    def remember(
        self, context: Float[Tensor, "batch keys context_dim"], *, key_valid: Bool[Tensor, "batch keys"] | None = None
    ) -> Remembered:
        """Return the keys, values and streams (extra inputs) of a context. Any number of later calls can use them through the
        argument ``remembered``.

        ``layer(tokens, remembered=layer.remember(tokens))`` equals ``layer(tokens)``. Gradients flow through the cached tensors.

        Args:
            context: source of keys and values. In self-attention these are the tokens.
            key_valid: True for a real token of the context, as in ``forward``.

        Raises:
            ValueError: a shape or dtype does not fit.
            UnsupportedError: queries and keys of the mechanism share one projection, or the call needs a capability that the
                mechanism does not declare.
        """
        self.check_remembers()
        check_floating(self.mechanism.card.name, "context", context)
        if context.dim() != 3 or context.shape[-1] != self.context_dim:
            raise ValueError(f"the context must have shape (batch, length, dim={self.context_dim}); got {tuple(context.shape)}")
        self._check_dtype("context", context)
        batch, length = context.shape[:2]
        self.mechanism.check_lengths(batch, length, length, key_valid)
        source = self._latent_of(self._read(context, key_valid))
        if self._compresses(length):
            self.mechanism.check_device(source)
            return Remembered(*self._compressed_key_and_value(source, key_valid), {}, key_valid, length, compressed=True)
        if self.latent is not None:
            return Remembered(None, None, {}, key_valid, length, source)
        return Remembered(*self._kept(source), key_valid, length)

    def check_remembers(self) -> None:
        """Raise an error if the keys of this layer cannot be reused for other queries.

        Raises:
            UnsupportedError: queries and keys of the mechanism share one projection.
        """
        card = self.mechanism.card
        if card.can.shares_query_key:
            raise UnsupportedError(
                f"{card.name} computes queries and keys by one projection, so its keys cannot be stored for later queries. "
                "Compute both anew, or choose another mechanism"
            )

    def initial_state(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LayerState:
        """Return the recurrent state before the first token of ``batch`` sequences. By default, dtype and device are those of the
        weights.

        Raises:
            ValueError: ``batch`` is not an integer of at least 0, or ``dtype`` is not a dtype of floating-point numbers.
            UnsupportedError: the layer cannot process tokens in steps; see ``step``.
        """
        self._check_steps()
        check_whole("batch", batch, 0)
        if dtype is not None:
            check_dtype(dtype)
        held = (*self.out.parameters(), *self.parameters(), *self.buffers())  # a quantised layer may hold no floating-point numbers
        weight = next((tensor for tensor in held if tensor.is_floating_point()), torch.empty(0, device="cpu"))
        dtype, device = dtype or weight.dtype, device or weight.device
        projected = autocast_dtype(torch.empty(0, dtype=dtype, device=device))
        carried = self.mechanism.initial_state(batch, dtype=projected, device=device)
        return LayerState(carried, torch.zeros(batch, 0, self.dim, dtype=dtype, device=device))

    def step(self, tokens: Float[Tensor, "batch n dim"], state: LayerState) -> tuple[Float[Tensor, "batch n dim"], LayerState]:
        """Return the outputs of the next tokens, and the state after these tokens. The outputs equal those of one causal call over
        the whole sequence.

        Args:
            tokens: the next tokens, without padding.
            state: the state from ``initial_state`` or from the previous step. The step does not modify it. Gradients flow through
                it.

        Raises:
            ValueError: a shape, dtype or state does not fit, or there is no token.
            UnsupportedError: the mechanism does not declare ``stepwise``, the layer was built with a context or with
                ``causal=False``, or the step ends beyond the length for which the layer was built.
        """
        self._check_steps()
        self._check_tokens(tokens)
        check_layer_state(
            self.mechanism.card.name, state, tokens, 0 if self.short_convolution is None else self.short_convolution.before
        )
        tail, start = state.tail, state.position
        if self.short_convolution is not None:
            tokens, tail = self.short_convolution.step(tokens, tail)
        source = self._latent_of(tokens)
        query, key, value = self._project_all(tokens, source)
        streams = {**self._project_streams("queries", tokens, start), **self._project_streams("keys", source, start)}
        key, value, streams = self._for_all_heads(key, value, streams)
        mixed, carried = self.mechanism.step(query, key, value, state.mechanism, **streams)
        return self._finish(mixed, tokens), LayerState(carried, tail)

    def resize_length(self, length: int) -> None:
        """Set the number of keys to ``length``, in place. If the numbers of queries and keys were equal, set both.

        Weights that are stored by position become new parameters, so create the optimiser afterwards.

        Raises:
            UnsupportedError: stored weights cannot be converted to the new length.
        """
        self.mechanism.resize_length(length)
        self.set_order()

    def __prepare_scriptable__(self) -> None:
        """Raise an error, because TorchScript is not supported. TorchScript calls this method on every module before it compiles
        it.
        """
        raise UnsupportedError(f"{self.mechanism.card.name}: TorchScript is not supported; use torch.compile or torch.export")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, order={self.order.value}"

    def set_order(self) -> None:
        """Choose whether tokens are projected or compressed first. Call this again after changing how keys and values are
        compressed.
        """
        self._chosen_order = choose_order(self._asked_order, self.mechanism, self.source_dim)

    @property
    def order(self) -> Order:
        """Order in which tokens are projected and compressed. It is ``project_first`` as long as the mechanism must be called,
        because it is wrapped in another module, has hooks or another ``forward``, or because its implementation is ``definition``.
        If ``auto`` was asked for, it is ``project_first`` as long as a projection to keys or values must be called, such as an
        adapter or a projection with hooks.
        """
        compresses = self._chosen_order is Order.compress_first
        return Order.project_first if compresses and self._must_project() else self._chosen_order

    def _must_project(self) -> bool:
        """Return True if the mechanism must be called with whole keys and values, or if a projection to keys or values must be
        called, so that it cannot be applied to compressed tokens, and ``order`` was left to the layer.
        """
        mechanism = self.mechanism
        if not isinstance(mechanism, CompressingAttention) or is_intercepted(mechanism) or mechanism.implementation == "definition":
            return True
        if self._asked_order is Order.compress_first:
            return False  # _parameters_of raises an error
        return not (is_plain(self._projection_of("key")) and is_plain(self._projection_of("value")))

    def _recall(self, tokens: Tensor, remembered: Remembered) -> Tensor:
        self._check_tokens(tokens)
        batch, valid = remembered.batch, remembered.key_valid
        if tokens.shape[0] != batch:
            raise ValueError(
                f"remembered and tokens must have the same batch size; got {batch} and tokens of shape {tuple(tokens.shape)}"
            )
        self.mechanism.check_lengths(batch, tokens.shape[1], remembered.length, valid)
        if self.makes_queries and not self.crosses:
            tokens = self._read_again(tokens, remembered)
        if remembered.compressed:
            assert remembered.key is not None and remembered.value is not None
            self.mechanism.check_device(tokens)
            return self._attend_compressed(tokens, remembered.key, remembered.value, valid)
        query = self._project("query", tokens) if "query" in self.reads else None
        key, value, kept = remembered.key, remembered.value, remembered.streams
        if remembered.latent is not None:
            key, value, kept = self._kept(remembered.latent)
        assert value is not None
        streams = {**self._project_streams("queries", tokens), **kept}
        return self._finish(self._mix(query, key, value, streams, valid), tokens)

    def _read_again(self, tokens: Tensor, remembered: Remembered) -> Tensor:
        """Return tokens whose keys are remembered, or other tokens, before they are projected to queries."""
        length, valid = tokens.shape[1], remembered.key_valid
        if self.short_convolution is not None:
            if length != remembered.length:
                raise UnsupportedError(
                    f"{self.mechanism.card.name}: tokens must be as many as the {remembered.length} remembered ones, because the "
                    f"short convolution reads the neighbours of a token; got {length}. Pass all tokens and select outputs, or "
                    "build the layer with short_convolution=0"
                )
            return self._read(tokens, valid)
        if valid is None or length != remembered.length:
            return tokens
        # Tokens may be the remembered ones, whose padding may hold NaN, or others, which are real where the context is padded.
        return self._read(tokens, valid | tokens.isfinite().all(dim=-1))

    def _mix(
        self, query: Tensor | None, key: Tensor | None, value: Tensor, streams: Mapping[str, Tensor], valid: Tensor | None
    ) -> Tensor:
        """Apply the mechanism to keys, values and streams with as many heads as they are projected to."""
        key, value, streams = self._for_all_heads(key, value, streams)
        mixed: Tensor = self.mechanism(query, key, value, key_valid=valid, streams=streams)
        return mixed

    def _check_tokens(self, tokens: Tensor) -> None:
        check_floating(self.mechanism.card.name, "tokens", tokens)
        if tokens.dim() != 3 or tokens.shape[-1] != self.dim:
            raise ValueError(f"tokens must have shape (batch, length, dim={self.dim}); got {tuple(tokens.shape)}")
        self._check_dtype("tokens", tokens)

    def _check_steps(self) -> None:
        if self.crosses:
            raise UnsupportedError(
                "a layer with a context cannot process tokens in steps, because its keys do not come from the tokens. Call "
                "forward with all tokens"
            )
        self.mechanism.check_steps()

    def _source(self, tokens: Tensor, context: Tensor | None) -> Tensor:
        self._check_tokens(tokens)
        if self.crosses != (context is not None):
            built = "with" if self.crosses else "without"
            advice = (
                "Pass the other sequence as context="
                if self.crosses
                else "Pass a mask of padding as key_valid=, or build the layer with context_length="
            )
            raise ValueError(f"forward must be called {built} a context, because the layer was built {built} one. {advice}")
        if context is None:
            return tokens
        check_floating(self.mechanism.card.name, "context", context)
        if context.dim() != 3 or context.shape[-1] != self.context_dim or context.shape[0] != tokens.shape[0]:
            raise ValueError(
                f"context must have shape (batch={tokens.shape[0]}, length, {self.context_dim}); got {tuple(context.shape)}"
            )
        self._check_dtype("context", context)
        return context

    def _read(self, source: Tensor, valid: Tensor | None) -> Tensor:
        """Return the tokens before projection or compression: convolved if the layer has a short convolution, and zero at
        padding.
        """
        if self.short_convolution is not None:
            return self.short_convolution(source, valid)
        # Zeros, not just a mask: a NaN in padding would reach the weights' gradients as 0 · NaN.
        return source if valid is None else source.masked_fill(~valid[..., None], 0)

    def _finish(
        self, mixed: Float[Tensor, "batch heads queries head_dim"], tokens: Float[Tensor, "batch queries dim"]
    ) -> Float[Tensor, "batch queries dim"]:
        return self.output_dropout(self.out(self._gated(self._merge(mixed), tokens)))

    def _compresses(self, keys: int) -> bool:
        """Return True if tokens are compressed before they are projected. Without keys, return False; the mechanism then
        returns zeros.
        """
        return self.order is Order.compress_first and keys > 0

    def _attend_compressed(self, tokens: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        mechanism, key, value = self.mechanism, self._shared(key), self._shared(value)
        assert isinstance(mechanism, CompressingAttention)
        valid = mechanism.compressed_valid(key_valid)

        def attend(rows: Tensor) -> Tensor:
            mixed = mechanism.attend_compressed(self._project("query", rows), key, value, valid)
            return self._finish(hide_rows_without_keys(mixed, key_valid), rows)

        if torch.is_grad_enabled() or tokens.device.type != "cpu":
            return attend(tokens)
        # Queries are independent of each other. Without gradients, blocks of queries keep temporaries in the caches of the CPU, and
        # only the output is as long as the sequence.
        blocks = tokens.split(max(1, CACHED_BYTES // max(1, tokens.shape[0] * self.dim * tokens.element_size())), dim=1)
        # Hooks get all queries in one call. Projections that quantise their inputs do, too.
        reading = (self._projection_of("query"), self.out, self.out if self.gate is None else self.gate)
        if len(blocks) == 1 or not all(map(is_plain, reading)):
            return attend(tokens)
        out, at = None, 0
        for block in blocks:
            attended = attend(block)
            out = attended.new_empty(tokens.shape) if out is None else out
            out[:, at : (at := at + block.shape[1])] = attended
        assert out is not None
        return out

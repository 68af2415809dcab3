"""Attention layer of attn-zoo that timm can call like its own attention."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError, check_dtype
from attn_zoo.integrations.timm.masks import key_valid_of
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import card, stated_options


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of one call of ``attention_layer``, stored with the returned class."""

    name: str
    length: int
    implementation: str
    causal: bool
    fused: bool
    order: str
    short_convolution: int
    output_gate: str
    options: Mapping[str, Any]


class BoundType(type):
    """Metaclass of the classes that ``attention_layer`` returns. These classes cannot be imported by name, so pickle stores the
    ``Settings`` of a class and builds the class again.
    """


class TimmAttention(MultiHeadAttention, metaclass=BoundType):
    """``MultiHeadAttention`` layer that timm can call like its own attention. timm's models build it through ``attention_layer``.

    The layer loads timm's checkpoints, without the projections that the mechanism does not read. Streams (extra projections) then
    start as copies of timm's projections, and the mechanism's own parameters keep their initial values.

    Args:
        dim: width of the tokens, divisible by ``num_heads``.
        qkv_bias, proj_bias: if True, the input projections, or the output projection, have a bias.
        qk_norm: if True, ``norm_layer(head_dim)`` is applied to queries and keys that the mechanism reads, and to streams that are
            initialised as queries or keys, unless they have one number per head. Keys are then projected before they are
            compressed.
        scale_norm: if True, ``norm_layer(dim)`` is applied before the output projection.
        attn_drop: dropout rate of attention weights, unless the option ``dropout`` is given.
        proj_drop: dropout rate of the output.
        attn_head_dim, dim_out, gated: arguments of timm's attention. A value that would change the layer raises an error.

    Raises:
        ValueError: a size or rate is out of its range, or a norm is requested without ``norm_layer``.
        UnsupportedError: the mechanism does not support an argument.
    """

    settings: ClassVar[Settings]

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        gated: bool = False,
    ) -> None:
        bound = self.settings
        if dtype is not None:
            check_dtype(dtype)
        self._refuse_shape(dim, num_heads, attn_head_dim, dim_out, gated)
        if (qk_norm or scale_norm) and norm_layer is None:
            raise ValueError(
                f"{bound.name} in timm: norm_layer must be a class if qk_norm or scale_norm is set, because it computes this "
                "norm; got None"
            )
        _leave_whole()
        # `auto` chooses an implementation for this device, except for meta, where nothing can run.
        building = torch.device(device) if device is not None and torch.device(device).type != "meta" else nullcontext()
        with building:
            super().__init__(
                dim,
                num_heads,
                bound.name,
                length=bound.length,
                causal=bound.causal,
                implementation=bound.implementation,
                fused=bound.fused,
                bias=qkv_bias,
                output_dropout=proj_drop,
                order=self._order(qk_norm),
                short_convolution=bound.short_convolution,
                output_gate=bound.output_gate,
                **self._options(attn_drop),
            )
            self._set_output_bias(proj_bias)
            self._make_norms(qk_norm, scale_norm, norm_layer)
        self.to(device=device, dtype=dtype)

    @property
    def proj(self) -> nn.Linear:
        """Output projection, under the name that it has in timm."""
        return self.out

    def init_weights(self) -> None:
        """Initialise each stream (extra projection) as a copy of the projection that it starts from. timm calls this method after
        it has re-initialised every linear layer.
        """
        self.start_streams()

    def forward(  # type: ignore[override]  # timm's own signature: masks by keyword, no context
        self,
        tokens: Float[Tensor, "batch length dim"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the outputs of self-attention over the tokens.

        Args:
            attn_mask: padding mask; see ``key_valid_of``. Unlike in timm, it also applies if ``is_causal`` is True.
            is_causal: True if position i attends to positions up to i only. It must equal the ``causal`` of the layer.

        Raises:
            ValueError: a shape or dtype does not fit.
            UnsupportedError: the mask is not a padding mask, ``is_causal`` differs from the layer's ``causal``, or the mechanism
                does not support the number of tokens.
        """
        mechanism = self.mechanism
        if is_causal != mechanism.geometry.causal:
            raise UnsupportedError(_other_causality(mechanism.card.name, mechanism.card.can.causal, is_causal))
        self._refuse_length(tokens.shape[1])
        if attn_mask is None:
            return super().forward(tokens)
        batch, length = tokens.shape[:2]
        valid = key_valid_of(mechanism.card.name, attn_mask, batch=batch, length=length, causal=is_causal)
        return super().forward(tokens, key_valid=valid)

    def _refuse_shape(self, dim: int, heads: int, head_dim: int | None, dim_out: int | None, gated: bool) -> None:
        name = self.settings.name
        if head_dim is not None and head_dim * heads != dim:
            raise UnsupportedError(
                f"{name} in timm: attn_head_dim * num_heads must be dim={dim}; got attn_head_dim={head_dim} and num_heads={heads}"
            )
        if dim_out is not None and dim_out != dim:
            raise UnsupportedError(
                f"{name} in timm: dim_out must be dim={dim}, because the width of tokens cannot change; got {dim_out}"
            )
        if gated:
            raise UnsupportedError(
                f"{name} in timm: gated must be False, because a gate over the output is not supported; got True"
            )

    def _refuse_length(self, length: int) -> None:
        """Raise an error for a length that does not fit. The message names timm's ``set_input_size``."""
        card_, built = self.mechanism.card, self.mechanism.geometry.keys
        if card_.can.any_length or length == built or (card_.can.shorter and length < built):
            return
        raise UnsupportedError(
            f"{card_.name} was built for {built} tokens (patches and prefix tokens); got {length}. Build it with "
            f"length={length}, or call attn_zoo.integrations.timm.set_input_size(model, img_size=...) after the size of the "
            "images changes"
        )

    def _order(self, qk_norm: bool) -> str:
        order = self.settings.order
        if not qk_norm:
            return order
        if order == "compress_first":
            raise UnsupportedError(
                f"{self.settings.name} in timm: order='compress_first' cannot be combined with qk_norm, because each key must "
                "be normalised before keys are compressed. Use order='auto'"
            )
        return "project_first"

    def _options(self, attn_drop: float) -> dict[str, Any]:
        chosen = dict(self.settings.options)
        if attn_drop > 0:
            if not hasattr(card(self.settings.name).options, "dropout"):
                raise UnsupportedError(
                    f"{self.settings.name} has no option dropout, so attn_drop_rate must be 0. Use attn_drop_rate=0"
                )
            chosen.setdefault("dropout", attn_drop)
        return chosen

    def _make_norms(self, qk_norm: bool, scale_norm: bool, norm_layer: Any) -> None:
        self.qk_norm, head_dim = qk_norm, self.mechanism.geometry.head_dim
        self.q_norm = norm_layer(head_dim) if qk_norm and "query" in self.reads else None
        self.k_norm = norm_layer(head_dim) if qk_norm and "key" in self.reads else None
        self.norm = norm_layer(self.dim) if scale_norm else None

    def _set_output_bias(self, bias: bool) -> None:
        """Set the bias of the output projection, because ``MultiHeadAttention`` has biases in all projections or in none."""
        if not bias:
            self.out.register_parameter("bias", None)
        elif self.out.bias is None:
            self.out.bias = nn.Parameter(torch.zeros(self.dim))

    def _normed(self, name: str, split: Tensor) -> Tensor:
        norm = {"query": self.q_norm, "key": self.k_norm}.get(name)
        # Cast back: autocast computes norms in float32, and mechanisms require one dtype.
        return split if norm is None else norm(split).to(split.dtype)

    def _project(self, name: str, tokens: Tensor) -> Tensor:
        return self._normed(name, super()._project(name, tokens))

    def _project_all(self, tokens: Tensor, source: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        query, key, value = super()._project_all(tokens, source)
        if self.fused:  # the fused projection does not call _project
            query = None if query is None else self._normed("query", query)
            key = None if key is None else self._normed("key", key)
        return query, key, value

    def _project_streams(self, of: Literal["queries", "keys"], tokens: Tensor, start: int = 0) -> dict[str, Tensor]:
        projected = super()._project_streams(of, tokens, start)
        starts = {stream.name: stream.starts_as for stream in self.streams if not stream.per_head}
        return {name: self._normed(starts[name], split) if name in starts else split for name, split in projected.items()}

    def _merge(self, mixed: Float[Tensor, "batch heads queries head_dim"]) -> Float[Tensor, "batch queries dim"]:
        merged = super()._merge(mixed)
        return merged if self.norm is None else self.norm(merged)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}qkv.weight" in state_dict:
            self._translate(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _translate(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Rename the weights of timm's own attention to the names of attn-zoo, in place.

        Weights that the mechanism does not read are removed; parameters that timm's attention lacks get their present values.
        """
        for kind in ("weight", "bias"):
            if (packed := state_dict.pop(f"{prefix}qkv.{kind}", None)) is not None:
                parts = dict(zip(("query", "key", "value"), packed.chunk(3), strict=True))
                if self.fused:
                    state_dict[f"{prefix}projection.{kind}"] = torch.cat([parts[name] for name in self.reads])
                else:
                    state_dict |= {f"{prefix}projections.{name}.{kind}": parts[name] for name in self.reads}
                state_dict |= {f"{prefix}stream_projections.{s.name}.{kind}": parts[s.starts_as] for s in self.streams}
            if (out := state_dict.pop(f"{prefix}proj.{kind}", None)) is not None:
                state_dict[f"{prefix}out.{kind}"] = out
        if self.qk_norm:
            unread = tuple(f"{prefix}{name}_norm." for name, of in (("q", "query"), ("k", "key")) if of not in self.reads)
            for key in [key for key in state_dict if key.startswith(unread)]:
                del state_dict[key]
        for name in ("mechanism", "short_convolution", "gate"):
            part = getattr(self, name)
            for key, own in {} if part is None else part.state_dict(prefix=f"{prefix}{name}.").items():
                state_dict.setdefault(key, own)


def attention_layer(
    name: str,
    *,
    length: int,
    implementation: str = "auto",
    causal: bool = False,
    fused: bool = False,
    order: str = "auto",
    short_convolution: int = 0,
    output_gate: str = "none",
    **options: Any,
) -> type[TimmAttention]:
    """Return a class to pass as timm's ``attn_layer=``.

    timm passes the width and the number of heads to this class, but not the length. If an option concerns all layers together, call
    ``join_layers`` on the model. Call it also for ``differential`` and ``retention``, whose constants depend on the number of the
    layer.

    Args:
        name: name of a registered mechanism.
        length: number of tokens per image in every block: patches and prefix tokens, such as the class token.
        implementation: name of an implementation on the mechanism's card. ``auto`` means the first that can run, in a fixed order
            per device.
        causal: True if position i attends to positions up to i only. The model must then be called with ``is_causal=True``.
        fused: if True, one linear map computes queries, keys and values together.
        order: see ``attn_zoo.layer.Order``.
        short_convolution: width of the short convolution of ``MultiHeadAttention``, over the prefix tokens and then the patches in
            order.
        output_gate: gate of ``MultiHeadAttention``. With ``scale_norm``, the norm is applied before the gate.
        **options: options of the mechanism.

    Raises:
        UnknownNameError: there is no such mechanism, or it has no such option.
        ValueError: an option is out of its range.
        UnsupportedError: ``causal`` is True but the card does not declare it, or ``name`` is a hybrid.
    """
    if "+" in name:
        raise UnsupportedError(
            f"attn_layer= must be a single mechanism, because timm builds all layers with it; got the hybrid {name}. Build "
            f"the model with timm's own attention, then call attn_zoo.integrations.timm.replace_attention(model, {name!r})"
        )
    entry = card(name)
    stated_options(entry, options)
    if causal and not entry.can.causal:
        raise UnsupportedError(_other_causality(name, can=False, is_causal=True))
    return _bind(Settings(name, length, implementation, causal, fused, order, short_convolution, output_gate, options))


@cache
def _leave_whole() -> None:
    """Make timm's graphs (torch.fx) call the layer as one node, as they do with timm's own layers that check their inputs."""
    # Imported here, because importing timm takes seconds, and only a model that timm builds needs it.
    from timm.models import register_notrace_module

    register_notrace_module(TimmAttention)


def _bind(settings: Settings) -> type[TimmAttention]:
    called = f"Timm_{card(settings.name).build.__name__}"
    space = {"__doc__": TimmAttention.__doc__, "__module__": __name__, "settings": settings}
    return cast(type[TimmAttention], BoundType(called, (TimmAttention,), space))


def _reduce(bound: BoundType) -> str | tuple[Any, ...]:
    return bound.__qualname__ if bound is TimmAttention else (_bind, (bound.__dict__["settings"],))


copyreg.pickle(BoundType, _reduce)


def _other_causality(name: str, can: bool, is_causal: bool) -> str:
    if is_causal and not can:
        return (
            f"{name} has no causal form, so is_causal must be False. Call the model without is_causal, or choose another mechanism"
        )
    return (
        f"{name} in timm was built with causal={not is_causal}, so is_causal must be {not is_causal}; got {is_causal}. Call "
        f"the model with is_causal={not is_causal}, or build it with attention_layer(..., causal={is_causal})"
    )

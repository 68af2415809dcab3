"""Replacement of softmax attention in a model of transformers by a mechanism."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from attn_zoo.contract import Attention, Geometry, UnsupportedError, join_stacks, length_rules
from attn_zoo.grouping import grouped
from attn_zoo.integrations.transformers.attached import Attached, attached_to, hand_tokens, refuse_weights
from attn_zoo.integrations.transformers.description import NAME, Replacement, add, forget, set_directions
from attn_zoo.integrations.transformers.library import require_transformers
from attn_zoo.integrations.transformers.sites import Site, home, positions, sites, width_of_tokens
from attn_zoo.registry import build_attention, card
from attn_zoo.rows import RowName, attention_version, row_of_arguments
from attn_zoo.short_convolution import ShortConvolution

M = TypeVar("M", bound=nn.Module)


def replace_attention(
    model: M,
    attention: str,
    *,
    length: int | None = None,
    implementation: str = "auto",
    layers: Collection[int] | None = None,
    attention_dropout: float | None = None,
    short_convolution: int = 0,
    **options: Any,
) -> M:
    """Replace the softmax attention of a model by a mechanism, in place.

    The query, key, value and output projections keep their weights. The mechanism becomes the submodule ``zoo`` of each attention
    module. Streams (extra projections) start as copies of the model's projections, without rotary positions. If the mechanism uses
    one tensor for queries and keys, it gets the model's queries.

    In generation, a recurrent mechanism (one that declares ``stepwise``) stores its state in the model's cache, in place of keys
    and values. If a causal mechanism can use neither a state nor cached keys, ``use_cache`` is set to False.

    Args:
        model: a ``PreTrainedModel`` whose modules call transformers' attention interface.
        attention: name of a registered mechanism, or a hybrid such as ``3*linformer[projected_length=64]+softmax``. A hybrid is a
            pattern of mechanisms that is repeated over the layers.
        length: number of tokens for which the mechanism is built. None means the model's number of positions.
        implementation: name of an implementation on the mechanism's card. ``auto`` means the first that can run, in a fixed order
            per device.
        layers: indices of the attention modules to replace, from 0. None means all. Modules that were never replaced keep softmax.
        attention_dropout: dropout rate of attention weights. None means the model's own rate.
        short_convolution: width, in positions, of a depthwise convolution of the tokens before their projections; 0 means none. It
            is initialised as the identity; see ``ShortConvolution``.
        **options: options of the mechanism.

    Returns:
        The same model.

    Raises:
        TypeError: ``model`` is not a ``PreTrainedModel``.
        UnknownNameError: there is no such mechanism, implementation or option.
        ValueError: an option or ``layers`` is out of its range, the model does not state its number of positions, or it has fewer
            layers than the pattern of a hybrid.
        UnsupportedError: the mechanism does not support the model, or the package is missing.
    """
    library = require_transformers()
    if not isinstance(model, library.PreTrainedModel):
        raise TypeError(f"the model must be a PreTrainedModel of transformers; got {type(model).__name__}")
    row = row_of_arguments(attention, implementation, options)
    replacement = Replacement(
        attention=row.attention,
        implementation=row.implementation,
        length=positions(model) if length is None else length,
        layers=None if layers is None else sorted(set(layers)),
        attention_dropout=attention_dropout,
        options=dict(row.options),
        short_convolution=short_convolution,
        origin="; ".join(card(part.attention).origin for part in row.parts()),
        attention_version=attention_version(row.attention),
    )
    if not zoo_layers(model):
        _own_configurations(model)
    mechanisms = carry_out(model, replacement)
    add(model.config, replace(replacement, options=dict(_with_numbers_by_rule(row, mechanisms).options)))
    return model


def zoo_layers(model: nn.Module) -> list[Attention]:
    """Return the mechanisms of attn-zoo in a model, in the order of its attention modules."""
    return [module.mechanism for module in model.modules() if isinstance(module, Attached)]


def _own_configurations(model: Any) -> None:
    """Give a model copies of its configurations, because other models may share them. The copies describe no replaced attention."""
    library = require_transformers()
    copies: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), library.PreTrainedConfig):
            module.config = copy.deepcopy(config, copies)
            forget(module.config)


def carry_out(model: Any, replacement: Replacement) -> list[Attention]:
    """Replace attention as ``replacement`` describes, without storing ``replacement`` in the configuration of the model. If there
    is an error, the model does not change.

    Returns:
        The new mechanisms, in the order of the attention modules.
    """
    found = sites(model)
    chosen = _chosen(found, replacement.layers)
    rows = RowName(replacement.attention, replacement.options, replacement.implementation).layers(len(chosen))
    own = (replace(replacement, attention=r.attention, options=dict(r.options), implementation=r.implementation) for r in rows)
    built = {site.name: _attach(site, one) for site, one in zip(chosen, own, strict=True)}
    left = Replacement("softmax", "sdpa", replacement.length)
    built |= {site.name: _attach(site, left) for site in found if site.name not in built and attached_to(site.module) is None}
    join_stacks([built[site.name].mechanism for site in chosen])
    _select_functions(model)
    for site in found:
        if site.name in built:
            if attached_to(site.module) is None:
                site.module.register_forward_pre_hook(hand_tokens, with_kwargs=True)
            site.module.zoo = built[site.name]
    _update_configurations(model, found)
    return [built[site.name].mechanism for site in chosen]


def _with_numbers_by_rule(row: RowName, mechanisms: Sequence[Attention]) -> RowName:
    """Fill in missing options whose defaults depend on the length, so that a later change of the defaults does not affect saved
    models. An option that differs between modules is left out.
    """

    def with_numbers(part: RowName) -> RowName:
        own = [one for one in mechanisms if one.card.name == part.attention]
        ruled = [name for name in length_rules(card(part.attention).options) if name not in part.options]
        found = {name: {getattr(one.options, name) for one in own} for name in ruled}
        numbers = {name: values.pop() for name, values in found.items() if len(values) == 1}
        return replace(part, options={**numbers, **part.options})

    return row.changed(with_numbers)


def _chosen(found: Sequence[Site], layers: Collection[int] | None) -> Sequence[Site]:
    if layers is None:
        return found
    if not layers or not set(layers) <= set(range(len(found))):
        raise ValueError(
            f"layers= must list numbers from 0 to {len(found) - 1}, because the model has {len(found)} attention modules; got "
            f"{sorted(layers)}"
        )
    return [found[at] for at in sorted(layers)]


def _attach(site: Site, replacement: Replacement) -> Attached:
    """Build a mechanism for a module, in the module's mode (training or evaluation)."""
    entry = card(replacement.attention)
    if site.crosses and not entry.can.cross:
        raise UnsupportedError(
            f"{site.name} is cross-attention, which {entry.name} does not support. List only other modules in layers="
        )
    if site.crosses and replacement.short_convolution:
        raise UnsupportedError(
            f"{site.name} is cross-attention, but a short convolution needs self-attention. List only other modules in layers="
        )
    options = _with_dropout(entry.name, entry.options, site.dropout, replacement)
    geometry = Geometry(site.heads, site.head_dim, replacement.length, replacement.length, site.causal)
    device, dtype = home(site.module)
    # Built on the CPU in float32, whatever the defaults, because random numbers cannot be drawn in every dtype.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            mechanism = build_attention(
                entry.name, geometry, implementation=replacement.implementation, device=device, dtype=dtype, **options
            )
            width = replacement.short_convolution
            convolution = ShortConvolution(width_of_tokens(site), width, causal=site.causal) if width else None
    finally:
        torch.set_default_dtype(before)
    target = None if device.type == "meta" else device
    attached = Attached(mechanism.to(target, dtype), site, None if convolution is None else convolution.to(target, dtype))
    return attached.train(site.module.training)


def _with_dropout(name: str, kind: type, model_rate: float, replacement: Replacement) -> Mapping[str, Any]:
    rate = model_rate if replacement.attention_dropout is None else replacement.attention_dropout
    if any(field.name == "dropout" for field in fields(kind)):
        return {"dropout": rate, **replacement.options}
    if rate > 0:
        raise UnsupportedError(
            f"attention_dropout must be 0, because {name} has no option dropout; got {rate} from the model. Pass "
            "attention_dropout=0.0 to train without dropout"
        )
    return replacement.options


def _select_functions(model: Any) -> None:
    """Select attn-zoo's attention and mask functions for a model and its submodels."""
    if getattr(model.config, "output_attentions", False):
        raise UnsupportedError(
            "config.output_attentions must be False, because most mechanisms do not compute attention weights. Set it to "
            "False first"
        )
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise UnsupportedError(
            f"{type(model).__name__} must call the attention interface of transformers, but does not, so its attention cannot "
            "be replaced. Choose another model"
        )


def _update_configurations(model: Any, found: Sequence[Site]) -> None:
    """Store in the configurations whether mechanisms are causal, for the mask function. Turn off caches that mechanisms cannot
    use."""
    # Saved in config.json and read by transformers: without the zoo, loading fails instead of silently using softmax.
    model.config.attn_implementation = NAME
    modules: Iterable[Any] = (site.module for site in found)
    for under in grouped((id(module.config), module) for module in modules).values():
        config, attached = under[0].config, [module.zoo for module in under]
        set_directions(config, (one.mechanism.geometry.causal for one in attached))
        if any(one.mechanism.geometry.causal and one.newest is None and not one.recurrent for one in attached):
            config.use_cache = False
            if getattr(model, "generation_config", None) is not None:
                model.generation_config.use_cache = False
    library = require_transformers()
    for module in model.modules():
        if isinstance(module, library.PreTrainedModel) and refuse_weights not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(refuse_weights, with_kwargs=True)

"""Any mechanism of the zoo in a model of transformers, in place of its softmax attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from attn_zoo.contract import Attention, Geometry, UnsupportedError, length_rules
from attn_zoo.integrations.transformers.attached import Attached, attached_to, hand_tokens, refuse_weights
from attn_zoo.integrations.transformers.description import NAME, Replacement, add, set_directions
from attn_zoo.integrations.transformers.library import require_transformers
from attn_zoo.integrations.transformers.sites import Site, home, positions, sites
from attn_zoo.registry import build_attention, card
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
    """Put a mechanism of the zoo in place of a model's softmax attention, in place.

    The weights of queries, keys, values and outputs are kept. What the mechanism holds is added as a submodule
    ``zoo`` of each attention module. A further projection that the mechanism reads starts as a copy of the model's
    own, without its rotary positions; a mechanism that shares queries and keys takes the model's queries for both.
    In generation a recurrent mechanism (one that claims ``stepwise``) carries its state in the model's cache, in place of keys and
    values. A causal mechanism that neither does so nor answers one new token from cached keys sets ``use_cache`` to False.

    Args:
        model: a ``PreTrainedModel`` whose modules call transformers' attention interface.
        attention: name of a registered mechanism.
        length: tokens the mechanism is built for; None means as many as the model has positions for.
        implementation: a name on the mechanism's card, or ``auto``, the fastest that the device of the inputs can run.
        layers: which modules to change, counted from 0 over all that attend; None means all. Those that were never
            changed go on with softmax.
        attention_dropout: share of attention weights dropped in training; None means the model's own rate.
        short_convolution: width of a depthwise convolution of the tokens before the module projects them, 0 for none; see
            ``ShortConvolution``, which starts as the identity.
        **options: the mechanism's own.

    Returns:
        The same model.

    Raises:
        TypeError: ``model`` is none of transformers'.
        UnknownNameError: no such attention, implementation or option.
        ValueError: an option or ``layers`` makes no sense, or the model does not say its length.
        UnsupportedError: the mechanism does not claim what the model needs, or the package is missing.
    """
    library = require_transformers()
    if not isinstance(model, library.PreTrainedModel):
        raise TypeError(f"replace_attention takes a PreTrainedModel of transformers; got {type(model).__name__}")
    replacement = Replacement(
        attention=attention,
        implementation=implementation,
        length=positions(model) if length is None else length,
        layers=None if layers is None else sorted(set(layers)),
        attention_dropout=attention_dropout,
        options=options,
        short_convolution=short_convolution,
        origin=card(attention).origin,
    )
    mechanisms = carry_out(model, replacement)
    add(model.config, replace(replacement, options={**_numbers_by_rule(attention, mechanisms, options), **options}))
    return model


def zoo_layers(model: nn.Module) -> list[Attention]:
    """The mechanisms attached to a model, in the order in which it holds its attention modules."""
    return [module.mechanism for module in model.modules() if isinstance(module, Attached)]


def carry_out(model: Any, replacement: Replacement) -> list[Attention]:
    """Replace attention without writing it into the configuration. Nothing is changed where it raises.

    Returns:
        The mechanisms put in place, in the order of the modules.
    """
    found = sites(model)
    chosen = _chosen(found, replacement.layers)
    built = {site.name: _attach(site, replacement) for site in chosen}
    left = Replacement("softmax", "sdpa", replacement.length)
    built |= {site.name: _attach(site, left) for site in found if site.name not in built and attached_to(site.module) is None}
    _join([built[site.name] for site in chosen])
    _switch_over(model)
    for site in found:
        if site.name in built:
            _put(site, built[site.name])
    _tell_configurations(model, found)
    return [built[site.name].mechanism for site in chosen]


def _numbers_by_rule(attention: str, mechanisms: Sequence[Attention], given: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that rules of length gave to options not given, so that a later rule changes no saved model.

    An option that has different numbers in different modules is left to its rule.
    """
    ruled = [name for name in length_rules(card(attention).options) if name not in given]
    found = {name: {getattr(one.options, name) for one in mechanisms} for name in ruled}
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _chosen(found: Sequence[Site], layers: Collection[int] | None) -> Sequence[Site]:
    if layers is None:
        return found
    if not layers or not set(layers) <= set(range(len(found))):
        raise ValueError(f"layers must be some of 0 to {len(found) - 1}, the modules that attend here; got {sorted(layers)}")
    return [found[at] for at in sorted(layers)]


def _attach(site: Site, replacement: Replacement) -> Attached:
    """Build a mechanism for a module, in evaluation or training as the module is."""
    entry = card(replacement.attention)
    if site.crosses and not entry.can.cross:
        raise UnsupportedError(
            f"{site.name} takes its keys from another sequence, which {entry.name} does not claim; name the others in layers="
        )
    if site.crosses and replacement.short_convolution:
        raise UnsupportedError(
            f"{site.name} takes its keys from another sequence, and a short convolution is for self-attention; name the others in "
            "layers="
        )
    options = _with_dropout(entry.name, entry.options, site.dropout, replacement)
    geometry = Geometry(site.heads, site.head_dim, replacement.length, replacement.length, site.causal)
    device, dtype = home(site.module)
    # In the processor's memory and in float32 whatever the context, as not every type can be drawn in.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            mechanism = build_attention(
                entry.name, geometry, implementation=replacement.implementation, device=device, dtype=dtype, **options
            )
            convolution = _convolution(site, replacement.short_convolution)
    finally:
        torch.set_default_dtype(before)
    there = None if device.type == "meta" else device
    attached = Attached(mechanism.to(there, dtype), site, None if convolution is None else convolution.to(there, dtype))
    return attached.train(site.module.training)


def _convolution(site: Site, width: int) -> ShortConvolution | None:
    config: Any = site.module.config
    return None if width == 0 else ShortConvolution(config.hidden_size, width, causal=site.causal)


def _with_dropout(name: str, kind: type, model_rate: float, replacement: Replacement) -> Mapping[str, Any]:
    rate = model_rate if replacement.attention_dropout is None else replacement.attention_dropout
    if any(field.name == "dropout" for field in fields(kind)):
        return {"dropout": rate, **replacement.options}
    if rate > 0:
        raise UnsupportedError(
            f"the model drops a share of {rate} of its attention weights in training, and {name} has no weights to drop; "
            "pass attention_dropout=0.0 to go without"
        )
    return replacement.options


def _join(stack: Sequence[Attached]) -> None:
    """Tell mechanisms that lie over each other so, as ``join_layers`` does for the zoo's own layers."""
    mechanisms = [attached.mechanism for attached in stack]
    for mechanism in mechanisms:
        mechanism.check_stack(mechanisms)
    for at, mechanism in enumerate(mechanisms):
        mechanism.join(at, mechanisms)


def _switch_over(model: Any) -> None:
    """Choose our functions for a model and for the models it holds."""
    if getattr(model.config, "output_attentions", False):
        raise UnsupportedError("config.output_attentions asks for weights, which most mechanisms never form; set it to False first")
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise UnsupportedError(
            f"{type(model).__name__} does not call transformers' attention interface, so nothing can stand in for its attention"
        )


def _put(site: Site, attached: Attached) -> None:
    first = attached_to(site.module) is None
    site.module.zoo = attached
    if first:
        site.module.register_forward_pre_hook(hand_tokens, with_kwargs=True)


def _tell_configurations(model: Any, found: Sequence[Site]) -> None:
    """Note what mask functions must know, and keep generation from caching what cannot be used."""
    # Written to config.json, where transformers reads it: without us, loading fails instead of giving softmax.
    model.config.attn_implementation = NAME
    configurations: dict[int, tuple[Any, list[Attached]]] = {}
    for site in found:
        attached = attached_to(site.module)
        assert attached is not None
        config: Any = site.module.config
        configurations.setdefault(id(config), (config, []))[1].append(attached)
    for config, under in configurations.values():
        set_directions(config, (attached.mechanism.geometry.causal for attached in under))
        if any(attached.mechanism.geometry.causal and attached.newest is None and not attached.recurrent for attached in under):
            config.use_cache = False
            if getattr(model, "generation_config", None) is not None:
                model.generation_config.use_cache = False
    library = require_transformers()
    for module in model.modules():
        if isinstance(module, library.PreTrainedModel) and refuse_weights not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(refuse_weights, with_kwargs=True)

"""Replacement of the attention in an existing timm model, whose weights are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.grouping import grouped
from attn_zoo.integrations.timm.layer import TimmAttention, attention_layer
from attn_zoo.integrations.timm.sizes import count_tokens, tokens_in
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.layer.projections import described, is_plain
from attn_zoo.rows import row_of_arguments

M = TypeVar("M", bound=nn.Module)

OWN = ("mechanism.", "stream_projections.", "short_convolution.", "gate.")
"""Prefixes of the names of parameters that the layer of attn-zoo has and timm's attention lacks."""

_BLOCKS = ("ParallelScalingBlock", "DiffParallelScalingBlock")
"""Blocks of timm that attend without a module for it."""


@dataclass(frozen=True, slots=True)
class ReplacedLayer:
    """Report on one attention layer that was replaced."""

    path: str
    """Path of the layer in the model."""
    attention: str
    """Name of the mechanism."""
    length: int
    """Number of tokens for which the mechanism is built."""
    kept: tuple[str, ...]
    """Projections and norms of timm's layer whose weights are still used."""
    dropped: tuple[str, ...]
    """Projections and norms of timm's layer that are removed, because the mechanism does not read them."""
    added: tuple[str, ...]
    """Parameters that timm's layer lacks. Streams (extra projections) start as copies of timm's projections. The other parameters
    get their default initialisation.
    """


@dataclass(frozen=True, slots=True)
class Replacement:
    """Report on all layers that ``replace_attention`` replaced. ``str`` gives a short summary."""

    attention: str
    layers: tuple[ReplacedLayer, ...]
    left: tuple[str, ...]
    """Path and class of each attention module that is not replaced, because it is of another kind, such as attention pooling."""

    def __str__(self) -> str:
        lines = []
        for layer, paths in grouped((replace(layer, path=""), layer.path) for layer in self.layers).items():
            where = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)} layers)"
            lines.append(f"{where}: {layer.attention} over {layer.length} tokens")
            lines.append(f"  kept {_listed(layer.kept)}; dropped {_listed(layer.dropped)}")
            lines.append(f"  added {_listed(layer.added)}")
        return "\n".join(lines + [f"left as it is: {_listed(self.left)}"] * bool(self.left))


def replace_attention(
    model: M,
    attention: str,
    *,
    length: int | None = None,
    example: Any = None,
    implementation: str = "auto",
    causal: bool = False,
    fused: bool = False,
    order: str = "auto",
    short_convolution: int = 0,
    output_gate: str = "none",
    **options: Any,
) -> M:
    """Replace every ``timm.layers.Attention`` of a model by a mechanism, in place.

    The query, key, value and output projections keep their weights, biases and ``requires_grad``. Projections that the mechanism
    does not read are dropped. If the mechanism uses one tensor for queries and keys, it gets the query projection. Norms
    (``qk_norm``, ``scale_norm``) and dropout rates stay. If the mechanism with its options equals softmax attention and there is no
    gate, the outputs of the model do not change.

    New parameters are those of the mechanism (such as Linformer's E and F), of a short convolution and of a gate. Create the
    optimiser afterwards, and train these parameters. ``join_layers`` is called, so options that concern all layers together take
    effect. If there is an error, the model does not change.

    Args:
        model: a model of timm, trained or not.
        attention: name of a registered mechanism, or a hybrid such as ``3*linformer[projected_length=64]+softmax``. A hybrid is a
            pattern of mechanisms that is repeated over the layers.
        length: number of tokens in every layer, prefix tokens included; the maximum if images differ in size. None means the number
            that a VisionTransformer states. Any other model is run once without gradients to count the tokens in each layer.
        example: input on which the model is run to count its tokens, if ``length`` is not given. None means an image of the size
            for which the model is built.
        implementation, causal, fused, order, short_convolution, output_gate, **options: see ``attention_layer``.

    Returns:
        The model. Its attribute ``attention_replacement`` is a ``Replacement``, which lists kept, dropped and added parameters.

    Raises:
        UnknownNameError: there is no such mechanism, implementation or option.
        ValueError: an option is out of its range, both ``length`` and ``example`` are given, ``model`` is itself an attention
            layer, or it has fewer layers than the pattern of a hybrid.
        UnsupportedError: the model has no ``timm.layers.Attention``, or has one that the layer of attn-zoo cannot reproduce. It is
            also raised if the number of tokens is unknown, or if the mechanism does not support an argument.
        TypeError: ``model`` is not an ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a model of timm, an nn.Module; got {type(model).__name__}")
    places = _places(model)
    if length is not None and example is not None:
        raise ValueError(
            "length= and example= cannot be given together, because each gives the number of tokens. Leave one of them out"
        )
    if example is not None:
        lengths = count_tokens(model, places, example)
    else:
        lengths = tokens_in(model, places) if length is None else dict.fromkeys(places, length)
    bound: dict[str, Any] = {"causal": causal, "fused": fused, "order": order, "short_convolution": short_convolution}
    bound["output_gate"] = output_gate
    row = row_of_arguments(attention, implementation, options)
    first_paths = {old: path for path, old in reversed(places.items())}
    layers = list(dict.fromkeys(places.values()))
    built: dict[nn.Module, TimmAttention] = {}
    for old, own in zip(layers, row.layers(len(layers)), strict=True):
        path = first_paths[old]
        kind = attention_layer(own.attention, length=lengths[path], implementation=own.implementation, **bound, **own.options)
        built[old] = _replacement_of(old, path, kind)
    join_layers(nn.ModuleList(built.values()))
    for path, old in places.items():
        model.set_submodule(path, built[old])
    reports = (_report(path, old, built[old]) for path, old in places.items())
    # A plain attribute, not part of the state dict; nn.Module's annotation allows tensors and modules only.
    model.attention_replacement = Replacement(str(row), tuple(reports), tuple(_others(model)))  # type: ignore[assignment]
    return model


def _places(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention modules of timm by path. One module can have several paths."""
    from timm.layers.attention import Attention

    modules = model.named_modules(remove_duplicate=False)
    places: dict[str, nn.Module] = {path: module for path, module in modules if type(module) is Attention}
    if "" in places:
        raise ValueError("replace_attention must get a whole model; got an attention module. Pass the model that holds it")
    if places:
        return places
    name = type(model).__name__
    if any(isinstance(module, MultiHeadAttention) for module in model.modules()):
        raise UnsupportedError(
            f"the attention of this {name} must be timm's own, but attn-zoo has already replaced it. Start again from a model "
            "that timm built"
        )
    kinds = {type(m) for m in model.modules() if _attends(m)}
    named = sorted(f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}" for kind in kinds)
    raise UnsupportedError(
        f"{name} must hold a module timm.layers.Attention, because only this class can be replaced; it has "
        f"{', '.join(named) or 'no attention'}. Choose another model; docs/how-to/timm.md says why"
    )


def _replacement_of(old: Any, path: str, kind: type[TimmAttention]) -> TimmAttention:
    for name in ("qkv", "proj"):
        if not is_plain(linear := getattr(old, name)):
            raise UnsupportedError(
                f"{path}.{name} must be an nn.Linear without hooks; got {described(linear)}. Merge adapters, undo quantisation, "
                "make pruning permanent or remove hooks first"
            )
    q_norm, k_norm, norm = (None if isinstance(m, nn.Identity) else m for m in (old.q_norm, old.k_norm, old.norm))
    weight = old.qkv.weight
    new = kind(
        old.qkv.in_features,
        old.num_heads,
        qkv_bias=old.qkv.bias is not None,
        qk_norm=q_norm is not None or k_norm is not None,
        scale_norm=norm is not None,
        proj_bias=old.proj.bias is not None,
        attn_drop=old.attn_drop.p,
        proj_drop=old.proj_drop.p,
        norm_layer=nn.Identity,
        device=weight.device,
        dtype=weight.dtype,
        attn_head_dim=old.head_dim,
        dim_out=old.proj.out_features,
        gated=getattr(old, "gate", None) is not None,
    )
    # Reuse the original norm modules, whatever their class and settings.
    new.q_norm = q_norm if "query" in new.reads else None
    new.k_norm = k_norm if "key" in new.reads else None
    new.norm = norm
    new.load_state_dict(old.state_dict())
    for linear, source in [(m, old.qkv) for m in _projections(new)] + [(new.out, old.proj)]:
        linear.weight.requires_grad_(source.weight.requires_grad)
        if linear.bias is not None:
            linear.bias.requires_grad_(source.bias.requires_grad)
    return new.train(old.training)


def _projections(layer: TimmAttention) -> list[nn.Linear]:
    held = [layer.projection] if layer.fused else layer.projections.values()
    return [linear for linear in held if isinstance(linear, nn.Linear)]


def _report(path: str, old: Any, new: TimmAttention) -> ReplacedLayer:
    had = ["query", "key", "value", "out"]
    had += [name for name in ("q_norm", "k_norm", "norm") if not isinstance(getattr(old, name), nn.Identity)]
    kept = tuple(name for name in had if name in (*new.reads, "out") or getattr(new, name, None) is not None)
    added = tuple(name for name, _ in new.named_parameters() if name.startswith(OWN))
    dropped = tuple(name for name in had if name not in kept)
    return ReplacedLayer(path, new.mechanism.card.name, new.mechanism.geometry.keys, kept, dropped, added)


def _others(model: nn.Module) -> list[str]:
    """Return the outermost attention modules that are not part of attn-zoo."""
    paths: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{above}.") for above in paths)
        if _attends(module) and not inside and not isinstance(module, MultiHeadAttention):
            paths.append(path)
    return [f"{path} ({type(model.get_submodule(path)).__name__})" for path in paths]


def _attends(module: nn.Module) -> bool:
    name = type(module).__name__
    return "Attention" in name or "Attn" in name or name in _BLOCKS


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"

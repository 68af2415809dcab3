"""Modules of a transformers model whose attention can be replaced, because they call the attention interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError

_PROJECTIONS = (("query", "key", "value"), ("q_proj", "k_proj", "v_proj"), ("q_lin", "k_lin", "v_lin"))
"""Names of the query, key and value projections in models; a fused projection is named ``c_attn``."""


@dataclass(frozen=True, slots=True)
class Site:
    """Description of one attention module of a model."""

    name: str
    """Path of the module in the model."""
    module: nn.Module
    heads: int
    key_heads: int
    """Number of heads of keys and values, which is smaller than ``heads`` in grouped-query attention."""
    head_dim: int
    causal: bool
    crosses: bool
    """True for cross-attention, whose keys come from another sequence."""
    dropout: float
    """Dropout rate of attention weights."""

    @property
    def width(self) -> int:
        """Number of channels of all query heads together."""
        return self.heads * self.head_dim


def sites(model: nn.Module) -> list[Site]:
    """Return a description of each module of a model that calls the attention interface, in the order of the model.

    These modules have ``attention`` in their class name, and have the attributes ``config`` and ``is_causal``, which the interface
    reads.

    Raises:
        UnsupportedError: there is no such module, or a module does not state its number of heads.
    """
    found = [_site(name, module) for name, module in model.named_modules() if _attends(module)]
    if not found:
        raise UnsupportedError(
            f"{type(model).__name__} must have a module that calls the attention interface of transformers, and has none. "
            "Give a model that supports attn_implementation='sdpa', such as BERT, RoBERTa, ViT, GPT-2 or Llama"
        )
    return found


def _attends(module: nn.Module) -> bool:
    from transformers import PreTrainedModel

    named = "attention" in type(module).__name__.lower()
    return named and hasattr(module, "is_causal") and hasattr(module, "config") and not isinstance(module, PreTrainedModel)


def _site(name: str, module: Any) -> Site:
    config = module.config
    heads = _first(module, "num_attention_heads", "num_heads", "n_heads") or getattr(config, "num_attention_heads", None)
    if heads is None:
        raise UnsupportedError(
            f"{name} ({type(module).__name__}) cannot be replaced, because it has none of the "
            "attributes num_attention_heads, num_heads and n_heads, which give the number of heads. List only other modules in "
            "layers="
        )
    # Some attention modules of SAM are narrower than its tokens, and state only the width of all their heads.
    head_dim = _first(module, "head_dim", "attention_head_size") or (_first(module, "internal_dim") or config.hidden_size) // heads
    crosses = bool(getattr(module, "is_cross_attention", False)) or any(
        word in f"{name.rpartition('.')[2]} {type(module).__name__}".lower() for word in ("cross", "encoder_attn")
    )
    causal = bool(module.is_causal) and getattr(config, "is_causal", None) is not False and not crosses
    groups = getattr(module, "num_key_value_groups", 1)
    return Site(name, module, heads, heads // groups, head_dim, causal, crosses, _dropout(module))


def _first(module: nn.Module, *names: str) -> Any:
    return next((value for name in names if (value := getattr(module, name, None)) is not None), None)


def _dropout(module: nn.Module) -> float:
    """Return the dropout rate of attention weights in a model."""
    rate = _first(module, "attn_dropout", "attention_dropout", "dropout_prob", "dropout")
    return float(rate.p if isinstance(rate, nn.Dropout) else rate or 0.0)


def scaling_of(module: Any, head_dim: int) -> float:
    """Return the factor by which the module multiplies query · key by default."""
    if getattr(module, "scaling", None) is not None:
        return float(module.scaling)
    # In older versions of transformers, GPT-2 sets the factor by two flags.
    scale = head_dim**-0.5 if getattr(module, "scale_attn_weights", True) else 1.0
    return scale / (module.layer_idx + 1) if getattr(module, "scale_attn_by_inverse_layer_idx", False) else scale


def projection(site: Site, which: str) -> tuple[Float[Tensor, "width dim"], Float[Tensor, " width"] | None]:
    """Return the weight and bias of the query, key or value projection of an attention module. In grouped-query attention, weights
    and biases of keys and values are repeated for every query head.

    Raises:
        UnsupportedError: the projections of the module have unknown names.
    """
    at = ("query", "key", "value").index(which)
    for names in _PROJECTIONS:
        linear = getattr(site.module, names[at], None)
        if isinstance(linear, nn.Linear):
            return _for_every_head(linear.weight, site, at), None if linear.bias is None else _for_every_head(linear.bias, site, at)
    fused: Any = getattr(site.module, "c_attn", None)
    if fused is not None and tuple(fused.weight.shape[1:]) == (3 * site.width,) and not site.crosses:  # GPT-2's Conv1D
        return fused.weight.T[at * site.width : (at + 1) * site.width], fused.bias[at * site.width : (at + 1) * site.width]
    raise UnsupportedError(
        f"{site.name} ({type(site.module).__name__}) must have a {which} projection, because a further projection of this "
        "mechanism starts as its copy, but none is found. Choose another mechanism"
    )


def width_of_tokens(site: Site) -> int:
    """Return the width of the tokens of an attention module.

    Raises:
        UnsupportedError: the projections of the module have unknown names, and its configuration does not state this width.
    """
    try:
        return projection(site, "query")[0].shape[1]
    except UnsupportedError:
        if (stated := getattr(site.module.config, "hidden_size", None)) is None:
            raise
        return int(stated)


def _for_every_head(parameter: Tensor, site: Site, at: int) -> Tensor:
    if at == 0 or site.key_heads == site.heads:
        return parameter
    by_head = parameter.unflatten(0, (site.key_heads, site.head_dim))
    return by_head.repeat_interleave(site.heads // site.key_heads, dim=0).flatten(0, 1)


def positions(model: Any) -> int:
    """Return the largest number of positions that a model supports: tokens, or patches with the prefix tokens.

    Raises:
        ValueError: the model does not state its number of positions.
    """
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Parameter) and table.dim() == 3:
            return table.shape[1]
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1  # RoBERTa numbers positions from its padding index + 1
    longest = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ValueError(f"the number of positions of {type(model).__name__} is unknown, but must be known. Give length=NUMBER")
    return longest


def home(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and dtype of the weights of a module.

    Raises:
        UnsupportedError: no weights are floating-point numbers, for example because they are quantised.
    """
    weight = next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
    if weight is None:
        raise UnsupportedError(
            f"{type(module).__name__} must have floating-point weights, and has none. Load the model without quantisation"
        )
    return weight.device, weight.dtype

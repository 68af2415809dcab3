"""The softmax attention matrices P that a model forms on a batch, whoever wrote the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.analysis.watching import (
    as_in_evaluation,
    implementation_of,
    is_transformers,
    mechanisms_of,
    refuse_blind,
    watch_calls,
    watch_mechanisms,
)
from attn_zoo.contract import Attention, UnsupportedError


def attention_matrices(model: nn.Module, batch: Any) -> list[Float[Tensor, "batch heads queries keys"]]:
    """P = softmax(Q Kᵀ · scale) of every attention of ``model``, in the order in which they run.

    Three kinds of model are understood:

    - with mechanisms of the zoo: their queries and keys are caught on the way in, and P is computed from these. All must
      be ``softmax``, in any of its implementations, which agree;
    - of Hugging Face ``transformers`` with ``attn_implementation="eager"``: the model hands P out itself;
    - all others, timm's transformers among them: calls of PyTorch's ``scaled_dot_product_attention`` are caught, and P
      is computed from their queries, keys, mask and scale. timm modules that would not make the call are told to.

    The model runs once, in evaluation mode, without gradients, and is left as it was.

    Args:
        batch: what the model is called with: keywords if it is a mapping, else its one argument.

    Raises:
        UnsupportedError: a mechanism forms no P, a key is padding, or no attention was seen.
    """
    mechanisms = mechanisms_of(model)
    with as_in_evaluation(model), torch.no_grad():
        if mechanisms:
            found = _of_the_zoo(model, mechanisms, batch)
        elif is_transformers(model) and implementation_of(model) == "eager":
            found = _of_transformers(model, batch)
        else:
            found = _of_calls(model, batch)
    refuse_blind(model, found)
    return found


def _of_the_zoo(model: nn.Module, mechanisms: Mapping[str, Attention], batch: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def catch(mechanism: Attention, query: Tensor, key: Tensor, key_valid: Tensor | None = None, **_: Any) -> None:
        _refuse_padding(key_valid)
        found.append(_softmax_matrix(query, key, query.shape[-1] ** -0.5, causal=mechanism.geometry.causal))

    watch_mechanisms(model, mechanisms, batch, catch)
    return found


def _of_transformers(model: nn.Module, batch: Any) -> list[Tensor]:
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        _refuse_padding(None if mask is None else mask.bool())
        outputs = model(**batch, output_attentions=True, return_dict=True)
    else:
        outputs = model(batch, output_attentions=True, return_dict=True)
    found = outputs.get("attentions")
    if not found or any(layer is None for layer in found):
        raise UnsupportedError(
            f"{type(model).__name__} hands out no attention of every layer; of a model with encoder and decoder, "
            "give one half: model.get_encoder()"
        )
    return list(found)


def _of_calls(model: nn.Module, batch: Any) -> list[Tensor]:
    if isinstance(batch, Mapping) and (mask := batch.get("attention_mask")) is not None:
        _refuse_padding(mask.bool())
    found: list[Tensor] = []
    watch_calls(model, batch, lambda *call, **named: found.append(_matrix_of_call(*call, **named)))
    return found


def _matrix_of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "batch heads queries keys"]:
    """P of one call of ``scaled_dot_product_attention``, whose arguments these are."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    return _softmax_matrix(query, key, query.shape[-1] ** -0.5 if scale is None else scale, mask=attn_mask, causal=is_causal)


def _softmax_matrix(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    scale: float,
    *,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch heads queries keys"]:
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1)


def _refuse_padding(valid: Tensor | None) -> None:
    if valid is not None and not bool(valid.all()):
        raise UnsupportedError(
            "the batch holds padding, whose columns and rows would count as directions; cut the sequences to real tokens only"
        )

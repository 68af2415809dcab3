"""Capture of the softmax attention matrices of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.analysis.watching import (
    as_in_evaluation,
    call_model,
    implementation_of,
    is_transformers,
    mechanisms_of,
    padding_mask,
    refuse_blind,
    watch_calls,
    watch_mechanisms,
)
from attn_zoo.contract import Attention, UnsupportedError


def attention_matrices(model: nn.Module, batch: Any) -> list[Float[Tensor, "batch heads queries keys"]]:
    """Return the matrix P = softmax(Q Kᵀ · scale) of every attention layer of ``model``, in the order in which the layers run. Q
    and K are the queries and keys of a layer.

    Three kinds of model are supported:

    - Models with mechanisms of attn-zoo, which must all be ``softmax``. P is computed from their queries and keys.
    - Models of Hugging Face ``transformers`` with ``attn_implementation="eager"``. These models return P themselves.
    - All other models, such as those of timm. P is computed from the arguments of each call of PyTorch's
      ``scaled_dot_product_attention``. Modules of timm use this function during the run.

    The model runs once, in evaluation mode and without gradients. It is not changed.

    Args:
        batch: input of the model. A mapping is passed as keyword arguments, anything else as the only argument.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, the batch holds padding, a layer returns no matrix, or no attention was
            found.
    """
    mechanisms = mechanisms_of(model)
    with as_in_evaluation(model), torch.no_grad():
        if mechanisms:
            matrices = _zoo_matrices(model, mechanisms, batch)
        elif is_transformers(model) and implementation_of(model) == "eager":
            matrices = _transformers_matrices(model, batch)
        else:
            matrices = _call_matrices(model, batch)
    refuse_blind(model, matrices)
    return matrices


def _zoo_matrices(model: nn.Module, mechanisms: Mapping[str, Attention], batch: Any) -> list[Tensor]:
    matrices: list[Tensor] = []

    def catch(mechanism: Attention, query: Tensor, key: Tensor, key_valid: Tensor | None = None, **_: Any) -> None:
        _refuse_padding(key_valid)
        matrices.append(_softmax_matrix(query, key, query.shape[-1] ** -0.5, causal=mechanism.geometry.causal))

    watch_mechanisms(model, mechanisms, batch, catch)
    return matrices


def _transformers_matrices(model: nn.Module, batch: Any) -> list[Tensor]:
    _refuse_padding(padding_mask(batch))
    outputs = call_model(model, batch, output_attentions=True, return_dict=True)
    matrices = outputs.get("attentions")
    if not matrices or any(layer is None for layer in matrices):
        raise UnsupportedError(
            f"{type(model).__name__} does not return the attention of every layer. If the model has an encoder and a "
            "decoder, give one of the two, such as model.get_encoder()"
        )
    return list(matrices)


def _call_matrices(model: nn.Module, batch: Any) -> list[Tensor]:
    _refuse_padding(padding_mask(batch))
    matrices: list[Tensor] = []
    watch_calls(model, batch, lambda *call, **named: matrices.append(_call_matrix(*call, **named)))
    return matrices


def _call_matrix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "batch heads queries keys"]:
    """Compute the matrix P of one call of ``scaled_dot_product_attention`` from its arguments."""
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
    """Compute softmax(Q Kᵀ · scale) in float32 or more. The mask is True for visible keys, or is added to the scores."""
    float_dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(float_dtype) @ key.to(float_dtype).mT) * scale
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1)


def _refuse_padding(valid: Tensor | None) -> None:
    if valid is not None and not bool(valid.all()):
        raise UnsupportedError(
            "the batch must not hold padding, because padding would change the singular values. Cut every sequence to its "
            "real tokens"
        )

"""The softmax attention matrices P that a model forms on a batch, whoever wrote the model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attn_zoo.contract import Attention, UnsupportedError

_FORWARD = inspect.signature(Attention.forward)


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
    mechanisms = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    with _as_in_evaluation(model), torch.no_grad():
        if mechanisms:
            found = _of_the_zoo(model, mechanisms, batch)
        elif _is_transformers(model) and _implementation(model) == "eager":
            found = _of_transformers(model, batch)
        else:
            found = _of_calls(model, batch)
    if not found:
        raise UnsupportedError(
            f"no attention was seen in {type(model).__name__}: it has no mechanism of the zoo and calls no "
            "scaled_dot_product_attention; a transformers model must be loaded with attn_implementation='eager' or 'sdpa'"
        )
    return found


def _of_the_zoo(model: nn.Module, mechanisms: Mapping[str, Attention], batch: Any) -> list[Tensor]:
    for name, mechanism in mechanisms.items():
        if mechanism.card.name != "softmax":
            raise UnsupportedError(
                f"{name} is {mechanism.card.name}, which forms no softmax matrix of all queries and keys, so it has no spectrum; "
                "give a model whose every attention is softmax"
            )
    found: list[Tensor] = []

    def catch(mechanism: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        assert isinstance(mechanism, Attention)
        call = _FORWARD.bind(mechanism, *arguments, **keywords).arguments
        _refuse_padding(call.get("key_valid"))
        query, key = call["query"], call["key"]
        found.append(_softmax_matrix(query, key, query.shape[-1] ** -0.5, causal=mechanism.geometry.causal))

    handles = [mechanism.register_forward_pre_hook(catch, with_kwargs=True) for mechanism in mechanisms.values()]
    try:
        _call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
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
    # timm's modules can do the sums themselves instead of calling PyTorch's function; `fused_attn` is their switch.
    switched: list[Any] = [module for module in model.modules() if getattr(module, "fused_attn", None) is False]
    for module in switched:
        module.fused_attn = True
    watch = _WatchCalls()
    try:
        with watch:
            _call(model, batch)
    finally:
        for module in switched:
            module.fused_attn = False
    return watch.found


class _WatchCalls(TorchFunctionMode):
    """While it is entered, computes P beside every call of ``scaled_dot_product_attention``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if function is F.scaled_dot_product_attention:
            self.found.append(_matrix_of_call(*args, **keywords))
        return function(*args, **keywords)


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


def _call(model: nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def _is_transformers(model: nn.Module) -> bool:
    library = sys.modules.get("transformers")  # a model of a library that was never imported cannot be
    return library is not None and isinstance(model, library.PreTrainedModel)


def _implementation(model: nn.Module) -> str | None:
    return getattr(model.config, "_attn_implementation", None)


@contextmanager
def _as_in_evaluation(model: nn.Module) -> Iterator[None]:
    """Dropout off, and afterwards every module back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

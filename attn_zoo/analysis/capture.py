"""Capture of what the softmax attention in a model computes: attention matrices, or queries, keys and values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.contract import Attention, UnsupportedError

_HIDDEN = -1e4
"""A score bias of at most this value masks the key. The lowest number in float16 is -65504."""
_FORWARD = inspect.signature(Attention.forward)
T = TypeVar("T")


def attention_matrices(model: nn.Module, batch: Any) -> list[Float[Tensor, "batch heads queries keys"]]:
    """Return the matrix P = softmax(Q Kᵀ · scale) of every attention layer of ``model``, in the order in which the layers run. Q
    and K are the queries and keys of a layer.

    Two kinds of model are supported:

    - Models with mechanisms of attn-zoo, which must all be ``softmax``.
    - Models that call PyTorch's ``scaled_dot_product_attention``, such as those of timm and of Hugging Face. During this run, they
      use this function if they have a choice.

    The model runs once, in evaluation mode and without gradients. It is not changed.

    Args:
        batch: input of the model. A mapping is passed as keyword arguments, anything else as the only argument.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, the batch holds padding, or no attention was found.
        ValueError: a model of Hugging Face cannot use this function.
    """
    if _has_padding(batch):
        raise _padding("padding would change the singular values")
    return _watch(model, batch, _matrix)


def attention_inputs(model: nn.Module, batch: Any) -> list[AttentionInputs]:
    """Return the queries, keys and values of every attention layer of ``model``, after the projections and the split into heads,
    in the order in which the layers run.

    The kinds of model and the arguments are those of ``attention_matrices``. If several query heads share a key and value head,
    this head is repeated. If the model does not scale scores by 1/√d, where d is the width of a head, the queries are multiplied
    so that this scale gives the same scores.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, scores have a bias, a mask is neither causal nor a padding mask, the
            model does not mask the padding in the batch, or no attention was found.
    """
    found = _watch(model, batch, _inputs)
    if _has_padding(batch) and any(layer.key_valid is None for layer in found):
        raise _padding("this model does not mask padding")
    return found


def _watch(model: nn.Module, batch: Any, read: Callable[[_Call], T]) -> list[T]:
    """Run the model on the batch, and return what ``read`` returns for each call of attention."""
    found: list[T] = []

    def seen(*args: Any, **kwargs: Any) -> None:
        found.append(read(_Call(*args, **kwargs)))

    mechanisms = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), _mechanisms(mechanisms, seen) if mechanisms else _calls(model, seen):
            model(**batch) if isinstance(batch, Mapping) else model(batch)
    finally:
        for module in training:
            module.training = True
    if not found:
        raise UnsupportedError(
            f"no attention was found in {type(model).__name__}: a model must have mechanisms of attn-zoo or call PyTorch's "
            "scaled_dot_product_attention. Give another model"
        )
    return found


@contextmanager
def _mechanisms(mechanisms: Mapping[str, Attention], seen: Callable[..., None]) -> Iterator[None]:
    """Return a context in which ``seen`` gets the arguments of every call of these mechanisms."""
    for name, mechanism in mechanisms.items():
        if mechanism.card.name != "softmax":
            raise UnsupportedError(
                "every layer of the model must have the mechanism softmax, because other mechanisms have no softmax matrix; "
                f"got {mechanism.card.name} in {name}. Give another model"
            )
        if mechanism.options.sinks:
            raise UnsupportedError(
                f"softmax must have no sinks, because the rows of its matrix must add up to 1; got sinks=true in {name}. Give "
                "another model"
            )

    def catch(mechanism: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = _FORWARD.bind(mechanism, *args, **kwargs).arguments
        tensors = {name: call.get(name) for name in ("query", "key", "value", "key_valid")}
        seen(**tensors, is_causal=mechanism.geometry.causal)

    handles = [mechanism.register_forward_pre_hook(catch, with_kwargs=True) for mechanism in mechanisms.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _calls(model: Any, seen: Callable[..., None]) -> Iterator[None]:
    """Return a context in which the model uses PyTorch's ``scaled_dot_product_attention`` if it has a choice, and ``seen`` gets
    the arguments of every call."""
    fused = [module for module in model.modules() if getattr(module, "fused_attn", None) is False]  # those of timm
    library = sys.modules.get("transformers")  # if it is not imported, none of its models exists
    ours = library is not None and isinstance(model, library.PreTrainedModel)
    before = getattr(model.config, "_attn_implementation", None) if ours else None
    if before not in (None, "sdpa"):
        model.set_attn_implementation("sdpa")
    for module in fused:
        module.fused_attn = True
    try:
        with _WatchCalls(seen):
            yield
    finally:
        for module in fused:
            module.fused_attn = False
        if before not in (None, "sdpa"):
            model.set_attn_implementation(before)


class _WatchCalls(TorchFunctionMode):
    """Context that reports every call of ``scaled_dot_product_attention``."""

    def __init__(self, seen: Callable[..., None]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            self.seen(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _has_padding(batch: Any) -> bool:
    """Return True if the attention mask of a batch hides a token."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask is not None and not bool(mask.bool().all())


def _padding(reason: str) -> UnsupportedError:
    return UnsupportedError(f"the batch must not hold padding, because {reason}. Cut every sequence to its real tokens")


@dataclass(frozen=True)
class _Call:
    """Arguments of PyTorch's ``scaled_dot_product_attention``, and the padding mask of a mechanism of attn-zoo."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch key_heads keys head_dim"]
    value: Float[Tensor, "batch key_heads keys head_dim"]
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    key_valid: Bool[Tensor, "batch keys"] | None = None

    def repeated(self, shared: Tensor) -> Tensor:
        """Return keys or values with one head for each query head."""
        return shared.repeat_interleave(self.query.shape[-3] // shared.shape[-3], dim=-3) if self.enable_gqa else shared


def _matrix(call: _Call) -> Float[Tensor, "batch heads queries keys"]:
    """Compute softmax(Q Kᵀ · scale) in float32 or more."""
    if call.key_valid is not None and not bool(call.key_valid.all()):
        raise _padding("padding would change the singular values")
    query, key, mask = call.query, call.repeated(call.key), call.attn_mask
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) @ key.to(dtype).mT) * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)
    if call.is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1)


def _inputs(call: _Call) -> AttentionInputs:
    query, key, value = call.query, call.repeated(call.key), call.repeated(call.value)
    if call.scale is not None:
        query = query * (call.scale * query.shape[-1] ** 0.5)
    key_valid, past_only = (call.key_valid, False) if call.attn_mask is None else _read_mask(call.attn_mask, query, key)
    return AttentionInputs(query.contiguous(), key.contiguous(), value.contiguous(), key_valid, call.is_causal or past_only)


def _read_mask(mask: Tensor, query: Tensor, key: Tensor) -> tuple[Bool[Tensor, "batch keys"] | None, bool]:
    """Return the padding mask that an attention mask contains (None if all keys are real), and True if the mask is causal.

    Raises:
        UnsupportedError: the mask is not a combination of a causal mask and padding.
    """
    whole = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if whole.dtype != torch.bool:
        if not bool(((whole == 0) | (whole <= _HIDDEN)).all()):
            raise UnsupportedError(
                "the model must not add a bias to its attention scores, because other mechanisms cannot use a bias. Give another "
                "model"
            )
        whole = whole == 0
    last = whole[:, :1, -1:]  # the last query attends to every real key, causal or not
    past = torch.ones(whole.shape[-2:], dtype=torch.bool, device=whole.device).tril()
    key_valid = None if bool(last.all()) else last[:, 0, 0]
    if bool((whole == last).all()):
        return key_valid, False
    if query.shape[2] == key.shape[2] and bool((whole == (last & past)).all()):
        return key_valid, True
    raise UnsupportedError(
        "the attention mask of the model must be causal or hide padding only, because other mechanisms cannot use any other "
        "mask. Give another model"
    )

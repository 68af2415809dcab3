"""Interception of attention calls while a model runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attn_zoo.contract import Attention, UnsupportedError

_FORWARD = inspect.signature(Attention.forward)

Seen = Callable[..., None]
"""Function that receives the arguments of each attention call."""


def watch_mechanisms(model: nn.Module, mechanisms: Mapping[str, Attention], batch: Any, seen: Seen) -> None:
    """Run the model on the batch, and call ``seen(mechanism, query=..., key=..., ...)`` before each mechanism runs.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, or has sinks.
    """
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

    def catch(mechanism: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        call = dict(_FORWARD.bind(mechanism, *arguments, **keywords).arguments)
        seen(call.pop("self"), **call)

    handles = [mechanism.register_forward_pre_hook(catch, with_kwargs=True) for mechanism in mechanisms.values()]
    try:
        call_model(model, batch)
    finally:
        for handle in handles:
            handle.remove()


def watch_calls(model: nn.Module, batch: Any, seen: Seen) -> None:
    """Run the model on the batch, and call ``seen`` with the arguments of each call of PyTorch's
    ``scaled_dot_product_attention``."""
    # Modules of timm compute attention themselves or call PyTorch's function, depending on `fused_attn`.
    switched: list[Any] = [module for module in model.modules() if getattr(module, "fused_attn", None) is False]
    for module in switched:
        module.fused_attn = True
    try:
        with _WatchCalls(seen):
            call_model(model, batch)
    finally:
        for module in switched:
            module.fused_attn = False


class _WatchCalls(TorchFunctionMode):
    """Context that reports every call of ``scaled_dot_product_attention``."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if function is F.scaled_dot_product_attention:
            self.seen(*args, **keywords)
        return function(*args, **keywords)


def mechanisms_of(model: nn.Module) -> dict[str, Attention]:
    """Return the mechanisms of attn-zoo that a model contains. The keys are the names of their modules."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Attention)}


def call_model(model: nn.Module, batch: Any, **further: Any) -> Any:
    """Return the output of a model for a batch and further keyword arguments. A batch that is a mapping is passed as keyword
    arguments, anything else as one argument."""
    return model(**batch, **further) if isinstance(batch, Mapping) else model(batch, **further)


def padding_mask(batch: Any) -> Bool[Tensor, "batch keys"] | None:
    """Return the attention mask of a batch, which is True for real tokens, or None if there is none."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return None if mask is None else mask.bool()


def is_transformers(model: nn.Module) -> bool:
    """Return True if the model is one of Hugging Face's library transformers."""
    library = sys.modules.get("transformers")  # if it is not imported, none of its models exists
    return library is not None and isinstance(model, library.PreTrainedModel)


def implementation_of(model: nn.Module) -> str | None:
    """Return the name of the attention implementation that a Hugging Face model uses, such as ``sdpa``, or None if the model does
    not have this setting."""
    return getattr(model.config, "_attn_implementation", None)


def refuse_blind(model: nn.Module, found: object) -> None:
    """Raise an error if no attention was intercepted in the model.

    Raises:
        UnsupportedError: ``found`` is empty.
    """
    if not found:
        raise UnsupportedError(
            f"no attention was found in {type(model).__name__}: a model must have mechanisms of attn-zoo or call "
            "scaled_dot_product_attention. Load a model of transformers with attn_implementation='eager' or 'sdpa'"
        )


@contextmanager
def as_in_evaluation(model: nn.Module) -> Iterator[None]:
    """Return a context in which the model is in evaluation mode. After the context, every module is in its earlier mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

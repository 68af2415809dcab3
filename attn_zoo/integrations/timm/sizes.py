"""Number of tokens in the layers of a timm model, and changes of the image size."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.timm.layer import TimmAttention


def tokens_in(model: nn.Module, layers: dict[str, nn.Module]) -> dict[str, int]:
    """Return the number of tokens in each layer, by the path of the layer. Tokens are patches and prefix tokens (class token,
    registers).

    A VisionTransformer states this number, also if it is part of another model, as with ``features_only=True``. Any other model is
    run on an image of zeros in its default size, and the tokens are counted.

    Args:
        layers: attention modules by path; one module may have several paths.

    Raises:
        UnsupportedError: the model has no default size, or cannot process an image of this size.
    """
    for module in model.modules():
        if _is_vision_transformer(module) and set(layers.values()) <= set(module.modules()):
            return dict.fromkeys(layers, _tokens(module, module.patch_embed))
    advice = (
        f"the number of tokens of timm's {type(model).__name__} is unknown, but must be known. Give length=NUMBER, or give an "
        "input as example= to count its tokens"
    )
    settings: Any = getattr(model, "pretrained_cfg", None) or {}
    stem = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if "input_size" not in settings or stem is None:
        raise UnsupportedError(advice)
    shape = (1, stem.in_channels, *settings["input_size"][1:])
    try:
        return count_tokens(model, layers, stem.weight.new_zeros(shape))
    except Exception as error:  # a model may raise anything on an image of the wrong size
        raise UnsupportedError(f"{advice}. An image of shape {shape} was tried: {error}") from error


@torch.no_grad()
def count_tokens(model: nn.Module, layers: dict[str, nn.Module], example: Any) -> dict[str, int]:
    """Run the model on ``example`` in evaluation mode, and return the number of tokens in each layer, by the path of the layer.

    Args:
        layers: attention modules by path; one module may have several paths.
        example: the model's input.

    Raises:
        UnsupportedError: a layer is not called, or is called with different numbers of tokens.
    """
    seen: dict[nn.Module, set[int]] = {layer: set() for layer in layers.values()}

    def count(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen[layer].add(given[0].shape[1])

    hooks = [layer.register_forward_pre_hook(count) for layer in seen]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()(example)
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in training.items():
            module.training = before
    lengths = {path: sorted(seen[layer]) for path, layer in layers.items()}
    for path, counts in lengths.items():
        if len(counts) != 1:
            raise UnsupportedError(
                f"{path} must be called on this example, each time with the same number of tokens; got "
                f"{', '.join(map(str, counts)) or 'no call'}. Give length= instead of example="
            )
    return {path: counts[0] for path, counts in lengths.items()}


def set_input_size(
    model: nn.Module,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
) -> int:
    """Call timm's ``model.set_input_size``, and resize the layers of attn-zoo to the new number of tokens.

    The mechanism's ``resize_length`` interpolates or cuts parameters that depend on the position. These parameters and the position
    embedding become new parameters, so create the optimiser afterwards. If one layer cannot be resized, nothing is changed.

    Args:
        img_size, patch_size: height and width of the images, and of a patch, in pixels. None does not change them.

    Returns:
        The new number of tokens.

    Raises:
        UnsupportedError: the model is not a VisionTransformer or has no layer of attn-zoo, or a mechanism cannot be resized.
    """
    if not _is_vision_transformer(model):
        raise UnsupportedError(
            f"only a VisionTransformer of timm can be resized; got a {type(model).__name__}. Build the model again for the "
            "other image size"
        )
    layers = {path: module for path, module in model.named_modules() if isinstance(module, TimmAttention)}
    if not layers:
        raise UnsupportedError(
            f"this {type(model).__name__} must have a layer of attn-zoo, and has none. Call the model's own method set_input_size"
        )
    sizes = {"img_size": _pair(img_size), "patch_size": _pair(patch_size)}
    trial = copy.deepcopy(model.get_submodule("patch_embed"))
    trial.set_input_size(**sizes)  # type: ignore[operator]  # of timm's PatchEmbed
    length = _tokens(model, trial)
    for path, layer in layers.items():
        try:
            copy.deepcopy(layer.mechanism).resize_length(length)
        except (UnsupportedError, ValueError) as refusal:
            raise UnsupportedError(f"{path} cannot be resized to {length} tokens: {refusal}") from refusal
    model.set_input_size(**sizes)  # type: ignore[operator]  # of timm's VisionTransformer
    for layer in layers.values():
        layer.resize_length(length)
    return length


def _is_vision_transformer(model: nn.Module) -> bool:
    # Imported here, because importing timm takes seconds and building a layer does not need it.
    from timm.models.vision_transformer import VisionTransformer

    return isinstance(model, VisionTransformer)


def _tokens(model: Any, patch_embed: Any) -> int:
    return int(patch_embed.num_patches) + int(model.num_prefix_tokens)


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size

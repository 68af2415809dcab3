"""timm's VisionTransformer with any mechanism. It is built from given sizes, or from timm's name of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import Patches, UnsupportedError
from attn_zoo.contract.auxiliary import expect_calls
from attn_zoo.integrations.timm import attention_layer, replace_attention
from attn_zoo.layer import join_layers
from attn_zoo.rows import RowName


class ImageClassifier(nn.Module):
    """Image classifier: timm's VisionTransformer with any mechanism. It is called with (images, valid), and ``valid`` must be None.

    Args:
        inputs: size of the images and of the patches.
        backbone: timm's name of a VisionTransformer whose architecture is used. An empty string means timm's plain
            VisionTransformer.
        shared_weights: if True, one block is applied as many times as the model would otherwise have blocks.
        short_convolution: argument of ``MultiHeadAttention``, over the class token and the patches in their order.
        output_gate: argument of ``MultiHeadAttention``, in every block.
        attention: name of a mechanism, or a hybrid such as ``3*linformer+softmax``, whose mechanisms the blocks use in turn.
            ``options`` are the mechanism's options by name, and ``implementation`` names its implementation. For the options of a
            hybrid, see ``attn_zoo.rows``.

    Raises:
        ValueError: a hybrid names more mechanisms than there are blocks with separate weights.
        UnsupportedError: ``backbone`` is not a VisionTransformer of timm, or its attention cannot be replaced.
    """

    def __init__(
        self,
        inputs: Patches,
        *,
        classes: int,
        attention: str,
        implementation: str,
        options: Mapping[str, Any],
        backbone: str = "",
        shared_weights: bool = False,
        short_convolution: int = 0,
        output_gate: str = "none",
        **sizes: Any,
    ) -> None:
        super().__init__()
        # Xavier initialisation, like the token encoder; with timm's default of N(0, 0.02) narrow models start learning slowly.
        shared = {**sizes, "num_classes": classes, "weight_init": "jax"}
        shared |= {"img_size": (inputs.height, inputs.width), "patch_size": inputs.patch, "in_chans": inputs.channels}
        patches = (inputs.height // inputs.patch) * (inputs.width // inputs.patch)
        length = patches + (prefix_tokens(backbone) if backbone else 1)
        bound = {"length": length, "implementation": implementation, "short_convolution": short_convolution, **options}
        bound["output_gate"] = output_gate
        hybrid = RowName(attention).is_hybrid
        if not hybrid:  # timm's own attention is built for a hybrid, and replaced below
            shared["attn_layer"] = attention_layer(attention, **bound)
        if backbone:
            self.transformer = _create(backbone, **shared)
        else:
            # Imported here because importing timm takes seconds, which token tasks can save.
            from timm.models.vision_transformer import VisionTransformer

            self.transformer = VisionTransformer(class_token=True, global_pool="token", qkv_bias=True, **shared)
        if hybrid:
            RowName(attention).layers(1 if shared_weights else len(self.transformer.blocks))
            replace_attention(self.transformer, attention, **bound)
            return
        if shared_weights:
            blocks = self.transformer.blocks
            self.transformer.blocks = nn.Sequential(*[blocks[0]] * len(blocks))
            expect_calls(self.transformer, len(blocks))
        join_layers(self.transformer)

    def forward(
        self, images: Float[Tensor, "batch channels height width"], valid: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the scores of the classes for each image.

        Raises:
            ValueError: ``valid`` is given.
        """
        if valid is not None:
            raise ValueError("valid must be None for images, because images are never padded. Pass valid=None")
        return self.transformer(images)


def backbone_sizes(backbone: str) -> dict[str, Any]:
    """Return the width, depth, number of heads and MLP ratio of timm's VisionTransformer with this name. No weights are loaded.

    Raises:
        UnsupportedError: timm has no VisionTransformer of this name.
    """
    transformer = _on_meta(backbone)
    first = transformer.blocks[0]
    return {
        "dim": transformer.embed_dim,
        "depth": len(transformer.blocks),
        "heads": first.attn.num_heads,
        "mlp_ratio": first.mlp.fc1.out_features / transformer.embed_dim,
    }


def prefix_tokens(backbone: str) -> int:
    """Return the number of tokens that timm's VisionTransformer with this name puts before the patches: the class token and
    registers.

    Raises:
        UnsupportedError: timm has no VisionTransformer of this name.
    """
    return int(_on_meta(backbone).num_prefix_tokens)


def _on_meta(backbone: str) -> Any:
    with torch.device("meta"):
        return _create(backbone)


def _create(backbone: str, **rest: Any) -> Any:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    if not timm.is_model(backbone):
        raise UnsupportedError(
            f"model.backbone must be a model of timm; got {backbone!r}. List them with timm.list_models('vit_*')"
        )
    try:
        made = timm.create_model(backbone, pretrained=False, **rest)
    except TypeError as error:
        raise UnsupportedError(
            f"model.backbone={backbone} cannot be built with another attention ({error}). Choose another backbone"
        ) from error
    if not isinstance(made, VisionTransformer):
        raise UnsupportedError(
            f"model.backbone must be a VisionTransformer of timm; got {backbone}, a {type(made).__name__}. Choose a vit_ or deit_ "
            "model"
        )
    if kinds := {type(block).__name__ for block in made.blocks if not hasattr(block, "attn")}:
        raise UnsupportedError(
            f"model.backbone={backbone} cannot be built with another attention, because its blocks ({', '.join(kinds)}) do not "
            "have one attention module each. Choose another backbone"
        )
    return made

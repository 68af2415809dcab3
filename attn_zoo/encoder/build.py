"""Building the network for a task, with the same initial shared weights whatever the attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import Patches, TaskSpec, Tokens
from attn_zoo.encoder.token import TokenClassifier
from attn_zoo.integrations.timm import attention_layer
from attn_zoo.layer import MultiHeadAttention, join_layers


def build_model(
    task: TaskSpec,
    *,
    attention: str,
    options: Mapping[str, Any],
    implementation: str = "eager",
    dim: int,
    depth: int,
    heads: int,
    mlp_ratio: float,
    dropout: float,
) -> nn.Module:
    """The classifier for a task: our small encoder on tokens, timm's VisionTransformer on patches.

    Both read the answer off a class token that stands first.

    Raises:
        UnsupportedError: the attention does not claim what the task needs.
        ValueError: an option or size breaks its rule.
    """
    if isinstance(task.inputs, Tokens):
        return TokenClassifier(
            vocabulary=task.inputs.vocabulary,
            length=task.length,
            classes=task.classes,
            dim=dim,
            depth=depth,
            heads=heads,
            mlp_ratio=mlp_ratio,
            dropout=dropout,
            attention=attention,
            implementation=implementation,
            options=dict(options),
        )
    return ImageClassifier(
        task.inputs,
        classes=task.classes,
        attn_layer=attention_layer(attention, length=task.length + 1, implementation=implementation, **options),
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=mlp_ratio,
        pos_drop_rate=dropout,
        proj_drop_rate=dropout,
    )


def build_paired_model(task: TaskSpec, *, seed: int, attention: str, options: Mapping[str, Any], **rest: Any) -> nn.Module:
    """``build_model`` under a seed, its shared weights equal to those of the softmax model of the same seed.

    Every row of a table so starts from the same point, up to what only its mechanism has.
    """
    rest_of_reference = {**rest, "implementation": "eager"}
    torch.manual_seed(seed)
    reference = build_model(task, attention="softmax", options={}, **rest_of_reference)
    torch.manual_seed(seed)
    model = build_model(task, attention=attention, options=options, **rest)
    share_initial_weights(model, reference)
    return model


@torch.no_grad()
def share_initial_weights(model: nn.Module, reference: nn.Module) -> None:
    """Copy every parameter that both models hold under one name and shape, then restart streams from their projections."""
    theirs = reference.state_dict()
    for name, ours in model.state_dict().items():
        if name in theirs and theirs[name].shape == ours.shape:
            ours.copy_(theirs[name])
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.start_streams()


class ImageClassifier(nn.Module):
    """timm's VisionTransformer under the calling convention of a batch, whose padding images leave empty."""

    def __init__(self, inputs: Patches, *, classes: int, **rest: Any) -> None:
        from timm.models.vision_transformer import VisionTransformer  # importing timm takes seconds that token tasks need not wait

        super().__init__()
        self.transformer = VisionTransformer(
            img_size=(inputs.height, inputs.width),
            patch_size=inputs.patch,
            in_chans=inputs.channels,
            num_classes=classes,
            class_token=True,
            global_pool="token",
            qkv_bias=True,
            weight_init="jax",  # Xavier, like the token encoder; timm's default of N(0, 0.02) starts narrow models slowly
            **rest,
        )
        join_layers(self.transformer)

    def forward(
        self, images: Float[Tensor, "batch channels height width"], valid: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Class scores.

        Raises:
            ValueError: ``valid`` is given.
        """
        if valid is not None:
            raise ValueError("image tasks have no padding; pass valid=None")
        return self.transformer(images)

"""Functions that build the network for a task. Weights that networks have in common start from the same values for
every mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from attn_zoo.contract import Frames, Pairs, Patches, TaskSpec, UnsupportedError
from attn_zoo.encoder.image import ImageClassifier
from attn_zoo.encoder.token import PairClassifier, PositionClassifier, TokenClassifier
from attn_zoo.layer import MultiHeadAttention


def build_model(
    task: TaskSpec,
    *,
    attention: str,
    options: Mapping[str, Any],
    implementation: str = "auto",
    dim: int,
    depth: int,
    heads: int,
    mlp_ratio: float,
    dropout: float,
    backbone: str = "",
    shared_weights: bool = False,
    reuse_keys: bool = False,
    short_convolution: int = 0,
    output_gate: str = "none",
    key_value_heads: int = 0,
    latent_dim: int = 0,
    positions: str = "learned",
) -> nn.Module:
    """Return a new network for a task: a small encoder for tokens and frames, or timm's VisionTransformer for patches.

    If each example has one label, the network predicts it from a class token.

    Args:
        backbone: timm's name of a VisionTransformer, for patches only. ``dim``, ``depth``, ``heads`` and ``mlp_ratio`` must be
            those of this model.
        shared_weights: if True, one block is applied ``depth`` times.
        reuse_keys: if True, all applications of the shared block use the keys and values of the first application; for tokens and
            frames only.
        short_convolution, output_gate: arguments of ``MultiHeadAttention``, in every block.
        key_value_heads, latent_dim: arguments of ``MultiHeadAttention``; for tokens and frames only.
        positions: ``learned`` or, for tokens and frames only, ``none``.

    Raises:
        UnsupportedError: the mechanism lacks a capability that the task needs, timm has no such VisionTransformer, the keys of the
            mechanism cannot be reused, or an argument for tokens and frames is set for patches.
        ValueError: an option or size breaks its rule, or ``backbone`` is set for tokens or frames.
    """
    entry: dict[str, Any] = {"attention": attention, "implementation": implementation, "options": dict(options)}
    entry |= {"short_convolution": short_convolution, "output_gate": output_gate, "shared_weights": shared_weights}
    if isinstance(task.inputs, Patches):
        if reuse_keys:
            raise UnsupportedError(
                "model.reuse_keys must be false for tasks on images, because every block of timm's VisionTransformer "
                "computes its own keys. Set only model.shared_weights"
            )
        if key_value_heads not in (0, heads):
            raise UnsupportedError(
                "model.key_value_heads must be 0 for tasks on images, because timm's VisionTransformer has equally many "
                f"heads of queries, keys and values; got {key_value_heads}"
            )
        if latent_dim:
            raise UnsupportedError(
                "model.latent_dim must be 0 for tasks on images, because timm's VisionTransformer projects keys and values "
                f"from the tokens themselves; got {latent_dim}"
            )
        if positions != "learned":
            raise UnsupportedError(
                "model.positions must be learned for tasks on images, because timm's VisionTransformer learns its positions; "
                f"got {positions}"
            )
        sizes: dict[str, Any] = {"pos_drop_rate": dropout, "proj_drop_rate": dropout}
        if not backbone:
            sizes |= {"embed_dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": mlp_ratio}
        return ImageClassifier(task.inputs, classes=task.classes, backbone=backbone, **entry, **sizes)
    if backbone:
        raise ValueError(
            f"model.backbone must be left out for this task, because its inputs are a sequence and not an image; got {backbone!r}"
        )
    kind: type[nn.Module] = TokenClassifier
    if isinstance(task.inputs, Pairs):
        kind = PairClassifier
    elif task.labels == "position":
        kind = PositionClassifier
    sizes = {"dim": dim, "depth": depth, "heads": heads, "mlp_ratio": mlp_ratio, "dropout": dropout}
    sizes |= {"reuse_keys": reuse_keys, "positions": positions, "key_value_heads": key_value_heads, "latent_dim": latent_dim}
    sizes |= {"channels": task.inputs.channels} if isinstance(task.inputs, Frames) else {"vocabulary": task.inputs.vocabulary}
    return kind(length=task.length, classes=task.classes, causal=task.causal, **sizes, **entry)


def build_paired_model(task: TaskSpec, *, seed: int, attention: str, options: Mapping[str, Any], **rest: Any) -> nn.Module:
    """Return the network that ``build_model`` builds with this seed. Weights with the same name and shape as in a softmax
    network are copied from a softmax network with this seed.
    """
    rest_of_reference = {**rest, "implementation": "eager"}
    torch.manual_seed(seed)
    reference = build_model(task, attention="softmax", options={}, **rest_of_reference)
    torch.manual_seed(seed)
    model = build_model(task, attention=attention, options=options, **rest)
    share_initial_weights(model, reference)
    return model


def build_token_reader(model: nn.Module, task: TaskSpec) -> PositionClassifier:
    """Return a classifier of tokens for pre-training. It shares the encoder of ``model``, so pre-training changes ``model`` too.

    The classifier has a new head, which predicts the input tokens.

    Raises:
        UnsupportedError: the inputs of the task are frames or patches, or the task has a label for each
            position.
    """
    if not isinstance(model, TokenClassifier | PairClassifier) or isinstance(task.inputs, Frames | Patches):
        kinds = {Frames: "frames", Patches: "patches"}
        other = kinds.get(type(task.inputs), "labelled by position, which trains the whole encoder without pre-training")
        raise UnsupportedError(
            "budget.pretrain_steps must be 0 for this task, because pretraining needs inputs of tokens with one label per "
            f"example, and the inputs of this task are {other}. Set budget.pretrain_steps=0"
        )
    return PositionClassifier(classes=task.inputs.vocabulary, encoder=model.encoder)


@torch.no_grad()
def share_initial_weights(model: nn.Module, reference: nn.Module) -> None:
    """Copy to ``model`` all parameters and buffers of ``reference`` that have the same name and shape in both.

    Then set each stream (extra projection of a mechanism) to a copy of the projection to queries, keys or values that its card
    names.
    """
    theirs = reference.state_dict()
    for name, ours in model.state_dict().items():
        if name in theirs and theirs[name].shape == ours.shape:
            ours.copy_(theirs[name])
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.start_streams()

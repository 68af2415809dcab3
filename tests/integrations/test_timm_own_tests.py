"""Calls of timm's own tests of every model, on five small ViTs with each mechanism in place of timm's attention."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from tiers import covering, kinds
from timm.models import create_feature_extractor, get_graph_node_names

from attn_zoo import UnsupportedError, attentions
from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.timm import TimmAttention, attention_layer, replace_attention

VITS = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_little_patch16_reg4_gap_256",
    "deit3_small_patch16_224",
    "vit_tiny_r_s16_p8_224",
)
"""A plain one, one with two heads, one with registers and pooling, one with layer scale, one behind a convolutional network."""

PAIRS = covering(attentions(), VITS, kinds(attentions()))
"""Mechanisms and models; one mechanism of each kind before the exhaustive tier."""
SIZE = 64
SMALL: dict[str, Any] = {"img_size": SIZE, "embed_dim": 32, "num_heads": 2, "depth": 4}


def vit(name: str, attention: str = "softmax", **changes: Any) -> Any:
    torch.manual_seed(0)
    return replace_attention(timm.create_model(name, **{**SMALL, **changes}), attention)


def images(batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def graph_of(model: Any, inputs: torch.Tensor) -> Any:
    """Answer of the model's graph, as timm's ``create_feature_extractor`` makes it, in the model's own mode."""
    names, at_evaluation = get_graph_node_names(model)
    output = (names if model.training else at_evaluation)[-1]
    return create_feature_extractor(model, {output: "output"})(inputs)["output"]


@pytest.mark.parametrize(("attention", "name"), PAIRS)
@torch.no_grad()
def test_forward_features_intermediates_and_the_graph_agree(attention, name):
    model = vit(name, attention).eval()
    out, tokens = model(images()), model.forward_features(images())
    assert out.shape == (1, 1000) and out.isfinite().all()
    last, intermediates = model.forward_intermediates(images())
    assert torch.equal(last, tokens) and len(intermediates) == 4
    assert all(feature.isfinite().all() and feature.shape[:2] == (1, 32) for feature in intermediates)
    torch.testing.assert_close(graph_of(model, images()), out)


@pytest.mark.parametrize(("attention", "name"), PAIRS)
@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.exhaustive)])  # graphs are compared above
def test_backward_reaches_every_parameter(attention, name, graph):
    model = vit(name, attention, num_classes=42).train()
    out = graph_of(model, images(2)) if graph else model(images(2))
    assert out.shape == (2, 42)
    (out.square().mean() + auxiliary_loss(model)).backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(("attention", "name"), PAIRS)
@torch.no_grad()
def test_features_only_gives_feature_maps(attention, name):
    extractor = vit(name, attention, features_only=True).eval()
    assert sum(isinstance(module, TimmAttention) for module in extractor.modules()) == 4
    features = extractor(images())
    assert [feature.shape[1] for feature in features] == extractor.feature_info.channels()
    assert all(feature.isfinite().all() for feature in features)


@pytest.mark.parametrize("name", VITS)
@torch.no_grad()
def test_the_default_configuration_names_the_head_and_the_stem(name):
    model = vit(name, "linformer").eval()
    state, settings = model.state_dict(), model.default_cfg
    for part in ("classifier", "first_conv"):
        named = settings[part] if isinstance(settings[part], tuple) else (settings[part],)
        assert all(f"{key}.weight" in state for key in named)
    model.reset_classifier(0)
    assert model(images()).shape == (1, model.num_features)


@pytest.mark.parametrize("kind", ["getter", "fx"])
@torch.no_grad()
def test_features_only_takes_attn_layer(kind):
    layer = attention_layer("linformer", length=17, projected_length=4)
    extractor = timm.create_model("vit_tiny_patch16_224", **SMALL, attn_layer=layer, features_only=True, feature_cls=kind).eval()
    assert [feature.isfinite().all().item() for feature in extractor(images())] == [True] * 3


def test_torchscript_is_refused_by_name():
    model = vit(VITS[0], "linformer", scriptable=True).eval()
    with pytest.raises(UnsupportedError, match=r"linformer: TorchScript is not supported; use torch.compile or torch.export"):
        torch.jit.script(model)

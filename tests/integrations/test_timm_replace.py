"""Attention replaced in unmodified models of timm: weights kept, lengths read, refusals that leave the model unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from tiers import of_each_kind
from timm.layers.attention import Attention
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import prune

from attn_zoo import UnknownNameError, UnsupportedError, attentions, card
from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.timm import TimmAttention, replace_attention, set_input_size

SIZES: dict[str, Any] = {
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "num_classes": 3,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
}


def vit(**changes) -> Any:
    torch.manual_seed(0)
    return VisionTransformer(**{**SIZES, **changes}).eval()


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 1, 8, 8)), generator=torch.Generator().manual_seed(1))


def layers(model: nn.Module) -> list[TimmAttention]:
    return [module for module in model.modules() if isinstance(module, TimmAttention)]


EXACT: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {}),
    ("softmax", {"fused": True}),
    ("softmax", {"implementation": "sdpa"}),
    ("longformer", {"window": 35, "global_tokens": 2}),
    ("topk", {"kept": 17}),
    ("local", {"block": 17}),
]


@pytest.mark.parametrize(("name", "options"), EXACT)
@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": True, "norm_layer": "rmsnorm", "qkv_bias": False}, {"scale_attn_norm": True, "proj_bias": False}]
)
def test_exact_attention_changes_nothing(name, options, changes):
    model = vit(**changes).double()
    for norm in (m for key, m in model.named_modules() if key.endswith("norm") and not isinstance(m, nn.Identity)):
        nn.init.normal_(norm.weight)
    expected = model(images().double())
    report = replace_attention(model, name, **options).attention_replacement
    torch.testing.assert_close(model(images().double()), expected, rtol=0, atol=1e-12)
    assert not [m for m in model.modules() if type(m) is Attention]
    assert [layer.path for layer in report.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert all(layer.dropped == () and layer.length == 17 for layer in report.layers)


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_weights_are_kept_and_what_is_added_is_told(name):
    model = vit(qk_norm=True)
    before = copy.deepcopy(model.blocks[1].attn)
    report = replace_attention(model, name).attention_replacement.layers[1]
    layer = layers(model)[1]
    reads = layer.reads
    parts = {
        kind: dict(zip(("query", "key", "value"), getattr(before.qkv, kind).chunk(3), strict=True)) for kind in ("weight", "bias")
    }
    for kind, part in parts.items():
        for read in reads:
            torch.testing.assert_close(layer.projections.get_parameter(f"{read}.{kind}"), part[read])
        for stream in layer.streams:
            torch.testing.assert_close(layer.stream_projections.get_parameter(f"{stream.name}.{kind}"), part[stream.starts_as])
    torch.testing.assert_close(layer.out.state_dict(), before.proj.state_dict())
    assert set(report.kept) | set(report.dropped) == {"query", "key", "value", "out", "q_norm", "k_norm"}
    assert ("query" in report.kept, "key" in report.kept, "k_norm" in report.kept) == (
        "query" in reads,
        "key" in reads,
        "key" in reads,
    )
    had = {"projections", "out", "q_norm", "k_norm"}
    assert set(report.added) == {key for key, _ in layer.named_parameters() if key.split(".")[0] not in had}
    assert model(images()).isfinite().all()
    model.train()(images()).square().sum().backward()


def test_frozen_weights_stay_frozen_and_rates_and_modes_stay():
    model = vit(attn_drop_rate=0.2, proj_drop_rate=0.3)
    model.requires_grad_(False)
    model.blocks[1].attn.qkv.bias.requires_grad_(True)
    model.blocks[0].train()
    replace_attention(model, "linformer", projected_length=4, sharing="layerwise")
    first, second = layers(model)
    trained = [key for key, p in first.named_parameters() if p.requires_grad]
    assert trained and all(key.startswith("mechanism.") for key in trained)
    assert [key for key, p in second.named_parameters() if p.requires_grad] == [
        f"projections.{name}.bias" for name in ("query", "key", "value")
    ], "with sharing=layerwise, the first layer holds the projection for both"
    assert first.training and not second.training
    assert first.mechanism.options.dropout == 0.2 and first.output_dropout.p == 0.3


def test_dtype_of_the_weights_and_a_state_saved_and_loaded():
    model = vit().bfloat16()
    replace_attention(model, "performer")
    assert {p.dtype for p in model.state_dict().values() if p.is_floating_point()} == {torch.bfloat16}
    other = vit().bfloat16()
    replace_attention(other, "performer")
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images().bfloat16()), model(images().bfloat16()))


def test_one_layer_at_several_places_is_replaced_once():
    model = vit()
    model.blocks = nn.Sequential(model.blocks[0], model.blocks[0])
    expected = model(images())
    assert len(replace_attention(model, "softmax").attention_replacement.layers) == 2 and len(layers(model)) == 1
    torch.testing.assert_close(model(images()), expected)


@pytest.mark.parametrize(
    ("name", "changes", "tokens"),
    [
        ("deit_tiny_distilled_patch16_224", {}, 4 + 2),
        ("vit_little_patch16_reg4_gap_256", {}, 4 + 4),
        ("vit_base_patch16_siglip_224", {}, 4),
        ("vit_tiny_r_s16_p8_224", {"img_size": 64}, 4 + 1),
        ("deit3_small_patch16_224", {"no_embed_class": True, "dynamic_img_size": True}, 4 + 1),
    ],
)
def test_tokens_are_read_off_the_model(name, changes, tokens):
    model: Any = timm.create_model(name, **{"img_size": 32, "embed_dim": 32, "num_heads": 2, "depth": 1, **changes}).eval()
    inputs = torch.randn(1, 3, model.patch_embed.img_size[0], model.patch_embed.img_size[1])
    expected = model(inputs)
    assert replace_attention(model, "softmax").attention_replacement.layers[0].length == tokens
    torch.testing.assert_close(model(inputs), expected)


@pytest.mark.parametrize(
    ("name", "size", "lengths"),
    [
        ("pit_ti_224", None, {730, 197, 50}),
        ("mobilevit_xxs", 64, {16, 4, 1}),
        ("mobilevit_xxs", None, {256, 64, 16}),
        ("crossvit_9_240", None, {401, 197}),
    ],
)
def test_models_of_several_stages_are_counted_in_an_example_or_an_image_of_their_size(name, size, lengths):
    torch.manual_seed(0)
    model: Any = timm.create_model(name).train()
    example = images(1, 3, *([size, size] if size else model.pretrained_cfg["input_size"][1:]))
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(example)
    report: Any = replace_attention(model, "softmax", example=example if size else None).attention_replacement
    assert {layer.length for layer in report.layers} == lengths
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(example), expected, rtol=1e-4, atol=1e-5)


class TwoReadings(nn.Module):
    """Model whose attention is called at two lengths, or not at all."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        self.attn, self.called = Attention(16, 2), called

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attn(tokens)[:, :2] + self.attn(tokens[:, :2]) if self.called else tokens


@pytest.mark.parametrize(("called", "words"), [(True, "2, 4"), (False, "no call")])
def test_an_example_that_does_not_tell_the_length_is_refused(called, words):
    model = TwoReadings(called)
    with pytest.raises(
        UnsupportedError,
        match=f"attn must be called on this example, each time with the same number of tokens; got {words}. Give length=",
    ):
        replace_attention(model, "softmax", example=torch.randn(1, 4, 16))
    assert not model.attn._forward_pre_hooks
    with pytest.raises(UnsupportedError, match=r"the number of tokens of timm's TwoReadings is unknown, .* Give length=NUMBER"):
        replace_attention(model, "softmax")
    tokens = torch.randn(1, 4, 16)
    expected = model(tokens)
    replace_attention(model, "softmax", length=4)
    torch.testing.assert_close(model(tokens), expected)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "swin_tiny_patch4_window7_224",
            "SwinTransformer must hold a module timm.layers.Attention.*swin_transformer.WindowAttention",
        ),
        ("beit_base_patch16_224", "beit.Attention"),
        ("vit_relpos_small_patch16_224", "it has .*RelPosAttention"),
        ("eva02_tiny_patch14_224", "eva.EvaAttention"),
        ("vit_small_patch16_rope_224", "attention.AttentionRope"),
        ("volo_d1_224", "volo.OutlookAttention"),
        ("resnet18", "ResNet must hold .* it has no attention"),
    ],
)
def test_other_models_of_timm_are_refused_by_name(name, words):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(UnsupportedError, match=words):
        replace_attention(model, "softmax", length=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"block_fn": ParallelScalingBlock}, "ParallelScalingBlock"), ({"attn_layer": "diff"}, "DiffAttention")],
)
def test_other_blocks_of_timm_are_refused_by_name(changes, words):
    with pytest.raises(UnsupportedError, match=words):
        replace_attention(vit(**changes), "linear")


def test_refusals_leave_the_model_as_it_was():
    model = vit(attn_drop_rate=0.1)
    expected = model(images())
    for name, options, error, words in (
        ("performer", {}, UnsupportedError, "no option dropout, so attn_drop_rate must be 0"),
        ("linformer", {"projected_length": 99}, UnsupportedError, "must be less than the 17 keys"),
        ("linformer", {"projected_lengths": "4/4/4"}, ValueError, "3"),
        ("linformer", {"causal": True}, UnsupportedError, "no causal form"),
        ("linfomer", {}, UnknownNameError, "did you mean"),
        ("softmax", {"length": 17, "example": images()}, ValueError, "Leave one of them out"),
    ):
        with pytest.raises(error, match=words):
            replace_attention(model, name, **options)
    assert torch.equal(model(images()), expected) and not layers(model)
    adapted = vit()
    adapted.blocks[0].attn.qkv = nn.Sequential(adapted.blocks[0].attn.qkv)
    with pytest.raises(UnsupportedError, match=r"blocks.0.attn.qkv must be an nn.Linear without hooks; got a Sequential.*adapters"):
        replace_attention(adapted, "softmax")
    pruned = vit()
    prune.random_unstructured(pruned.blocks[0].attn.proj, "weight", 0.5)
    with pytest.raises(UnsupportedError, match=r"blocks.0.attn.proj must be .* without hooks; got one with hooks.* make pruning"):
        replace_attention(pruned, "softmax")
    for other, words in ((Attention(16, 2, attn_head_dim=4), "attn_head_dim"), (Attention(16, 2, dim_out=8), "dim_out")):
        adapted.blocks[0].attn = other
        with pytest.raises(UnsupportedError, match=words):
            replace_attention(adapted, "softmax")
    with pytest.raises(ValueError, match="Pass the model that holds it"):
        replace_attention(Attention(16, 2), "softmax", length=4)
    replace_attention(model, "softmax")
    with pytest.raises(UnsupportedError, match="attn-zoo has already replaced it"):
        replace_attention(model, "softmax")


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_images_of_other_sizes(name):
    """``dynamic_img_size`` works where the card says so; ``set_input_size`` resizes a mechanism, or refuses and changes nothing."""
    model = vit(dynamic_img_size=True)
    replace_attention(model, name)
    larger = images(2, 1, 12, 8)
    if card(name).can.any_length:
        assert model(larger).shape == (2, 3)
    else:
        with pytest.raises(UnsupportedError, match=r"built for 17 tokens .*; got 25.*set_input_size\(model, img_size=...\)"):
            model(larger)
        assert model(images(2, 1, 8, 4)).shape == (2, 3)  # all of these claim `shorter`
    refusal = ""
    try:
        assert set_input_size(model, (12, 8)) == 25
    except UnsupportedError as error:
        refusal = str(error)
    if refusal:
        assert "blocks.0.attn cannot be resized to 25 tokens" in refusal and not card(name).can.any_length
        assert model.pos_embed.shape[1] == 17 and model(images()).shape == (2, 3)
        return
    assert model.pos_embed.shape[1] == 25 and all(layer.mechanism.geometry.keys == 25 for layer in layers(model))
    (model.train()(larger).square().sum() + auxiliary_loss(model)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_sizes_that_cannot_be_set_are_refused():
    with pytest.raises(UnsupportedError, match="must have a layer of attn-zoo"):
        set_input_size(vit(), 12)
    with pytest.raises(
        UnsupportedError, match=r"only a VisionTransformer of timm can be resized; got a TwoReadings. Build the model again"
    ):
        set_input_size(TwoReadings(True), 12)
    shared = vit()
    replace_attention(shared, "linformer", projected_length=4, sharing="layerwise")
    assert set_input_size(shared, patch_size=4) == 5
    assert shared(images()).shape == (2, 3)
    with pytest.raises(UnsupportedError, match=r"blocks.0.attn cannot be resized to 2 tokens.*must be less than the 2 keys"):
        set_input_size(shared, patch_size=8)
    assert shared(images()).shape == (2, 3) and [layer.mechanism.geometry.keys for layer in layers(shared)] == [5, 5]


@pytest.mark.parametrize("model", [None, "vit_tiny_patch16_224"])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match="must be a model of timm"):
        replace_attention(model, "linformer")

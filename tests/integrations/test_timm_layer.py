"""Every mechanism built into timm's VisionTransformer through ``attn_layer``: arguments that are honoured and refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import timm
import torch
from tiers import of_each_kind
from timm.layers.attention import Attention
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from attn_zoo import UnknownNameError, UnsupportedError, attentions, card
from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.timm import TimmAttention, attention_layer
from attn_zoo.layer import join_layers

SIZES: dict[str, Any] = {
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "num_classes": 3,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
}


def vit(layer: type = Attention, **changes) -> Any:
    torch.manual_seed(0)
    made = VisionTransformer(**{**SIZES, **changes}, attn_layer=layer)
    for head in (m for name, m in made.named_modules() if name.endswith("head") and isinstance(m, nn.Linear)):
        nn.init.normal_(head.weight)  # some heads start at zero, which would hide every difference
    return made


def bound(name: str = "linformer", **options) -> type[TimmAttention]:
    return attention_layer(name, length=17, **({"projected_length": 4} if name == "linformer" and not options else options))


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 1, 8, 8)), generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, inputs: Tensor, steps: int = 1) -> dict[str, Tensor | None]:
    model.zero_grad()
    torch.manual_seed(2)
    for _ in range(steps):
        loss = model.train()(inputs).square().sum()
        (loss + auxiliary_loss(model)).backward()
    return {key: None if p.grad is None else p.grad.clone() for key, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(pytest.param(*each.values, {}, marks=each.marks) for each in of_each_kind(attentions())),
        ("performer", {"redraw": 2}),
        ("reformer", {"redraw": 2}),
    ],
)
def test_a_mechanism_of_each_kind_trains_with_all_of_timms_norms_and_checkpointing(name, options):
    built = vit(bound(name, **options), qk_norm=True, scale_attn_norm=True)
    layer = built.blocks[0].attn
    assert (layer.q_norm is not None, layer.k_norm is not None) == ("query" in layer.reads, "key" in layer.reads)
    steps = 3 if options else 2  # which redraw twice; the second step meets what the first left
    found = gradients(built, images(), steps)
    assert [key for key, grad in found.items() if grad is None or not grad.isfinite().all()] == []
    again = vit(bound(name, **options), qk_norm=True, scale_attn_norm=True)
    again.set_grad_checkpointing()
    torch.testing.assert_close(gradients(again, images(), steps), found)
    torch.testing.assert_close(dict(again.named_buffers()), dict(built.named_buffers()))


class Float32Norm(nn.LayerNorm):
    """Norm that returns float32, as every norm does under autocast on a GPU."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.float())


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_a_mechanism_of_each_kind_computes_in_bfloat16_under_autocast(name):
    built = vit(bound(name), qk_norm=True, norm_layer=Float32Norm).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = built.forward_features(images())
    with torch.no_grad():
        expected = built.forward_features(images())
    assert found.isfinite().all() and found.shape == expected.shape == (2, 17, 16)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"scale_attn_norm": True}, {"qkv_bias": False}, {"proj_bias": False}])
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"name": "longformer", "window": 35}])
def test_with_timms_weights_softmax_is_timms_own_attention(changes, options):
    theirs = vit(**changes).double().eval()
    ours = vit(attention_layer(**{"name": "softmax", "length": 17, **options}), **changes).double().eval()
    for norm in (m for m in theirs.modules() if isinstance(m, nn.LayerNorm)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    ours.load_state_dict(theirs.state_dict())
    inputs = images().double()
    torch.testing.assert_close(ours(inputs), theirs(inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [ResPostBlock, ParallelThingsBlock])
def test_other_blocks_of_timm(block):
    theirs, ours = (vit(layer, block_fn=block).double().eval() for layer in (Attention, bound("softmax")))
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(images().double()), theirs(images().double()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"global_pool": "map", "class_token": False, "reg_tokens": 1},
        {"global_pool": "avg"},
        {"global_pool": "token", "init_values": 1.0, "drop_path_rate": 0.1, "proj_drop_rate": 0.1, "pos_drop_rate": 0.1},
        {"global_pool": "avg", "class_token": False, "reg_tokens": 1, "no_embed_class": True},
        {"weight_init": "jax", "fix_init": True},
        {"weight_init": "moco", "pre_norm": True},
    ],
)
def test_pooling_prefix_tokens_and_ways_to_start(changes):
    built = vit(bound(), **changes)
    assert built.train()(images()).shape == (2, 3)
    features, (first, second) = built.eval().forward_intermediates(images())
    assert features.shape == (2, 17, 16) and first.shape == second.shape == (2, 16, 4, 4)
    assert built.get_intermediate_layers(images(), n=1)[0].shape == (2, 16, 16)
    torch.testing.assert_close(built.forward_head(features), built(images()))


@pytest.mark.parametrize("start", ["", "jax", "moco"])
def test_streams_start_as_copies_after_timm_has_drawn_its_weights(start):
    layer = vit(bound("longformer", window=3), weight_init=start).blocks[1].attn
    for stream in layer.streams:
        torch.testing.assert_close(
            layer.stream_projections[stream.name].state_dict(), layer.projections[stream.starts_as].state_dict()
        )
    assert {stream.starts_as for stream in layer.streams} == {"query", "key", "value"}


def test_a_norm_of_keys_leaves_numbers_per_head_alone():
    """The sum over the channels of a head is zero after LayerNorm."""
    layer = vit(bound("delta_rule"), qk_norm=True, norm_layer=nn.LayerNorm).blocks[0].attn
    strength = layer._project_streams("keys", images(2, 17, 16))["strength"]
    assert strength.shape == (2, 2, 17, 1) and strength.abs().min() > 1e-6


@pytest.mark.parametrize("name", ["linformer", "performer", "longformer", "reformer"])
def test_models_are_pickled_copied_saved_and_loaded(name, tmp_path):
    built = vit(bound(name)).eval()
    built.attn_layer = type(built.blocks[0].attn)  # timm stores the layer class that a model was built with
    expected = built(images())
    buffer = io.BytesIO()
    torch.save(built, buffer)
    buffer.seek(0)
    for twin in (pickle.loads(pickle.dumps(built)), copy.deepcopy(built), torch.load(buffer, weights_only=False)):
        torch.testing.assert_close(twin(images()), expected, rtol=0, atol=0)
        assert twin.attn_layer.settings == built.attn_layer.settings
        assert isinstance(twin.blocks[0].attn, TimmAttention) and twin.blocks[0].attn.settings.name == name
    assert pickle.loads(pickle.dumps(TimmAttention)) is TimmAttention
    torch.save(built.state_dict(), tmp_path / "state.pt")
    other = vit(bound(name)).eval()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(other(images()), expected, rtol=0, atol=0)


@pytest.mark.kernels
def test_a_compiled_model_answers_alike():
    built = vit(bound("linformer"), depth=1).eval()
    compiled = torch.compile(built, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images()), built(images()))
    layer, tokens = built.blocks[0].attn, torch.randn(2, 17, 16)
    padding = torch.arange(17).expand(2, 1, 1, 17) < 9
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, attn_mask=padding), layer(tokens, attn_mask=padding))


def test_layers_are_joined_and_built_where_and_as_timm_says():
    built = vit(bound("linformer", projected_lengths="8/4", sharing="key_value"), dtype=torch.float64, device="cpu")
    with pytest.raises(UnsupportedError, match=r"Call attn_zoo\.join_layers"):
        built(images().double())
    join_layers(built)
    assert built(images().double()).dtype == torch.float64
    assert [block.attn.mechanism.compressed_length() for block in built.blocks] == [8, 4]
    assert {p.device.type for p in vit(bound(), device="meta").parameters()} == {"meta"}


def test_names_and_pretrained_weights_of_timm_without_a_download(tmp_path):
    trained = timm.create_model("deit_tiny_patch16_224", img_size=32, depth=1, num_classes=3).eval()
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    asked: dict[str, Any] = {"depth": 1, "num_classes": 3, "pretrained": True}
    asked["pretrained_cfg_overlay"] = {"file": str(tmp_path / "weights.pth"), "num_classes": 3}
    same = timm.create_model("deit_tiny_patch16_224", img_size=32, attn_layer=attention_layer("softmax", length=5), **asked)
    inputs = images(2, 3, 32, 32)
    torch.testing.assert_close(same.eval()(inputs), trained(inputs))
    layer = attention_layer("linformer", length=17, projected_length=4)
    larger: Any = timm.create_model("deit_tiny_patch16_224", img_size=64, attn_layer=layer, **asked)
    query = trained.get_parameter("blocks.0.attn.qkv.weight").chunk(3)[0]
    torch.testing.assert_close(larger.blocks[0].attn.projections.query.weight, query)
    assert larger(images(2, 3, 64, 64)).shape == (2, 3)


def test_arguments_that_cannot_be_honoured_are_refused():
    with pytest.raises(UnsupportedError, match="no option dropout, so attn_drop_rate must be 0"):
        vit(bound("performer"), attn_drop_rate=0.1)
    assert vit(bound(), attn_drop_rate=0.1).blocks[0].attn.mechanism.options.dropout == 0.1
    with pytest.raises(UnsupportedError, match="cannot be combined with qk_norm"):
        vit(bound(order="compress_first", projected_length=4), qk_norm=True)
    assert vit(bound(order="compress_first", projected_length=4)).blocks[0].attn.order.value == "compress_first"
    layer = bound()
    for asked in ({"attn_head_dim": 4}, {"dim_out": 8}, {"gated": True}):
        with pytest.raises(UnsupportedError, match="|".join(asked)):
            layer(16, 2, **asked)
    assert layer(16, 2, attn_head_dim=8, dim_out=16).proj.out_features == 16
    with pytest.raises(ValueError, match="norm_layer must be a class if qk_norm or scale_norm is set"):
        layer(16, 2, qk_norm=True)
    with pytest.raises(UnknownNameError, match="did you mean 'linformer'"):
        attention_layer("linfomer", length=17)
    with pytest.raises(UnknownNameError, match="option of attention linformer"):
        attention_layer("linformer", length=17, features=3)
    with pytest.raises(UnsupportedError, match="no causal form"):
        attention_layer("linformer", length=17, causal=True)


@pytest.mark.parametrize("name", of_each_kind(n for n in attentions() if card(n).can.causal))
def test_causal_models_see_the_past_alone(name):
    built = vit(attention_layer(name, length=17, causal=True), depth=1, class_token=False, reg_tokens=1, global_pool="avg").eval()
    inputs = images()
    later = inputs.clone()
    later[:, :, 4:] += 1  # the lower half: patches 8 to 15, tokens 9 to 16
    with torch.no_grad():
        torch.manual_seed(3)
        before = built.forward_features(inputs, is_causal=True)
        torch.manual_seed(3)
        after = built.forward_features(later, is_causal=True)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    with pytest.raises(
        UnsupportedError, match=r"built with causal=True, so is_causal must be True; got False. Call .* is_causal=True"
    ):
        built(inputs)


def test_causality_that_was_not_built_is_refused():
    with pytest.raises(UnsupportedError, match="linformer has no causal form"):
        vit(bound())(images(), is_causal=True)
    with pytest.raises(UnsupportedError, match=r"build it with attention_layer\(..., causal=True\)"):
        vit(bound("softmax"))(images(), is_causal=True)
    theirs, ours = vit().double(), vit(attention_layer("softmax", length=17, causal=True)).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = images().double()
    torch.testing.assert_close(ours(inputs, is_causal=True), theirs(inputs, is_causal=True), rtol=0, atol=1e-12)

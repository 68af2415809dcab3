"""A short convolution in timm and transformers: starts as the identity, respects causality and padding, is saved and loaded."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import tiny_transformers as tiny
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from attn_zoo import UnsupportedError
from attn_zoo.integrations import timm as timm_side
from attn_zoo.integrations.transformers import from_pretrained, replace_attention
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.short_convolution import ShortConvolution

SIZES: dict[str, Any] = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 3, "embed_dim": 16, "depth": 2}
IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def convolutions(model: nn.Module) -> list[ShortConvolution]:
    return [module for module in model.modules() if isinstance(module, ShortConvolution)]


def drawn(model: Any) -> Any:
    torch.manual_seed(5)
    for convolution in convolutions(model):
        nn.init.normal_(convolution.weight)
    return model


def vit(width: int, name: str = "linformer", **options: Any) -> Any:
    torch.manual_seed(0)
    layer = timm_side.attention_layer(name, length=17, short_convolution=width, **options)
    return VisionTransformer(**SIZES, num_heads=2, weight_init="jax", attn_layer=layer).eval()


@pytest.mark.parametrize("name", ["softmax", "linformer", "performer", "luna"])
def test_a_new_model_of_timm_is_the_one_without_and_learns_its_taps(name):
    plain, convolved = vit(0, name), vit(4, name)
    assert len(convolutions(convolved)) == 2
    convolved.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(convolved(IMAGES), plain(IMAGES), rtol=0, atol=1e-6)
    nn.init.normal_(convolved.head.weight)
    convolved(IMAGES).square().sum().backward()
    for convolution in convolutions(convolved):
        assert convolution.weight.grad is not None and (convolution.weight.grad != 0).any(dim=0).all()


def test_attention_of_a_trained_model_is_replaced_and_its_taps_are_told():
    torch.manual_seed(0)
    model: Any = timm.create_model("vit_tiny_patch16_224", **{**SIZES, "embed_dim": 18, "num_heads": 3}).eval()
    nn.init.normal_(model.head.weight)
    expected = model(IMAGES)
    timm_side.replace_attention(model, "softmax", short_convolution=4)
    torch.testing.assert_close(model(IMAGES), expected, rtol=0, atol=1e-5)
    assert [layer.added for layer in model.attention_replacement.layers] == [("short_convolution.weight",)] * 2
    timm_side.set_input_size(model, 12)
    assert model(torch.zeros(1, 1, 12, 12)).shape == (1, 3)
    assert all(isinstance(block.attn, MultiHeadAttention) for block in model.blocks)
    assert not torch.allclose(drawn(model)(torch.randn(1, 1, 12, 12)), torch.zeros(1, 3))


def run(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the first output of the model at valid tokens."""
    out = model(**batch)[0]
    return out[tiny.real_of(batch, out)]


KINDS = [(name, padding) for name in (*tiny.ENCODERS, *tiny.DECODERS) for padding in ("none", "right", "left")] + [("vit", "none")]


@pytest.mark.parametrize(("name", "padding"), KINDS)
def test_a_new_model_of_transformers_is_the_one_without(name, padding):
    model, batch = tiny.build(name, attn_implementation="sdpa"), tiny.inputs(name, padding)
    expected = run(model, batch)
    replace_attention(model, "softmax", short_convolution=4)
    assert [convolution.after for convolution in convolutions(model)] == [0 if name in tiny.DECODERS else 2] * 2
    torch.testing.assert_close(run(model, batch), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(run(drawn(model), batch), expected, atol=1e-2)


@pytest.mark.parametrize("attention", ["softmax", "gated_linear"])
@pytest.mark.parametrize(("name", "padding"), [kind for kind in KINDS if kind[1] != "none"])
def test_padding_of_transformers_has_no_influence(name, padding, attention):
    if name in tiny.ENCODERS and attention == "gated_linear":
        attention = "luna"
    model = drawn(replace_attention(tiny.build(name), attention, short_convolution=4)).double()
    batch = tiny.inputs(name, padding)
    real = batch["attention_mask"].bool()
    other = {**batch, "input_ids": torch.where(real, batch["input_ids"], 7)}
    torch.testing.assert_close(run(model, batch), run(model, other), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", list(tiny.DECODERS))
def test_decoders_see_no_future_and_generate_without_a_cache(name):
    model, ids = drawn(replace_attention(tiny.build(name), "softmax", short_convolution=4)), tiny.inputs(name)["input_ids"]
    changed = torch.cat([ids[:, :6], 3 + (ids[:, 6:] + 1) % 20], dim=1)
    torch.testing.assert_close(model(ids).logits[:, :6], model(changed).logits[:, :6], rtol=0, atol=1e-5)
    by_hand = ids[:, :5]
    for _ in range(4):
        by_hand = torch.cat([by_hand, model(by_hand).logits[:, -1:].argmax(-1)], dim=1)
    mask = torch.ones_like(ids[:, :5])
    assert torch.equal(
        model.generate(ids[:, :5], attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=None), by_hand
    )
    with pytest.raises(UnsupportedError, match="use_cache=False"):
        model(ids, use_cache=True)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_models_of_transformers_are_saved_and_loaded(name, tmp_path):
    model, batch = drawn(replace_attention(tiny.build(name), "softmax", short_convolution=3)), tiny.inputs(name)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert torch.equal(run(loaded, batch), run(model, batch))
    half = from_pretrained(type(model), tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert model.config.attn_zoo["replacements"][0]["short_convolution"] == 3


def test_cross_attention_of_transformers_is_refused():
    model = tiny.build("bert", is_decoder=True, add_cross_attention=True, use_cache=False)
    with pytest.raises(
        UnsupportedError, match=r"crossattention.* a short convolution needs self-attention. List only other modules"
    ):
        replace_attention(model, "softmax", short_convolution=4)
    replace_attention(model, "softmax", short_convolution=4, layers=[0, 2])
    assert len(convolutions(model)) == 2

"""Hybrids in models of timm and transformers: mechanisms by layer, saved whole, and generation from the cache of every layer."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_transformers as tiny
import torch
from timm.models.vision_transformer import VisionTransformer

from attn_zoo import UnsupportedError
from attn_zoo.integrations import timm as in_timm
from attn_zoo.integrations.transformers import from_pretrained, replace_attention, zoo_layers

TEXT = "2*linformer[projected_length=5]+softmax"


def vit(depth: int = 4) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 3, "embed_dim": 16, "num_heads": 2}
    return VisionTransformer(depth=depth, **sizes).eval()


def test_blocks_of_timm_take_the_mechanisms_in_turn():
    before: Any = vit()
    after: Any = in_timm.replace_attention(vit(), TEXT, implementation="eager")
    names = [block.attn.mechanism.card.name for block in after.blocks]
    assert names == ["linformer", "linformer", "softmax", "linformer"]
    report = after.attention_replacement
    assert (
        report.attention == "2*linformer:eager[projected_length=5]+softmax:eager"
        and [one.attention for one in report.layers] == names
    )
    assert "blocks.2.attn: softmax over 17 tokens" in str(report)
    images = torch.randn(2, 1, 8, 8)
    exact_window: dict[str, Any] = {"longformer.window": 35, "longformer.global_tokens": 2}
    exact = in_timm.replace_attention(vit(), "longformer+softmax", **exact_window)
    torch.testing.assert_close(exact(images), before(images), rtol=1e-4, atol=1e-5)


def test_timm_refuses_a_hybrid_as_one_class_or_with_too_few_blocks():
    with pytest.raises(UnsupportedError, match=r"replace_attention\(model, 'linear\+softmax'\)"):
        in_timm.attention_layer("linear+softmax", length=17)
    with pytest.raises(ValueError, match="needs at least 3 layers"):
        in_timm.replace_attention(vit(depth=2), TEXT)
    with pytest.raises(ValueError, match=r"a model must have one configuration; got 2 in "):
        in_timm.replace_attention(vit(), "linformer[projected_length=4|5]+softmax")


def test_a_saved_hybrid_is_loaded_with_every_mechanism(tmp_path):
    shared: dict[str, Any] = {"linformer.sharing": "layerwise"}
    model = replace_attention(tiny.build("bert", num_hidden_layers=3), "2*linformer+softmax", **shared)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    config: Any = loaded.config
    (told,) = config.attn_zoo["replacements"]
    assert told["attention"] == "2*linformer+softmax" and told["options"]["linformer.projected_length"] == 6
    found: Any = zoo_layers(loaded)
    assert [one.card.name for one in found] == ["linformer", "linformer", "softmax"] and found[1].maps[0] is found[0].maps[0]
    inputs = tiny.inputs("bert", "right")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).last_hidden_state, model.eval()(**inputs).last_hidden_state)


def generate(model: Any, ids: torch.Tensor, cached: bool) -> Any:
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
    return model.generate(ids, max_new_tokens=8, use_cache=cached, return_dict_in_generate=True, **given)


@pytest.mark.parametrize("kind", list(tiny.DECODERS))
@pytest.mark.parametrize("text", ["linear+softmax", "softmax+linear", "linear+gated_linear"])
def test_generation_from_the_caches_of_all_layers_is_that_of_recomputing(text, kind):
    model = replace_attention(tiny.build(kind), text).double()
    ids = tiny.inputs(kind)["input_ids"][:, :5]
    found, expected = generate(model, ids, cached=True), generate(model, ids, cached=False)
    assert torch.equal(found.sequences, expected.sequences) and len(set(expected.sequences[:, 5:].flatten().tolist())) > 2
    kinds = {"softmax": "DynamicLayer", "linear": "StateLayer", "gated_linear": "StateLayer"}
    assert [type(layer).__name__ for layer in tiny.cache_of(found).layers] == [kinds[name] for name in text.split("+")]


def test_a_layer_without_a_cache_of_its_own_refuses_cached_generation_by_name():
    small: dict[str, Any] = {"block_sparse.block": 4}
    model = replace_attention(tiny.build("gpt2"), "linear+block_sparse", **small)
    assert not model.config.use_cache
    ids = tiny.inputs("gpt2")["input_ids"][:, :5]
    with pytest.raises(UnsupportedError, match=r"block_sparse cannot continue from this DynamicCache\. .* use_cache=False"):
        generate(model, ids, cached=True)
    assert generate(model, ids, cached=False).sequences.shape == (3, 13)

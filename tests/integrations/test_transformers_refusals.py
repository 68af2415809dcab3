"""Requests of transformers' models that mechanisms of the zoo cannot honour: each is refused by name, none is ignored."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
import transformers
from torch import nn

from attn_zoo import UnknownNameError, UnsupportedError
from attn_zoo.integrations.transformers import replace_attention, zoo_layers
from attn_zoo.integrations.transformers.description import NAME
from attn_zoo.integrations.transformers.interface import attend

TEXT = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
GROUPED = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 24}
IDS = tiny.inputs("bert")["input_ids"]
T5 = {"vocab_size": 30, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 4}

CALLS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "mask by query": (lambda: tiny.build("bert"), {"attention_mask": torch.ones(3, 1, 10, 10)}, r"shape \(batch, length\)"),
    "mask by query, causal": (
        lambda: tiny.build("llama"),
        {"attention_mask": torch.ones(3, 1, 10, 10)},
        "attention_mask must have shape",
    ),
    "mask of another length": (
        lambda: tiny.build("gpt2"),
        {"attention_mask": torch.ones(3, 12)},
        "with True for real keys|queries with",
    ),
    "weights": (lambda: tiny.build("bert"), {"output_attentions": True}, "output_attentions must be False"),
    "packed sequences": (
        lambda: tiny.build("llama"),
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]), "use_cache": False},
        "packed sequences",
    ),
    "window": (
        lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=4)),
        {},
        "must be causal or bidirectional, but its mask has another form",
    ),
    "fixed cache": (
        lambda: tiny.build("llama"),
        {"cache": "static"},
        r"StaticCache.*use_cache=False|for keys from position|queries with",
    ),
}


@pytest.mark.parametrize("asked", CALLS)
def test_a_call_is_refused(asked):
    make, keywords, words = CALLS[asked]
    model = replace_attention(make().eval(), "softmax")
    if keywords.get("cache") == "static":
        keywords = tiny.with_cache(transformers.StaticCache(config=model.config, max_cache_len=16))
    with pytest.raises(UnsupportedError, match=words):
        model(IDS, **keywords)


def test_a_model_can_be_copied_and_pickled_after_a_refused_call():
    model = replace_attention(tiny.build("bert"), "longformer")
    with pytest.raises(UnsupportedError, match="attention_mask must have shape"):
        model(IDS, attention_mask=torch.ones(3, 1, 10, 10))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IDS)[0], model(IDS)[0])


def test_pieces_of_a_cached_sequence_are_refused():
    model = replace_attention(tiny.build("llama"), "softmax")
    cache = tiny.cache_of(model(IDS[:, :6], use_cache=True))
    with pytest.raises(UnsupportedError, match=r"one new token per call; got 4 queries and 10 keys"):
        model(IDS[:, 6:], **tiny.with_cache(cache))


def test_soft_capping_is_refused():
    config = transformers.Gemma2Config(**GROUPED, head_dim=4, layer_types=["full_attention"], sliding_window=None)
    model = replace_attention(transformers.Gemma2ForCausalLM(config), "softmax").model
    states = torch.randn(1, 10, 16)
    positions = model.rotary_emb(states, torch.arange(10)[None])
    with pytest.raises(UnsupportedError, match="softmax does not support the argument softcap"):
        model.layers[0].self_attn(states, position_embeddings=positions, attention_mask=None)


@pytest.mark.parametrize("name", tiny.APART)
@pytest.mark.parametrize(
    ("attention", "width", "words"),
    [
        ("softmax", 4, "because a short convolution reads them.*use short_convolution=0"),
        ("longformer", 0, "because longformer has further projections of them.*choose another mechanism"),
    ],
)
def test_tokens_that_are_not_in_one_tensor_are_refused(name, attention, width, words):
    model, batch = tiny.APART[name]()
    replace_attention(model, attention, length=24, short_convolution=width, layers=[0])
    with pytest.raises(UnsupportedError, match=rf"must get its tokens in one tensor.*{words}"):
        model(**batch)


def test_a_position_bias_is_refused():
    with pytest.raises(UnsupportedError, match=r"does not support the argument position_bias|attention interface"):
        replace_attention(transformers.T5EncoderModel(transformers.T5Config(**T5)), "softmax", length=24)(IDS)


def test_a_direction_that_changed_is_refused():
    model = replace_attention(tiny.build("bert"), "softmax")
    model.config.is_decoder = True
    with pytest.raises(UnsupportedError, match="uses causal attention, but its mechanisms were built for bidirectional attention"):
        model(IDS)


def test_a_module_without_a_mechanism_is_refused():
    replace_attention(tiny.build("bert"), "softmax")
    with pytest.raises(UnsupportedError, match="needs a model whose attention attn-zoo replaced"):
        tiny.build("bert", attn_implementation="attn_zoo")(IDS)


@pytest.mark.parametrize(
    ("make", "keywords", "error", "words"),
    [
        (lambda: nn.Linear(2, 2), {}, TypeError, "must be a PreTrainedModel of transformers; got Linear"),
        (lambda: tiny.build("bert"), {"attention": "linformr"}, UnknownNameError, "did you mean 'linformer'"),
        (lambda: tiny.build("bert"), {"windw": 3}, UnknownNameError, "no option of attention longformer is called 'windw'"),
        (lambda: tiny.build("bert"), {"window": -1}, ValueError, "window"),
        (lambda: tiny.build("bert"), {"layers": [2]}, ValueError, "numbers from 0 to 1"),
        (lambda: tiny.build("bert"), {"layers": []}, ValueError, "numbers from 0 to 1"),
        (lambda: tiny.build("bert"), {"implementation": "triton"}, UnknownNameError, "triton"),
        (
            lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**TEXT, max_position_embeddings=24)),
            {},
            UnsupportedError,
            "must have a module that calls the attention interface of transformers",
        ),
        (lambda: weights_wanted(tiny.build("bert", attn_implementation="eager")), {}, UnsupportedError, "output_attentions"),
        (lambda: renamed(tiny.build("bert")), {}, UnsupportedError, "must have a query projection"),
    ],
)
def test_a_replacement_is_refused_and_changes_nothing(make, keywords, error, words):
    model = make()
    state = set(model.state_dict())
    with pytest.raises(error, match=words):
        replace_attention(model, **{"attention": "longformer", **keywords})
    assert zoo_layers(model) == [] and set(model.state_dict()) == state
    assert not isinstance(model, transformers.PreTrainedModel) or model.config._attn_implementation != "attn_zoo"


def weights_wanted(model: Any) -> Any:
    model.config.output_attentions = True
    return model


def renamed(model: Any) -> Any:
    """Rename the query projections of a model to an unknown name."""
    for layer in model.encoder.layer:
        layer.attention.self.to_queries = layer.attention.self.query
        del layer.attention.self.query
    return model


def test_without_the_package_the_extra_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "transformers" else find(name, *rest))
    with pytest.raises(UnsupportedError, match=r"pip install 'attn-zoo\[text\]'"):
        replace_attention(nn.Linear(2, 2), "softmax")


def calling(monkeypatch, change: Callable[..., Any]) -> None:
    """Let attention modules call ``change(attend, module, query, key, value, ...)`` in place of attend."""
    mapping = transformers.AttentionInterface._global_mapping
    monkeypatch.setitem(mapping, NAME, partial(change, attend))


def twice(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call attention twice for the same tokens, as DiffLlama does for the two halves of its values."""
    call(*args, **kwargs)
    return call(*args, **kwargs)


def in_halves(call: Callable[..., Any], module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Call attention once for each half of the tokens, as vision models do for packed images."""
    half = query.shape[2] // 2
    parts = [[tensor[:, :, rows] for tensor in (query, key, value)] for rows in (slice(half), slice(half, None))]
    return torch.cat([call(module, *part, *args, **kwargs)[0] for part in parts], dim=1), None


def test_a_state_is_not_read_twice_for_one_token(monkeypatch):
    model = replace_attention(tiny.build("llama"), "linear")
    expected = model(IDS)
    calling(monkeypatch, twice)
    found = model(IDS)  # the whole sequence needs no state
    torch.testing.assert_close(found.logits, expected.logits)
    with pytest.raises(UnsupportedError, match=r"calls attention more than once for each token.*use_cache=False"):
        model(IDS[:, :1], **tiny.with_cache(tiny.cache_of(found)))
    assert model(IDS[:, :1], use_cache=False).logits.isfinite().all()


def test_tokens_are_not_convolved_or_projected_across_packed_sequences(monkeypatch):
    batch = tiny.inputs("vit")
    convolved = replace_attention(tiny.build("vit"), "softmax", short_convolution=3)
    streamed = replace_attention(tiny.build("vit"), "luna")
    calling(monkeypatch, in_halves)
    for model in (convolved, streamed):
        with pytest.raises(UnsupportedError, match="must attend to its 10 tokens at once"):
            model(**batch)


def test_further_projections_need_one_call_of_attention(monkeypatch):
    model = replace_attention(tiny.build("llama"), "gated_linear")
    calling(monkeypatch, twice)
    with pytest.raises(UnsupportedError, match="gated_linear has further projections of them, but it calls attention again"):
        model(IDS, use_cache=False)


def test_streams_of_keys_need_the_source_of_a_cross_attention():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = transformers.BartConfig(**sizes, vocab_size=30, max_position_embeddings=24, encoder_ffn_dim=16, decoder_ffn_dim=16)
    model = replace_attention(transformers.BartModel(config).eval(), "luna", layers=[2])
    module = model.decoder.layers[0].encoder_attn
    with pytest.raises(UnsupportedError, match="must get the tokens of its keys as encoder_hidden_states or key_value_states"):
        module(torch.randn(3, 10, 16), source=torch.randn(3, 10, 16))


def test_a_fused_projection_of_another_form_is_not_cut():
    sizes = {"vocab_size": 30, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 4, "attn_pdrop": 0.0}
    config = transformers.GPTBigCodeConfig(**sizes, bos_token_id=1, eos_token_id=2)
    with pytest.raises(UnsupportedError, match="must have a key projection"):
        replace_attention(transformers.GPTBigCodeForCausalLM(config), "gated_linear")


def test_stages_of_different_widths():
    sizes: dict[str, Any] = {"hidden_sizes": [8, 16], "num_encoder_blocks": 2, "depths": [1, 1], "num_attention_heads": [1, 2]}
    sizes |= {"sr_ratios": [1, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [1, 1], "decoder_hidden_size": 8}
    model, images = transformers.SegformerModel(transformers.SegformerConfig(**sizes)).eval(), torch.randn(1, 3, 32, 32)
    if not any(hasattr(module, "is_causal") for module in model.modules()):
        pytest.skip("Segformer of this version of transformers, such as 5.4.0, does not call the attention interface")
    expected = model(images)[0]
    replace_attention(model, "softmax", length=64, attention_dropout=0.0, short_convolution=3)
    torch.testing.assert_close(model(images)[0], expected)

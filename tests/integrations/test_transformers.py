"""Softmax attention put into models of transformers changes nothing; dropout, caches, lengths and layers follow the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
import transformers
from torch import nn

from attn_zoo import UnsupportedError
from attn_zoo.analysis.sources import load_subject
from attn_zoo.integrations.transformers import replace_attention, zoo_layers


def run(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Return the first output of the model at valid tokens, one row each."""
    out = model(**batch)[0]
    return out[tiny.real_of(batch, out)]


TEXT = [(name, padding) for name in (*tiny.ENCODERS, *tiny.DECODERS) for padding in ("none", "right", "left")]


@pytest.mark.parametrize(("name", "padding"), [*TEXT, ("vit", "none")])
def test_softmax_gives_what_the_model_gave(name, padding):
    # The reference is not "eager", which in some models computes the softmax in float32 for any dtype of the model.
    model, batch = tiny.build(name, attn_implementation="sdpa").double(), tiny.inputs(name, padding)
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    ours = replace_attention(copy.deepcopy(model), "softmax")
    assert [layer.card.name for layer in zoo_layers(ours)] == ["softmax", "softmax"]
    expected, got = run(model, batch), run(ours, batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    theirs = tiny.gradients(model)
    for key, gradient in tiny.gradients(ours).items():
        if theirs[key] is None:
            assert gradient is None, key
        else:
            torch.testing.assert_close(gradient, theirs[key], rtol=1e-10, atol=1e-10, msg=key)
    averaged = run(replace_attention(copy.deepcopy(model), "uniform"), batch)
    assert (averaged - expected).abs().max() > 0.05, "attention hardly matters in this model, so that nothing was shown"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_other_models_of_the_process_stay_as_they_are(name):
    batch, bystander = tiny.inputs(name), tiny.build(name)
    before, chosen = run(bystander, batch), bystander.config._attn_implementation
    replace_attention(tiny.build(name), "uniform")
    assert bystander.config._attn_implementation == chosen == tiny.build(name).config._attn_implementation != "attn_zoo"
    assert torch.equal(run(bystander, batch), before)


@pytest.mark.parametrize(
    "flags", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}]
)
def test_another_scaling_is_taken_up_by_the_queries(flags):
    model, batch = tiny.build("gpt2", attn_implementation="eager", **flags).double(), tiny.inputs("gpt2", "right")
    ours = replace_attention(copy.deepcopy(model), "softmax")
    torch.testing.assert_close(run(ours, batch), run(model, batch), rtol=0, atol=1e-10)
    shared = replace_attention(copy.deepcopy(model), "reformer", attention_dropout=0.0)
    with pytest.raises(UnsupportedError, match="must scale its scores by 1/√d"):
        shared(**batch)


@pytest.mark.parametrize("name", list(tiny.DECODERS))
@pytest.mark.parametrize("cached", [False, True])
def test_softmax_generates_what_the_model_generated(name, cached):
    model, prompt = tiny.build(name), {key: value[:, :6] for key, value in tiny.inputs(name, "left").items()}
    ours = replace_attention(copy.deepcopy(model), "softmax")
    expected = model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=False)
    assert torch.equal(ours.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=cached), expected)
    assert len(set(expected[:, 6:].flatten().tolist())) > 4, "too monotonous to show anything"


def test_generation_without_a_cache_is_the_default_where_there_is_none():
    model = replace_attention(tiny.build("llama"), "longformer")
    ids = tiny.inputs("llama")["input_ids"][:, :4]
    by_hand = ids
    for _ in range(5):
        by_hand = torch.cat([by_hand, model(by_hand).logits[:, -1:].argmax(-1)], dim=1)
    generated = model.generate(ids, max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(ids), eos_token_id=None)
    assert torch.equal(generated, by_hand)
    with pytest.raises(UnsupportedError, match="use_cache=False"):
        model(ids, use_cache=True)


@pytest.mark.parametrize(("name", "stream", "of"), [("llama", "gate", "gated_linear"), ("gpt2", "context", "luna")])
def test_streams_start_as_the_projections_of_the_model(name, stream, of):
    model = tiny.build(name)
    replace_attention(model, of)
    layer = model.model.layers[0].self_attn if name == "llama" else model.transformer.h[0].attn
    tokens = torch.randn(2, 5, 16)
    if name == "llama":
        expected = layer.k_proj(tokens).unflatten(-1, (2, 4)).repeat_interleave(2, dim=2).flatten(2)
    else:
        expected = layer.c_attn(tokens)[..., 16:32]
    torch.testing.assert_close(layer.zoo.stream_projections[stream](tokens), expected)


def bert_decoder() -> tuple[Any, dict[str, torch.Tensor]]:
    model = tiny.build("bert", is_decoder=True, add_cross_attention=True, use_cache=False, attn_implementation="eager").double()
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(3, 7, 16, generator=generator, dtype=torch.float64)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, 4:] = 0
    return model, {**tiny.inputs("bert", "right"), "encoder_hidden_states": states, "encoder_attention_mask": mask}


def bart() -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in [("layers", 1), ("attention_heads", 4)]}
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 30, "max_position_embeddings": 24}
    config = transformers.BartConfig(**sides, **sizes, init_std=0.4, attn_implementation="eager")
    batch = tiny.inputs("bert", "right")
    return transformers.BartModel(config).eval().double(), {**batch, "decoder_input_ids": batch["input_ids"][:, :7]}


@pytest.mark.parametrize("make", [bert_decoder, bart])
def test_cross_attention_where_it_is_claimed(make):
    model, batch = make()
    ours = replace_attention(copy.deepcopy(model), "softmax")
    assert [layer.crosses for layer in zoo_layers(ours)] == ([False, False, True] if make is bart else 2 * [False, True])
    out, expected = ours(**batch)[0], model(**batch)[0]
    real = torch.ones(out.shape[:2], dtype=torch.bool) if make is bart else tiny.real_of(batch, out)
    torch.testing.assert_close(out[real], expected[real], rtol=0, atol=1e-10)
    assert torch.isfinite(replace_attention(copy.deepcopy(model), "luna")(**batch)[0]).all()
    untouched = copy.deepcopy(model)
    with pytest.raises(UnsupportedError, match=r"is cross-attention.*layers="):
        replace_attention(untouched, "longformer")
    assert zoo_layers(untouched) == [] and untouched.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", tiny.APART)
def test_softmax_in_modules_that_get_queries_keys_and_values_apart(name):
    model, batch = tiny.APART[name]()
    expected = model(**batch)[0]
    for attention, layers, same in (("softmax", None, True), ("softmax", [0], True), ("uniform", [0], False)):
        found = replace_attention(copy.deepcopy(model), attention, length=24, layers=layers)(**batch)[0]
        assert torch.allclose(found, expected, rtol=0, atol=1e-10) == same


def test_only_the_layers_that_are_named_change():
    model, batch = tiny.build("bert", attn_implementation="eager").double(), tiny.inputs("bert", "right")
    whole = model(**batch, output_hidden_states=True).hidden_states
    replace_attention(model, "uniform", layers=[1])
    assert [layer.card.name for layer in zoo_layers(model)] == ["softmax", "uniform"]
    changed = model(**batch, output_hidden_states=True).hidden_states
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(changed[1][real], whole[1][real], rtol=0, atol=1e-10)
    assert (changed[2] - whole[2])[real].abs().max() > 0.05
    replace_attention(model, "softmax", layers=[1])
    torch.testing.assert_close(model(**batch)[0][real], whole[2][real], rtol=0, atol=1e-10)


def test_layers_of_one_call_are_a_stack():
    model = replace_attention(tiny.build("bert"), "linformer", projected_length=4, sharing="layerwise")
    assert sum("zoo" in name for name, _ in model.named_parameters()) == 1
    twin, batch = copy.deepcopy(model), tiny.inputs("bert")
    assert torch.equal(twin(**batch)[0], model(**batch)[0])
    nn.init.zeros_(tiny.mechanisms(twin)[0].own_maps[0].weight)
    assert not torch.equal(twin(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize(("name", "positions"), [("bert", 24), ("roberta", 22), ("vit", 10), ("gpt2", 24), ("llama", 24)])
def test_a_mechanism_is_built_for_the_positions_of_the_model(name, positions):
    assert {layer.geometry.keys for layer in zoo_layers(replace_attention(tiny.build(name), "frozen_random"))} == {positions}


def test_lengths_are_those_the_mechanism_claims():
    batch = tiny.inputs("bert")
    assert replace_attention(tiny.build("bert"), "linformer", projected_length=4)(**batch)[0].shape == (3, 10, 16)
    short = replace_attention(tiny.build("bert"), "linformer", length=8, projected_length=4)
    with pytest.raises(UnsupportedError, match="built for 8 keys; got 10"):
        short(**batch)


def test_dropout_is_the_models_own_or_the_one_that_is_given():
    options = {"attention_probs_dropout_prob": 0.3}
    assert zoo_layers(replace_attention(tiny.build("bert", **options), "linformer", projected_length=4))[0].options.dropout == 0.3
    given = replace_attention(tiny.build("bert", **options), "linformer", attention_dropout=0.5, projected_length=4)
    assert zoo_layers(given)[0].options.dropout == 0.5
    with pytest.raises(UnsupportedError, match=r"attention_dropout=0\.0"):
        replace_attention(tiny.build("bert", **options), "performer")
    without = replace_attention(tiny.build("bert", **options), "performer", attention_dropout=0.0).train()
    assert torch.isfinite(without(**tiny.inputs("bert"))[0]).all()
    without.encoder.layer[0].attention.self.dropout.p = 0.1
    with pytest.raises(UnsupportedError, match=r"attention_dropout=0\.1"):
        without(**tiny.inputs("bert"))


def test_dropout_happens_in_training_and_only_there():
    model = replace_attention(tiny.build("bert", attention_probs_dropout_prob=0.5), "softmax")
    batch = tiny.inputs("bert")
    assert torch.equal(model(**batch)[0], model(**batch)[0])
    model.train()
    assert not torch.equal(model(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("attention", "options"),
    [("longformer", {"window": 3}), ("performer", {"redraw": 2}), ("reformer", {"redraw": 3, "chunk": 4}), ("routing", {})],
)
def test_gradient_checkpointing_gives_the_same_gradients_and_buffers(attention, options, reentrant):
    batch, found = tiny.inputs("bert", "right"), []
    for checkpointing in (False, True):
        model = replace_attention(tiny.build("bert"), attention, **options).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()  # without which the reentrant form has no gradient
        torch.manual_seed(3)
        for _ in range(3):
            model(**batch)[0].square().sum().backward()
        found.append({**tiny.gradients(model), **dict(model.named_buffers())})
    for name, gradient in found[0].items():
        if gradient is not None:
            torch.testing.assert_close(found[1][name], gradient, msg=name)


def test_a_model_compiles_whole():
    model = replace_attention(tiny.build("bert", num_hidden_layers=1), "luna")
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    batch = tiny.inputs("bert", "left")
    torch.testing.assert_close(run(compiled, batch), run(model, batch))


def test_a_trained_encoder_keeps_its_answers_under_softmax():
    subject = load_subject("minilm", 1, 48)
    batch: dict[str, torch.Tensor] = dict(subject.batches[0])
    batch["attention_mask"][:, 40:] = 0
    with torch.no_grad():
        expected = subject.model.eval()(**batch).last_hidden_state[:, :40]
        got = replace_attention(subject.model, "softmax")(**batch).last_hidden_state[:, :40]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        other = replace_attention(subject.model, "linformer", projected_length=16)(**batch).last_hidden_state[:, :40]
    assert torch.isfinite(other).all() and (other - expected).abs().max() > 0.05

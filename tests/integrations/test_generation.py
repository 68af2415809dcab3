"""Generation of decoders with a recurrent mechanism, which carries its state in the model's cache."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
from tiers import covering
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.integrations.transformers import replace_attention
from attn_zoo.integrations.transformers.attached import Attached

RECURRENT = [name for name in attentions() if card(name).can.stepwise and card(name).can.causal]


def decoder(kind: str, attention: str, **options: Any) -> Any:
    """Build a tiny decoder in float64, so that rounding decides no token."""
    sizes = {
        key: options.pop(key) for key in list(options) if key in ("num_hidden_layers", "max_position_embeddings", "n_positions")
    }
    model = tiny.build(kind, **sizes)
    torch.manual_seed(5)
    return replace_attention(model, attention, **options).double()


def generate(model: Any, ids: Tensor, cached: bool, new: int = 8, **options: Any) -> Any:
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None, **options}
    torch.manual_seed(6)
    return model.generate(ids, max_new_tokens=new, use_cache=cached, **given)


@pytest.mark.parametrize(("name", "kind"), [*covering(RECURRENT, tiny.DECODERS), *product(["linear"], tiny.SELDOM)])
def test_the_state_generates_what_recomputing_does(name, kind):
    model, ids = decoder(kind, name), tiny.inputs(kind)["input_ids"][:, :5]
    expected = generate(model, ids, cached=False)
    found = generate(model, ids, cached=True, return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected) and len(set(expected[:, 5:].flatten().tolist())) > 2
    layers = tiny.cache_of(found).layers
    assert [type(layer).__name__ for layer in layers] == ["StateLayer"] * 2 and all(layer.length == 12 for layer in layers)
    assert all(layer.is_initialized and layer.keys.numel() == layer.values.numel() == 0 for layer in layers)


def test_caching_is_the_default_and_the_logits_agree():
    model, ids = decoder("llama", "gated_linear"), tiny.inputs("llama")["input_ids"]
    whole = model(ids, use_cache=False).logits
    first = model(ids[:, :4])
    rest = model(ids[:, 4:], **tiny.with_cache(tiny.cache_of(first)))
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "transformer_xl"])
def test_beams_are_reordered_with_their_states(name):
    model, ids = decoder("gpt2", name), tiny.inputs("gpt2")["input_ids"][:, :4]
    found, expected = (generate(model, ids, cached, num_beams=3, num_return_sequences=2) for cached in (True, False))
    assert torch.equal(found, expected)


def test_a_short_convolution_carries_its_tail():
    model, ids = decoder("llama", "linear", short_convolution=4), tiny.inputs("llama")["input_ids"][:, :5]
    for attached in (module for module in model.modules() if isinstance(module, Attached)):
        assert attached.convolution is not None
        nn.init.normal_(attached.convolution.weight)
    assert torch.equal(generate(model, ids, cached=True), generate(model, ids, cached=False))


def test_softmax_beside_a_state():
    model, ids = decoder("gpt2", "delta_rule", layers=[1]), tiny.inputs("gpt2")["input_ids"][:, :5]
    assert torch.equal(generate(model, ids, cached=True), generate(model, ids, cached=False))


def test_padding_leaves_no_state_to_go_on_from():
    model = decoder("llama", "linear")
    prompt = {name: tensor[:, :6] for name, tensor in tiny.inputs("llama", "left").items()}
    whole = model(**prompt, use_cache=False).logits
    assert torch.equal(model(**prompt).logits, whole)  # a single call gives the output without a cache
    with pytest.raises(UnsupportedError, match=r"no state for the earlier tokens \(they include padding\).*use_cache=False"):
        model.generate(**prompt, max_new_tokens=3)
    assert model.generate(**prompt, max_new_tokens=3, use_cache=False).shape == (3, 9)


def test_training_keeps_no_state():
    model, ids = decoder("llama", "linear").train(), tiny.inputs("llama")["input_ids"]
    out = model(ids, labels=ids)
    out.loss.backward()
    with pytest.raises(UnsupportedError, match="the model was training"):
        model(ids[:, :1], **tiny.with_cache(tiny.cache_of(out)))


def test_a_cache_that_cannot_serve_is_refused():
    model, ids = decoder("llama", "linear"), tiny.inputs("llama")["input_ids"]
    keys = tiny.cache_of(tiny.build("llama").double()(ids))
    with pytest.raises(UnsupportedError, match="linear cannot continue from this DynamicCache"):
        model(ids[:, :1], **tiny.with_cache(keys))
    with pytest.raises(UnsupportedError, match=r"StaticCache.*use_cache=False"):
        generate(model, ids[:, :4], cached=True, cache_implementation="static")
    cache = tiny.cache_of(model(ids))
    with pytest.raises(UnsupportedError, match="tokens cannot be removed"):
        cache.layers[0].crop(3)
    cache.layers[0].reset()
    assert cache.layers[0].get_seq_length() == 0 and cache.layers[0].state is None


@pytest.mark.process
def test_tokens_from_the_state_take_a_twentieth_of_the_work():
    new = 255
    model, ids = decoder("gpt2", "linear", num_hidden_layers=1, n_positions=new + 1), torch.tensor([[3]])
    flops, tokens = [], []
    for cached in (True, False):
        with FlopCounterMode(display=False) as counter:
            tokens.append(generate(model, ids, cached, new))
        flops.append(counter.get_total_flops())
    assert torch.equal(*tokens) and flops[1] > 20 * flops[0] > 0

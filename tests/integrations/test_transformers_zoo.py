"""A mechanism of each kind in models of transformers: gradients, padding, saving, or the card's refusal."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_transformers as tiny
import torch
import transformers
from tiers import covering, kinds, of_each_kind
from torch import Tensor

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.contract import auxiliary_loss
from attn_zoo.integrations.transformers import from_pretrained, replace_attention, zoo_layers

NAMES = attentions()
CAUSAL = [name for name in NAMES if card(name).can.causal]
PROJECTIONS = {"query": ("query", "q_proj"), "key": ("key", "k_proj")}


def replaced(model: Any, name: str) -> Any:
    torch.manual_seed(5)
    options: dict[str, Any] = {"projected_length": 4} if name in ("linformer", "sparse_linformer", "kernelized_linformer") else {}
    return replace_attention(model, name, **options)


def answer(model: Any, **batch: Tensor) -> Tensor:
    """Return the first output, under a fixed seed for hashes and features that are drawn in the call."""
    torch.manual_seed(6)
    return model(**batch)[0]


def unread(parameter: str, name: str) -> bool:
    """Return True if a parameter belongs to a projection that the mechanism does not read."""
    entry = card(name)
    reads = set(entry.reads) - ({"key"} if entry.can.shares_query_key else set())
    return any(f".{word}." in parameter for which, words in PROJECTIONS.items() if which not in reads for word in words)


def check_gradients(model: Any, name: str) -> None:
    for parameter, gradient in tiny.gradients(model).items():
        if "pooler" in parameter:
            continue
        if unread(parameter, name):
            assert gradient is None, f"{parameter} has a gradient, and {name} does not read it"
        else:
            assert gradient is not None and torch.isfinite(gradient).all(), f"{parameter}: {gradient}"


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_in_an_encoder(name, tmp_path):
    model, batch = replaced(tiny.build("bert"), name), tiny.inputs("bert")
    (answer(model.train(), **batch).square().sum() + auxiliary_loss(model)).backward()
    check_gradients(model, name)
    model.eval().save_pretrained(tmp_path)
    loaded = from_pretrained(transformers.BertModel, tmp_path)
    assert [layer.card.name for layer in zoo_layers(loaded)] == [name, name]
    assert torch.equal(answer(loaded, **batch), answer(model, **batch))


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_padding_has_no_influence(name):
    model, batch = replaced(tiny.build("bert"), name), tiny.inputs("bert", "both")
    if not card(name).can.key_padding:
        with pytest.raises(UnsupportedError, match="does not support padding"):
            answer(model, **batch)
        answer(model, input_ids=batch["input_ids"], attention_mask=torch.ones_like(batch["input_ids"]))
        return
    real = batch["attention_mask"].bool()
    other = torch.where(real, batch["input_ids"], 29 - batch["input_ids"] % 7)
    assert not torch.equal(other, batch["input_ids"])
    with torch.no_grad():
        found, again = answer(model, **batch), answer(model, **{**batch, "input_ids": other})
    assert torch.equal(found[real], again[real]) and torch.isfinite(found).all()


@pytest.mark.parametrize(("name", "kind"), covering(CAUSAL, tiny.DECODERS, kinds(CAUSAL)))
def test_in_a_decoder(name, kind):
    model, batch = replaced(tiny.build(kind, num_hidden_layers=1), name), tiny.inputs(kind)
    loss = model.train()(**batch, labels=batch["input_ids"], use_cache=False).loss
    (loss + auxiliary_loss(model)).backward()
    if kind == "llama":  # GPT-2 keeps its three projections in one weight, of which a part may have no influence
        check_gradients(model, name)
    assert torch.isfinite(loss)
    later = {"input_ids": torch.cat([batch["input_ids"][:, :6], 29 - batch["input_ids"][:, 6:] % 7], dim=1)}
    with torch.no_grad():
        before, after = answer(model.eval(), **batch), answer(model, **later)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=1e-4, atol=1e-5)
    assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("name", of_each_kind(name for name in NAMES if name not in CAUSAL))
def test_without_a_causal_form_a_decoder_is_refused(name):
    model = tiny.build("gpt2")
    chosen = model.config._attn_implementation
    with pytest.raises(UnsupportedError, match="no causal form"):
        replaced(model, name)
    assert zoo_layers(model) == [] and model.config._attn_implementation == chosen


@pytest.mark.parametrize("name", ["linformer", "longformer", "performer", "reformer"])
def test_in_a_vision_transformer(name, tmp_path):
    model, batch = replaced(tiny.build("vit"), name), tiny.inputs("vit")
    answer(model, **batch).square().sum().backward()
    assert all(torch.isfinite(g).all() for g in tiny.gradients(model).values() if g is not None)
    model.save_pretrained(tmp_path)
    assert torch.equal(answer(from_pretrained(transformers.ViTModel, tmp_path), **batch), answer(model, **batch))

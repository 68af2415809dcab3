"""Captured queries, keys and values reproduce the model's attention: our layers, PyTorch's attention and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attn_zoo import UnsupportedError
from attn_zoo.analysis import attention_matrices
from attn_zoo.analysis.captured import attention_inputs
from attn_zoo.analysis.effective import effective_matrix
from attn_zoo.analysis.error import exact_attention
from attn_zoo.analysis.feeding import build_layers
from attn_zoo.analysis.inputs import gather, random_inputs
from attn_zoo.layer import MultiHeadAttention

TOKENS = torch.arange(1, 15).reshape(2, 7)


class OneCall(nn.Module):
    """Model that calls PyTorch's ``scaled_dot_product_attention`` once."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.arguments)


def tensors(key_heads: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(2, heads, 6, 3, generator=generator)
        for name, heads in {"query": 4, "key": key_heads, "value": key_heads}.items()
    }


HIDDEN = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]


@pytest.mark.parametrize(
    ("arguments", "key_heads"),
    [
        ({}, 4),
        ({"scale": 0.9}, 4),
        ({"is_causal": True}, 4),
        ({"enable_gqa": True}, 2),
        ({"attn_mask": HIDDEN}, 4),
        ({"attn_mask": torch.zeros(2, 1, 1, 6).masked_fill(~HIDDEN, torch.finfo(torch.float32).min)}, 4),
        ({"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()}, 4),
        ({"attn_mask": HIDDEN & torch.ones(6, 6, dtype=torch.bool).tril()}, 4),
    ],
)
def test_a_call_of_pytorchs_attention(arguments, key_heads):
    model, batch = OneCall(**arguments), tensors(key_heads)
    (found,) = attention_inputs(model, batch)
    out = exact_attention(found).float()
    torch.testing.assert_close(out, model(**batch))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.linspace(-3, 3, 36).reshape(6, 6), "must not add a bias to its attention scores"),
        (torch.eye(6, dtype=torch.bool) | torch.ones(6, 6, dtype=torch.bool).triu(2), "must be causal or hide padding only"),
    ],
)
def test_other_masks_are_refused(mask, message):
    with pytest.raises(UnsupportedError, match=message):
        attention_inputs(OneCall(attn_mask=mask), tensors())


@pytest.mark.parametrize("causal", [False, True])
def test_our_layer(causal):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, "softmax", length=5, causal=causal)
    tokens, valid = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    valid[1, 3:] = False
    model = OneLayer(layer)
    (found,) = attention_inputs(model, {"tokens": tokens, "valid": valid})
    assert found.causal is causal and found.key_valid is not None and torch.equal(found.key_valid, valid)
    out = layer.out(exact_attention(found).float().transpose(1, 2).flatten(2))
    torch.testing.assert_close(out[valid], model(tokens, valid)[valid])
    with pytest.raises(UnsupportedError, match=r"every layer of the model must have the mechanism softmax, .*; got uniform in"):
        attention_inputs(MultiHeadAttention(8, 2, "uniform", length=5), tokens)


class OneLayer(nn.Module):
    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens, valid):
        return self.layer(tokens, key_valid=valid)


@pytest.mark.extras
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_bert_of_transformers(implementation):
    transformers = pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=8, initializer_range=0.5
    )
    config._attn_implementation = implementation
    model = transformers.BertModel(config).train()
    batch = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    found = attention_inputs(model, batch)
    assert model.config._attn_implementation == implementation and model.training, "left as it was"
    for layer, weights in zip(found, attention_matrices(model, batch), strict=True):
        (softmax,), _ = build_layers("softmax", [layer], {})
        torch.testing.assert_close(effective_matrix(softmax, layer).float(), weights)
    mask = torch.ones_like(TOKENS)
    mask[0, -2:] = 0
    hidden = attention_inputs(model, {"input_ids": TOKENS, "attention_mask": mask})
    for layer in hidden:
        assert layer.key_valid is not None and torch.equal(layer.key_valid, mask.bool())


@pytest.mark.extras
def test_a_causal_model_of_transformers():
    transformers = pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    config._attn_implementation = "eager"
    assert [layer.causal for layer in attention_inputs(transformers.GPT2Model(config), TOKENS)] == [True, True]


def test_batches_are_gathered_layer_by_layer():
    first, second = (random_inputs(count, 2, 6, 4, seed=seed) for seed, count in ((0, 2), (1, 1)))
    layers = gather([[first, second.sequence(0)], [second, first.sequence(1)]][:1] + [[second, second]])
    assert [layer.query.shape[0] for layer in layers] == [3, 2]
    assert torch.equal(layers[0].value[2:], second.value) and layers[0].key_valid is None
    with pytest.raises(UnsupportedError, match="the same number of heads and the same lengths"):
        gather([[first, random_inputs(1, 2, 7, 4)]])
    with pytest.raises(UnsupportedError, match="the same number of heads and the same lengths"):
        gather([])

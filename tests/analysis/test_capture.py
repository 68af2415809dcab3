"""Captured matrices, and queries, keys and values, are those that the model used: our layers, PyTorch, timm and transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attn_zoo import UnsupportedError
from attn_zoo.analysis import attention_matrices
from attn_zoo.analysis.capture import attention_inputs
from attn_zoo.analysis.effective import effective_matrix
from attn_zoo.analysis.error import exact_attention
from attn_zoo.analysis.inputs import build_layers, gather, random_inputs
from attn_zoo.encoder import TokenClassifier
from attn_zoo.layer import MultiHeadAttention

TOKENS = torch.arange(1, 15).reshape(2, 7)


def classifier(attention: str = "softmax", implementation: str = "eager", **options: Any) -> TokenClassifier:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocabulary": 16, "length": 7, "classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_ratio": 2.0}
    return TokenClassifier(**sizes, dropout=0.5, attention=attention, implementation=implementation, options=options)


def by_hand(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, heads: int) -> torch.Tensor:
    """Project tokens and split the result into heads: (batch, heads, length, head_dim)."""
    flat = F.linear(tokens, weight, bias)
    return torch.stack(flat.split(flat.shape[-1] // heads, dim=-1), dim=1)


def projection(layer: MultiHeadAttention, name: str, tokens: torch.Tensor) -> torch.Tensor:
    linear: Any = layer.projections[name]
    return by_hand(tokens, linear.weight, linear.bias, heads=2)


def softmax_of(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), key.double()) / query.shape[-1] ** 0.5
    return (scores.exp() / scores.exp().sum(dim=-1, keepdim=True)).float()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_our_classifier(implementation):
    model = classifier(implementation=implementation, dropout=0.3).train()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [layer.register_forward_hook(lambda _, tokens, out: seen.append((tokens[0], out))) for layer in layers]
    found = attention_matrices(model, TOKENS)
    for hook in hooks:
        hook.remove()
    assert len(found) == 2
    for layer, (tokens, out), weights in zip(layers, seen, found, strict=True):
        query, key, value = (projection(layer, name, tokens) for name in ("query", "key", "value"))
        assert weights.shape == (2, 2, 8, 8), "class token included"
        torch.testing.assert_close(weights, softmax_of(query, key))
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 8))
        mixed = (weights @ value).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer.out(mixed), out, msg="P V is what the layer gave, dropout off")


@pytest.mark.parametrize("causal", [False, True])
def test_our_layer(causal):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, "softmax", length=5, causal=causal)
    tokens, valid = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    (weights,) = attention_matrices(layer, tokens)
    query, key, value = (projection(layer, name, tokens) for name in ("query", "key", "value"))
    seen = softmax_of(query, key).tril() if causal else softmax_of(query, key)
    torch.testing.assert_close(weights, seen / seen.sum(dim=-1, keepdim=True))
    torch.testing.assert_close(layer.out((weights @ value).transpose(1, 2).flatten(2)), layer(tokens))
    valid[1, 3:] = False
    (found,) = attention_inputs(layer, {"tokens": tokens, "key_valid": valid})
    assert found.causal is causal and found.key_valid is not None and torch.equal(found.key_valid, valid)
    out = layer.out(exact_attention(found).float().transpose(1, 2).flatten(2))
    torch.testing.assert_close(out[valid], layer(tokens, key_valid=valid)[valid])


def test_the_model_is_left_as_it_was():
    model = classifier().train()
    model.encoder.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    attention_matrices(model, TOKENS)
    with pytest.raises(ValueError, match="built for at most 7 tokens"):
        attention_matrices(model, torch.ones(1, 9, dtype=torch.long))
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_padding_is_refused_and_a_mask_of_real_tokens_is_not():
    model, valid = classifier(), torch.ones(2, 7, dtype=torch.bool)
    for ours, masked in zip(
        attention_matrices(model, TOKENS), attention_matrices(model, {"tokens": TOKENS, "valid": valid}), strict=True
    ):
        torch.testing.assert_close(ours, masked)
    valid[1, -1] = False
    with pytest.raises(UnsupportedError, match="the batch must not hold padding"):
        attention_matrices(model, {"tokens": TOKENS, "valid": valid})


@pytest.mark.parametrize("capture", [attention_matrices, attention_inputs])
def test_other_mechanisms_have_no_softmax_matrix(capture):
    with pytest.raises(
        UnsupportedError, match=r"must have the mechanism softmax, .*; got linformer in .*blocks\.0\.attention\.mechanism"
    ):
        capture(classifier("linformer", projected_length=3), TOKENS)


def test_a_model_without_attention_is_refused():
    with pytest.raises(UnsupportedError, match="no attention was found in Linear"):
        attention_matrices(nn.Linear(4, 4), torch.ones(1, 4))


@pytest.mark.parametrize("fused", [True, False])
def test_a_timm_transformer(fused):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    vit = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3, qk_norm=True, num_classes=2, attn_drop_rate=0.4
    ).train()
    seen: list[torch.Tensor] = []
    layers: list[Any] = [module for name, module in vit.named_modules() if name.endswith(".attn")]
    for layer in layers:
        layer.fused_attn = fused
        layer.register_forward_hook(lambda _, tokens, out: seen.append(tokens[0]))
    found = attention_matrices(vit, torch.randn(2, 3, 16, 16))
    assert len(found) == 2
    for layer, tokens, weights in zip(layers, seen, found, strict=True):
        assert layer.fused_attn is fused and layer.training
        both = zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True)
        query, key, _ = (by_hand(tokens, weight, bias, heads=3) for weight, bias in both)
        torch.testing.assert_close(weights, softmax_of(layer.q_norm(query), layer.k_norm(key)))
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5))


class OneCall(nn.Module):
    """Model that calls PyTorch's ``scaled_dot_product_attention`` once."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.arguments)


def tensors(key_heads: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = {"query": 4, "key": key_heads, "value": key_heads}
    return {name: torch.randn(2, count, 6, 3, generator=generator) for name, count in heads.items()}


PAST = torch.ones(6, 6, dtype=torch.bool).tril()
HIDDEN = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]
BIAS = torch.linspace(-3, 3, 36).reshape(6, 6)
OTHER = torch.eye(6, dtype=torch.bool) | torch.ones(6, 6, dtype=torch.bool).triu(2)


@pytest.mark.parametrize(
    ("arguments", "key_heads"),
    [
        ({}, 4),
        ({"scale": 0.9}, 4),
        ({"is_causal": True}, 4),
        ({"enable_gqa": True}, 2),
        ({"attn_mask": HIDDEN}, 4),
        ({"attn_mask": torch.zeros(2, 1, 1, 6).masked_fill(~HIDDEN, torch.finfo(torch.float32).min)}, 4),
        ({"attn_mask": PAST}, 4),
        ({"attn_mask": HIDDEN & PAST}, 4),
    ],
)
def test_a_call_of_pytorchs_attention(arguments, key_heads):
    model, batch = OneCall(**arguments), tensors(key_heads)
    out = model(**batch)
    (weights,), (found,) = attention_matrices(model, batch), attention_inputs(model, batch)
    torch.testing.assert_close(weights @ batch["value"].repeat_interleave(4 // key_heads, dim=1), out)
    torch.testing.assert_close(exact_attention(found).float(), out)


@pytest.mark.parametrize(
    ("mask", "message"), [(BIAS, "must not add a bias to its attention scores"), (OTHER, "must be causal or hide padding only")]
)
def test_other_masks_have_a_matrix_and_no_inputs(mask, message):
    model, batch = OneCall(attn_mask=mask), tensors()
    (weights,) = attention_matrices(model, batch)
    torch.testing.assert_close(weights @ batch["value"], model(**batch))
    with pytest.raises(UnsupportedError, match=message):
        attention_inputs(model, batch)


def test_batches_are_gathered_layer_by_layer():
    first, second = (random_inputs(count, 2, 6, 4, seed=seed) for seed, count in ((0, 2), (1, 1)))
    layers = gather([[first, first], [second, second]])
    assert [layer.query.shape[0] for layer in layers] == [3, 3]
    assert torch.equal(layers[0].value[2:], second.value)
    with pytest.raises(UnsupportedError, match="the same number of heads and the same lengths"):
        gather([[first, random_inputs(1, 2, 7, 4)]])
    with pytest.raises(UnsupportedError, match="the same number of heads and the same lengths"):
        gather([])
    fewer = replace(first, query=first.query[:, :, :3])
    with pytest.raises(UnsupportedError, match="as many queries as keys"):
        gather([[fewer]])


@pytest.mark.extras
class TestTransformers:
    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("transformers", reason="the extra 'text' is not installed")

    def bert(self, implementation: str) -> Any:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=16, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=8, initializer_range=0.5
        )
        config._attn_implementation = implementation
        return BertModel(config)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_bert(self, implementation):
        model = self.bert(implementation)
        blocks = [layer.attention.self for layer in model.encoder.layer]
        seen: list[torch.Tensor] = []
        for block in blocks:
            block.query.register_forward_hook(lambda _, tokens, out: seen.append(tokens[0]))
        found = attention_matrices(model, {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)})
        assert len(found) == 2
        for block, tokens, weights in zip(blocks, seen, found, strict=True):
            query, key = (by_hand(tokens, part.weight, part.bias, heads=3) for part in (block.query, block.key))
            torch.testing.assert_close(weights, softmax_of(query, key))
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7))
        inputs = attention_inputs(model.train(), {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)})
        assert model.config._attn_implementation == implementation and model.training, "left as it was"
        for layer, weights in zip(inputs, found, strict=True):
            (softmax,), _ = build_layers("softmax", [layer], {})
            torch.testing.assert_close(effective_matrix(softmax, layer).float(), weights)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_padding_has_inputs_and_no_matrix(self, implementation):
        mask = torch.ones_like(TOKENS)
        mask[0, -2:] = 0
        model, batch = self.bert(implementation), {"input_ids": TOKENS, "attention_mask": mask}
        with pytest.raises(UnsupportedError, match="the batch must not hold padding"):
            attention_matrices(model, batch)
        for layer in attention_inputs(model, batch):
            assert layer.key_valid is not None and torch.equal(layer.key_valid, mask.bool())

    def test_a_causal_language_model_by_both_doors(self):
        from transformers import GPT2Config, GPT2Model

        found = {}
        for implementation in ("eager", "sdpa"):
            torch.manual_seed(0)
            config = GPT2Config(vocab_size=16, n_positions=8, n_embd=12, n_layer=2, n_head=3, initializer_range=0.5)
            config._attn_implementation = implementation
            model = GPT2Model(config)
            found[implementation] = attention_matrices(model, TOKENS)
            assert [layer.causal for layer in attention_inputs(model, TOKENS)] == [True, True]
        for eager, sdpa in zip(found["eager"], found["sdpa"], strict=True):
            torch.testing.assert_close(eager, sdpa)
            assert eager.triu(1).eq(0).all()

    def test_a_model_that_cannot_call_pytorch_is_refused(self):
        from transformers import MPNetConfig, MPNetModel

        sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8}
        with pytest.raises(UnsupportedError, match="no attention was found in MPNetModel"):
            attention_matrices(MPNetModel(MPNetConfig(vocab_size=16, **sizes)), TOKENS)

"""Counted cost of a whole model: by hand, and its layers; peak memory; warnings of doubtful settings."""

from __future__ import annotations

import pytest
import torch
from model_formula import agrees
from torch import Tensor, nn

from attn_zoo import attentions
from attn_zoo.contract import Batch, Geometry
from attn_zoo.count import attention_parameters, count_flops, count_model, count_parameters, model_warnings, peak_bytes
from attn_zoo.count.costs import count_subject, setting_warnings
from attn_zoo.count.subjects import Subject
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, build_attention, card


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.frozen = inner, nn.Parameter(torch.zeros(5), requires_grad=False)

    def forward(self, inputs, valid):
        return self.inner(inputs)


def test_counts_by_hand():
    model = Wrapped(MultiHeadAttention(8, 2, "softmax", length=5))
    assert count_parameters(model) == attention_parameters(model) == 4 * (8 * 8 + 8)
    batch = Batch(torch.zeros(1, 5, 8), None, torch.zeros(1, dtype=torch.long))
    assert count_flops(model, batch) == 4 * 2 * 5 * 8 * 8 + 2 * 2 * 5 * 5 * 8
    with torch.device("meta"):
        twin = Wrapped(MultiHeadAttention(8, 2, "softmax", length=5))
        on_meta = Batch(torch.zeros(1, 5, 8), None, torch.zeros(1, dtype=torch.long))
        assert count_flops(twin, on_meta) == count_flops(model, batch)


def test_peak_bytes_see_temporaries_that_are_gone():
    mebibyte = 2**20

    def step() -> None:
        first = torch.ones(8 * mebibyte, dtype=torch.uint8)
        del first
        second, third = (torch.ones(5 * mebibyte, dtype=torch.uint8) for _ in range(2))
        del second, third

    assert peak_bytes(step, torch.device("cpu")) == pytest.approx(10 * mebibyte, rel=0.01)


class Stack(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        form = card(name).counted_implementation
        layers = (MultiHeadAttention(16, 2, name, length=40, implementation=form) for _ in range(2))
        self.blocks = nn.ModuleList(Block(16, 2, 0.0, layer) for layer in layers)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, valid)
        return self.head(x[:, 0])


@pytest.mark.parametrize("name", ["softmax", "linformer", "longformer"])
def test_model_is_its_layers_and_the_products_around_them(name):
    def batch(examples: int) -> Batch:
        return Batch(torch.zeros(examples, 40, 6), None, torch.zeros(examples, dtype=torch.long))

    with torch.device("meta"):
        one, four = count_model(Stack(name), batch(1)), count_model(Stack(name), batch(4))
        assert agrees(Stack(name), batch(1)) and agrees(Stack(name), batch(4))
    layer = count_subject("layer", Subject(name, {}, "eager"), 16, 2, 40)
    around = 2 * 40 * 6 * 16 + 2 * 2 * 40 * 16 * 32 * 2 + 2 * 16 * 3
    assert one.flops == 2 * (layer.flops or 0) + around
    assert four.flops == 4 * (one.flops or 0)
    assert one.parameters == sum(p.numel() for p in Stack(name).parameters())
    torch.manual_seed(0)
    assert count_model(Stack(name), batch(4)) == four, "numbers change nothing"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("linformer", {"projected_length": 64, "allow_full_rank": True}, "projected_length=64 is at least the number of keys (64)"),
        ("longformer", {"window": 65}, "window=65 is at least the number of tokens (64)"),
        ("longformer", {"global_tokens": 64}, "global_tokens=64 is at least the number of tokens (64)"),
        ("performer", {"features": 256}, "features=256 is at least the number of keys (64)"),
        ("performer", {"features": 48}, "performer: its matrix products cost 1.50 times those of softmax here"),
        ("reformer", {"chunk": 64}, "chunk=64 is at least the number of tokens (64)"),
        ("reformer", {"chunk": 32}, "chunk=32 leaves one bucket for 64 tokens"),
        ("linformer_causal", {"block_scale": 10}, "a block has 64 tokens, at least as many as the input (64)"),
    ],
)
def test_doubtful_settings_are_named(name, options, says):
    geometry = Geometry(2, 16, 64, 64)
    mechanism = build_attention(name, geometry, **options)
    found = setting_warnings(mechanism.card, geometry, mechanism.options)
    assert any(says in words for words in found)
    assert all(words.startswith(f"{name}: ") for words in found)
    layers = nn.ModuleList(MultiHeadAttention(32, 2, name, length=64, **options) for _ in range(2))
    assert model_warnings(layers) == found, "each once"


DEARER = {"indexer": "indexer: its matrix products cost 1.14 times those of softmax here"}
"""Warnings about defaults, by name: all pairs are computed and masked, beside the index."""


@pytest.mark.parametrize("name", attentions())
def test_defaults_at_length_are_beyond_doubt(name):
    entry, geometry = card(name), Geometry(4, 64, 4096, 4096)
    expected = (DEARER[name],) if name in DEARER else ()
    assert setting_warnings(entry, geometry, attention_options(entry, geometry, {})) == expected

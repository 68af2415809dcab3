"""The network around every attention: its inputs, and the influence of padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tiers import of_each_kind

from attn_zoo import UnsupportedError, attentions, card
from attn_zoo.contract import Pairs, Patches, TaskSpec, Tokens
from attn_zoo.encoder import backbone_sizes, build_model
from attn_zoo.layer import MultiHeadAttention

SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
WORDS = TaskSpec(Tokens(12), length=20, classes=3)
IMAGES = TaskSpec(Patches(1, 8, 8, 2), length=16, classes=3)


def model(task: TaskSpec, attention: str = "softmax", options: Mapping[str, int] = MappingProxyType({}), **changes):
    torch.manual_seed(0)
    return build_model(task, attention=attention, options=options, **{**SIZES, **changes}).eval()


@pytest.mark.parametrize("name", [*(n for n in attentions() if card(n).can.key_padding), "linformer+softmax"])
def test_padding_leaves_scores_alone(name):
    ids = torch.randint(1, 12, (4, 20))
    valid = torch.arange(20) < torch.tensor([20, 11, 5, 1])[:, None]
    other = torch.where(valid, ids, torch.randint(1, 12, (4, 20)))
    with torch.no_grad():
        torch.testing.assert_close(model(WORDS, name)(ids, valid), model(WORDS, name)(other, valid), rtol=0, atol=1e-6)


SHORT_REACH = ("convolution", "fixed", "pooling", "reformer", "routing")
"""Mechanisms whose windows, hashes or clusters may keep a token from reaching the class token within two layers."""

WIDE = {"indexer": {"kept": 20}, "local": {"block": 24}, "moba": {"chosen": 20}, "topk": {"kept": 8}}
WIDE |= {"transformer_xl": {"segment": 32, "memory": 32}}
"""Options with which all tokens are in reach; the defaults for short inputs are smaller."""


@pytest.mark.parametrize("name", [n for n in attentions() if n != "none"])
def test_every_token_can_change_the_answer(name):
    ids = torch.randint(1, 12, (1, 20))
    built = model(WORDS, name, WIDE.get(name, {}))
    words = built.encoder.embedding(ids).detach().requires_grad_()
    built.encoder.embedding.forward = lambda _: words
    built(ids).square().sum().backward()
    reached = words.grad.abs().sum(-1)[0] > 0
    if name not in SHORT_REACH:
        assert reached.all()
    assert reached.any()


def test_without_attention_nothing_is_known():
    built = model(WORDS, "none")
    with torch.no_grad():
        assert torch.equal(built(torch.full((1, 20), 3)), built(torch.full((1, 20), 7)))
        pictures = model(IMAGES, "none")(torch.randn(2, 1, 8, 8))
    assert torch.equal(pictures[0], pictures[1])


PAIRS = TaskSpec(Pairs(12), length=20, classes=3)
ASKED = TaskSpec(Tokens(12), length=20, classes=12, labels="position")
CAUSAL = replace(ASKED, causal=True)


def test_two_towers_read_their_sequences_apart_and_share_their_weights():
    built = model(PAIRS)
    ids = torch.randint(1, 12, (3, 2, 20))
    valid = torch.arange(20) < torch.tensor([[20, 7], [3, 20], [9, 9]])[..., None]
    with torch.no_grad():
        found = built(ids, valid)
        one, other = (built.encoder.norm(built.encoder(ids[:, at], valid[:, at])[:, 0]) for at in range(2))
        expected = built.head(torch.cat([one, other, one * other, one - other], dim=-1))
        elsewhere = built(torch.where(valid, ids, 5), valid)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, elsewhere)
    assert found.shape == (3, 3)


@pytest.mark.parametrize("name", of_each_kind(attentions()))
def test_positions_are_answered_where_they_are_asked(name):
    built, ids = model(ASKED, name), torch.randint(1, 12, (2, 20))
    asked = torch.zeros(2, 20, dtype=torch.bool)
    asked[0, 3] = asked[1, 7] = asked[1, 19] = True
    with torch.no_grad():
        everywhere, there = built(ids), built(ids, None, asked)
    assert everywhere.shape == (2, 20, 12) and built.encoder.class_token is None
    torch.testing.assert_close(there, torch.stack([everywhere[0, 3], everywhere[1, 7], everywhere[1, 19]]))


@pytest.mark.parametrize(
    ("attention", "changes"),
    [
        ("softmax", {}),
        ("linear+2*local+softmax", {"depth": 4, "options": {"local.block": 4}}),
        ("softmax", {"shared_weights": True}),
        ("softmax", {"shared_weights": True, "reuse_keys": True}),
    ],
)
def test_a_causal_task_sees_the_past_alone(attention, changes):
    built, ids = model(CAUSAL, attention, **changes), torch.randint(1, 12, (1, 20))
    later = ids.clone()
    later[:, 12:] = 1 + later[:, 12:] % 11
    with torch.no_grad():
        before, after = built(ids), built(later)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


def test_a_mechanism_without_a_causal_form_is_refused():
    with pytest.raises(UnsupportedError, match="causal"):
        model(CAUSAL, "linformer")


def test_without_positions_causality_alone_tells_the_order():
    ids = torch.randint(1, 12, (2, 20))
    shuffled = torch.cat([ids[:, torch.randperm(19)], ids[:, 19:]], dim=1)
    for task, changes in ((WORDS, False), (CAUSAL, True)):
        built = model(task, positions="none")
        assert not any("positions" in name for name, _ in built.named_parameters())
        with torch.no_grad():
            one, other = (built(x)[:, -1] if task.causal else built(x) for x in (ids, shuffled))
        assert torch.allclose(one, other, atol=1e-6) != changes
    with torch.no_grad():
        assert not torch.allclose(model(WORDS)(ids), model(WORDS)(shuffled), atol=1e-3), "learned positions tell it"


def test_positions_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="learned or none; got 'rotary'"):
        model(WORDS, positions="rotary")
    with pytest.raises(UnsupportedError, match=r"model\.positions must be learned for tasks on images"):
        model(IMAGES, positions="none")


def test_specs_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="inputs must be Tokens or Frames if labels are by position; got Pairs"):
        TaskSpec(Pairs(12), 20, 3, labels="position")
    with pytest.raises(ValueError, match="a causal task must have a label for each position"):
        TaskSpec(Tokens(12), 20, 3, causal=True)
    assert (WORDS.positions, ASKED.positions) == (21, 20)


def test_a_backbone_of_timm_keeps_its_own_sizes_and_features():
    assert backbone_sizes("vit_tiny_patch16_224") == {"dim": 192, "depth": 12, "heads": 3, "mlp_ratio": 4.0}
    built = model(IMAGES, "performer", backbone="vit_tiny_patch16_224")
    layers = [m for m in built.modules() if isinstance(m, MultiHeadAttention)]
    assert len(layers) == 12 and layers[0].dim == 192 and layers[0].mechanism.geometry.keys == 17
    registers = model(IMAGES, "linformer", backbone="vit_little_patch16_reg4_gap_256")
    assert next(m for m in registers.modules() if isinstance(m, MultiHeadAttention)).mechanism.geometry.keys == 16 + 4
    with torch.no_grad():
        assert built(torch.randn(2, 1, 8, 8)).shape == registers(torch.randn(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        ("vit_tyni", "must be a model of timm"),
        ("resnet18", "a ResNet|another attention"),
        ("vit_pwee_patch16_reg1_gap_256", "its blocks .ParallelScalingBlock. do not have one attention module each"),
        ("vit_small_patch16_18x2_224", "its blocks .ParallelThingsBlock. do not have one attention module each"),
    ],
)
def test_backbones_whose_attention_cannot_be_replaced_are_refused(backbone, words):
    for call in (lambda: model(IMAGES, backbone=backbone), lambda: backbone_sizes(backbone)):
        with pytest.raises(UnsupportedError, match=words):
            call()
    with pytest.raises(ValueError, match="its inputs are a sequence"):
        model(WORDS, backbone="vit_tiny_patch16_224")


def test_sequences_beyond_the_built_length_are_refused():
    with pytest.raises(ValueError, match="built for at most 20 tokens; got 21"):
        model(WORDS)(torch.ones(1, 21, dtype=torch.long))
    with pytest.raises(ValueError, match="images are never padded"):
        model(IMAGES)(torch.zeros(1, 1, 8, 8), torch.ones(1, 16, dtype=torch.bool))

"""Drawings of who sees whom show what the mechanisms compute."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from attn_zoo.registry import attentions, card

sys.path.append(str(Path(__file__).parents[2] / "docs"))
from zoo_pages.drawing import TOKENS, drawing, seen
from zoo_pages.families import families


def test_softmax_prefers_tokens_of_the_same_kind_and_sees_all():
    shares = seen(card("softmax"), causal=False)
    kinds = torch.arange(TOKENS) // 2 % 4
    same = kinds[:, None] == kinds
    assert shares[same].min() > 0.5 > 0.1 > shares[~same].max() > 0.01


@pytest.mark.parametrize("name", [name for name in attentions() if card(name).can.causal])
def test_no_token_sees_a_later_one(name):
    shares = seen(card(name), causal=True)
    assert shares.triu(1).max() < 1e-12, "rounding alone"
    assert shares[0, 0] == 1, "the first token sees itself"


def test_none_sees_itself_alone_and_uniform_sees_all_alike():
    torch.testing.assert_close(seen(card("none"), causal=False), torch.eye(TOKENS, dtype=torch.float64))
    shares = seen(card("uniform"), causal=False)
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))


def test_every_mechanism_is_in_one_family_and_its_drawing_is_xml():
    found = [entry.name for family in families() for entry in family.cards]
    assert sorted(found) == sorted(attentions())
    assert all(family.title and family.idea for family in families())
    assert ElementTree.fromstring(drawing(card("linformer"))).tag.endswith("svg")

"""Implementations that a CPU runs only in part, at randomly drawn sizes: FlexAttention forward, ``fla`` by its references."""

from __future__ import annotations

from typing import Any

import fla_references
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from attn_zoo import attentions, card
from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.conformance import ATTENTION_CHECKS
from attn_zoo.conformance.requests import key_masks
from attn_zoo.conformance.sizes import BORDERS
from attn_zoo.conformance.subject import DEFAULTS_AT, Subject
from attn_zoo.kernels import flex
from attn_zoo.registry import attention_options

CPU = torch.device("cpu")
AGREEMENT = ATTENTION_CHECKS["implementation_agrees_with_eager"]
ENOUGH = ("longformer", "bigbird", "gated_linear", "delta_rule")
"""Mechanisms that are compared with ``eager`` before the exhaustive tier: with pairs of all heads or of each head, with gates and
without. The others share their code; test_flex.py and test_fla.py compare every mechanism at fixed sizes."""


def settings(implementation: str) -> list[Any]:
    """Return names and variants of the attentions that have an implementation."""
    names = [name for name in attentions() if implementation in card(name).implementations]
    return [
        pytest.param(name, variant, id=f"{name}-{variant}", marks=pytest.mark.exhaustive if at > 1 else ())
        for name in names
        for at, variant in enumerate(["default", *card(name).variants])
    ]


def subject_of(name: str, variant: str, implementation: str) -> Subject:
    options = attention_options(card(name), DEFAULTS_AT, card(name).variants.get(variant, {}))
    return Subject(card(name), variant, options, implementation, CPU)


@pytest.fixture
def plain_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use FlexAttention's uncompiled form, which a CPU runs forward and which ignores block tables."""
    for module in ("contract.attention", "conformance.subject"):
        monkeypatch.setattr(f"attn_zoo.{module}.unavailable", lambda *_: None)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(flex, "_CACHE", {})


@torch.no_grad()
def require_eager_outputs(name: str) -> None:
    """Compare the outputs of ``flex`` with those of ``eager`` at drawn lengths from 63 to 319, with and without padding."""
    subject = subject_of(name, "default", "flex")
    for geometry in subject.sized(longest=subject.sizes.blocks, shortest=min(BORDERS)):
        fused, eager = subject.build(geometry), subject.as_eager().build(geometry)
        fused.load_state_dict(eager.state_dict())
        request = subject.draw(eager, batch=6)
        for mask in (None, key_masks(geometry.keys)):
            padded = request.padded(mask)
            subject.equal(padded(fused), padded(eager), f"{geometry}, padded={mask is not None}")


@pytest.mark.usefixtures("plain_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ENOUGH else pytest.mark.exhaustive)
        for name in attentions()
        if "flex" in card(name).implementations
    ],
)
def test_flex_gives_what_eager_gives(name):
    require_eager_outputs(name)


@pytest.mark.parametrize(("name", "variant"), settings("flex"))
def test_block_tables_of_flex_hold_every_pair_and_no_other(name, variant):
    subject = subject_of(name, variant, "eager")
    for geometry in subject.sized():
        built = subject.build(geometry)
        assert isinstance(built, PairwiseAttention)
        n, pairs, heads = geometry.keys, built.mask_mod(geometry.keys, CPU), geometry.heads if built.by_head() else 1
        some, whole = flex.blocks_of_pairs(pairs, n, heads, CPU)
        blocks = some.shape[-1]
        every, positions = torch.arange(heads)[:, None, None], torch.arange(n)
        allowed = torch.zeros(heads, blocks * flex.BLOCK, blocks * flex.BLOCK, dtype=torch.bool)
        allowed[:, :n, :n] = pairs(every, positions[:, None], positions)
        squares = allowed.view(heads, blocks, flex.BLOCK, blocks, flex.BLOCK)
        assert torch.equal(some[0], squares.any(4).any(2)), geometry
        assert torch.equal(whole[0], squares.all(4).all(2)), geometry


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(*each.values, id=each.id, marks=each.marks if each.values[0] in ENOUGH else pytest.mark.exhaustive)
        for each in settings("fla")
        if each.values[1] != "default"
    ],
)
def test_fla_agrees_with_eager_beyond_the_defaults(name, variant, monkeypatch):
    pytest.importorskip("fla", reason="fla-core is not installed (extra: gpu or peers)")
    fla_references.on_a_cpu(monkeypatch)
    AGREEMENT.prove(subject_of(name, variant, "fla"))

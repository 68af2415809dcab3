"""Keys and values from a latent are as small as stated."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import written_layers
from written_layers import LENGTH

from attn_zoo import Geometry, UnsupportedError, attentions, card
from attn_zoo.contract import FLOAT
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options

DIM, HEADS, LATENT = 24, 4, 7
build, tokens = partial(written_layers.build, dim=DIM, heads=HEADS, latent_dim=LATENT), partial(written_layers.tokens, dim=DIM)
NAMES = [name for name in attentions() if not card(name).can.shares_query_key]
WHOLE_CACHES = ["softmax", "topk", "entmax", "differential", "indexer", "moba", "strided", "fixed", "local", "block_sparse"]


def test_a_context_has_latents_of_its_own_width():
    layer = build("softmax", context_length=9, context_dim=5)
    context = torch.randn(3, 9, 5, dtype=torch.float64)
    kept = layer.remember(context)
    assert kept.latent is not None and kept.latent.shape == (3, 9, LATENT)
    torch.testing.assert_close(layer(tokens(), remembered=kept), layer(tokens(), context), rtol=1e-12, atol=1e-12)


def stated(name: str, latent_dim: int, heads: int = 0) -> int:
    geometry = Geometry(HEADS, DIM // HEADS, LENGTH, LENGTH, True, heads, latent_dim)
    found = card(name).cost(geometry, attention_options(card(name), geometry, {})).state_bytes
    assert found is not None
    return found


def test_the_cache_takes_as_many_bytes_as_the_card_states():
    kept = build("softmax", causal=True).remember(tokens())
    assert kept.key is None and kept.value is None and kept.latent is not None
    assert kept.latent.nbytes == 3 * 2 * stated("softmax", LATENT)  # three examples, eight bytes per number in place of four


@pytest.mark.parametrize("name", [name for name in NAMES if card(name).can.causal])
def test_a_latent_replaces_keys_and_values_of_tokens_in_every_state(name):
    reads = 2 if "key" in card(name).reads else 1
    as_wide, half, plain = stated(name, reads * DIM), stated(name, reads * DIM // 2), stated(name, 0)
    if name == "frozen_random":  # the heads link to different positions, and all need the latents of theirs
        assert plain < as_wide <= FLOAT * LENGTH * DIM
    else:
        assert as_wide == plain
    assert 2 * half == as_wide if name in WHOLE_CACHES else half <= as_wide


def test_the_latent_of_longformer_holds_its_global_keys_and_values_too():
    geometry = {width: Geometry(HEADS, DIM // HEADS, 8, 8, True, 0, width) for width in (0, 2 * DIM)}
    options = attention_options(card("longformer"), geometry[0], {"window": 3, "global_tokens": 7})
    states = {width: card("longformer").cost(of, options).state_bytes for width, of in geometry.items()}
    assert states == {0: 4 * 2 * DIM * 14, 2 * DIM: 4 * 2 * DIM * 8}


@pytest.mark.parametrize("latent_dim", [-1, True, 2.0])
def test_widths_that_are_not_whole_numbers_are_refused(latent_dim):
    with pytest.raises(ValueError, match="latent_dim must be an integer >= 0"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, latent_dim=latent_dim)


def test_layers_whose_queries_come_from_the_source_of_the_keys_refuse_a_latent():
    with pytest.raises(UnsupportedError, match="latent_dim must be 0 for reformer"):
        MultiHeadAttention(DIM, HEADS, "reformer", length=LENGTH, latent_dim=LATENT)
    with pytest.raises(ValueError, match="latent_dim must be 0 with fused=True"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, latent_dim=LATENT, fused=True)

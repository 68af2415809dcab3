"""The state on every causal card is what a form of it holds that reads one token at a time and answers as the whole does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from state_forms import FORMS, carried
from torch import Tensor

from attn_zoo import attentions
from attn_zoo.attention.controls.frozen_random import FrozenRandom
from attn_zoo.conformance.requests import draw
from attn_zoo.contract import Attention, Geometry
from attn_zoo.registry import attention_options, build_attention, card

OURS = [name for name in attentions() if card(name).can.causal and card(name).origin.startswith("attn_zoo.")]
STEPWISE = [name for name in OURS if card(name).can.stepwise]

Case = tuple[str, int, dict[str, Any]]

EXACT: list[Case] = [
    ("none", 9, {}),
    ("uniform", 9, {}),
    ("convolution", 9, {}),
    ("convolution", 4, {"kernel": 9}),
    ("convolution", 9, {"kernel": 1}),
    ("softmax", 9, {}),
    ("performer", 9, {"features": 16}),
    ("performer", 150, {"features": 16}),
    ("longformer", 20, {"window": 5, "dilation": 2, "global_tokens": 2}),
    ("longformer", 20, {"window": 3, "global_tokens": 6}),
    ("longformer", 5, {"window": 3, "global_tokens": 8}),
    ("longformer", 20, {"window": 7, "global_tokens": 0}),
    ("longformer", 6, {"window": 17, "global_tokens": 1}),
    ("linformer_causal", 40, {}),
    ("linformer_causal", 40, {"projected_length": 2, "block_scale": 0.6}),
    ("linformer_causal", 5, {}),
    ("length_compression", 22, {"compress_rate": 4, "window": 5}),
    ("length_compression", 24, {"compress_rate": 4, "window": 5}),
    ("length_compression", 9, {"compress_rate": 16, "window": 3}),
    ("sparse_compression", 22, {"compress_rate": 4, "window": 5, "kept": 2}),
    ("sparse_compression", 24, {"compress_rate": 3, "window": 5, "kept": 3, "index_heads": 2, "index_width": 5}),
    ("sparse_compression", 9, {"compress_rate": 16, "window": 3, "kept": 2}),
    ("local", 30, {"block": 7}),
    ("local", 30, {"block": 4, "neighbours": 2}),
    ("local", 9, {"block": 4, "neighbours": 2}),
    ("fixed", 25, {}),
    ("fixed", 26, {"stride": 5, "summary": 2}),
    ("fixed", 23, {"stride": 5, "summary": 3}),
    ("fixed", 24, {"stride": 5, "summary": 3}),
    ("fixed", 23, {"stride": 5, "summary": 5}),
    ("fixed", 23, {"stride": 5, "summary": 0}),
    ("fixed", 9, {"stride": 20}),
    ("strided", 30, {}),
    ("strided", 30, {"stride": 40}),
    ("block_sparse", 30, {"block": 4, "random_blocks": 0}),
    ("block_sparse", 30, {"block": 4, "local_blocks": 2, "global_blocks": 0, "random_blocks": 0}),
    ("block_sparse", 30, {"block": 4, "local_blocks": 0, "global_blocks": 3, "random_blocks": 0}),
    ("block_sparse", 9, {"block": 4, "local_blocks": 1, "global_blocks": 3, "random_blocks": 0}),
    ("synthesizer_dense", 12, {}),
    ("synthesizer_dense", 12, {"factor": 5}),
    ("synthesizer_random", 12, {}),
    ("synthesizer_factorised", 12, {"rank": 3}),
    ("luna", 20, {}),
    ("luna", 20, {"packed_length": 2}),
    ("mega", 20, {"chunk": 6, "expansion": 2}),
    ("mega", 40, {}),
    ("mega", 9, {}),
]

AT_MOST: list[Case] = [
    ("reformer", 12, {"buckets": 2, "chunk": 4, "rounds": 2}),
    ("reformer", 60, {"buckets": 4, "chunk": 2, "rounds": 1}),
    ("reformer", 60, {"buckets": 8, "chunk": 2, "rounds": 2}),
    ("frozen_random", 40, {}),
    ("frozen_random", 40, {"links": 2}),
    ("block_sparse", 60, {"block": 4, "random_blocks": 2}),
]


def built(name: str, length: int, options: dict[str, Any]) -> Attention:
    torch.manual_seed(0)
    return build_attention(name, Geometry(2, 4, length, length, causal=True), **options).double().eval()


def steps(mechanism: Attention) -> tuple[Tensor, Tensor, int, int]:
    """What the whole answers, what the steps answer, the most bytes they held in float32, and the card's state bytes."""
    name = mechanism.card.name
    request = draw(mechanism, torch.float64, torch.device("cpu"), batch=1)
    with torch.no_grad():
        whole = request(mechanism)
        answers, held = zip(*(carried if name in STEPWISE else FORMS[name])(mechanism, request), strict=True)
    stated = card(name).cost(mechanism.geometry, mechanism.options).state_bytes
    assert stated is not None
    return whole[0], torch.stack(answers, dim=1), 4 * max(held), stated


@pytest.mark.parametrize(("name", "length", "options"), EXACT)
def test_steps_answer_as_the_whole_and_hold_what_the_card_says(name, length, options):
    whole, answers, held, stated = steps(built(name, length, options))
    torch.testing.assert_close(answers, whole)
    assert held == stated


@pytest.mark.parametrize("name", STEPWISE)
def test_a_carried_state_is_as_large_as_the_card_says(name):
    """But for the token being read, which a mechanism may read and forget within one step."""
    whole, answers, held, stated = steps(built(name, 80, {}))
    torch.testing.assert_close(answers, whole)
    token = 2 * 4 * 2 * 4  # its key and value, in two heads of four
    assert stated - token <= held <= stated


@pytest.mark.parametrize(("name", "length", "options"), AT_MOST)
def test_what_is_hashed_or_drawn_never_asks_for_more_than_the_card_says(name, length, options):
    whole, answers, held, stated = steps(built(name, length, options))
    torch.testing.assert_close(answers, whole)
    assert stated / 2 <= held <= stated


@pytest.mark.parametrize(("length", "links"), [(20, 2), (20, 8), (7, 3), (12, 1), (5, 20)])
def test_the_worst_links_ask_for_all_that_the_card_says(length, links):
    """The last positions are linked to all before them, each to others."""
    mechanism = built("frozen_random", length, {"links": links})
    assert isinstance(mechanism, FrozenRandom)
    split = length - -(-length // links)  # one position in links is left
    own = torch.arange(length)
    others = [(i - split) * (links - 1) + torch.arange(links - 1) if i >= split else own[:1].expand(links - 1) for i in own]
    to = torch.cat([own[None], torch.stack(others, dim=1).clamp(max=split - 1)]) if links > 1 else own[None]
    mechanism.sources.copy_(torch.cat([to, to + length], dim=1))
    whole, answers, held, stated = steps(mechanism)
    torch.testing.assert_close(answers, whole)
    assert held == stated


@pytest.mark.parametrize("name", OURS)
def test_every_card_that_states_less_than_a_cache_has_a_form_that_reads_one_token_at_a_time(name):
    """Keys and values of all tokens are enough for anyone; less than that has to be shown."""
    entry, geometry = card(name), Geometry(2, 4, 4096, 4096, causal=True)
    cache = 2 * 4 * geometry.keys * geometry.inner_dim
    settings = [{}, *entry.variants.values()]
    stated = [entry.cost(geometry, attention_options(entry, geometry, options)).state_bytes for options in settings]
    if any(state is not None and state < cache for state in stated):
        assert name in {shown for shown, _, _ in EXACT + AT_MOST} | set(STEPWISE)

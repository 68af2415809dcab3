"""Mechanisms that claim to be sub-quadratic allocate less than a byte for each pair of tokens, forward and backward."""

from __future__ import annotations

import pytest
import torch

from attn_zoo import Geometry, attentions, card
from attn_zoo.conformance.requests import draw
from attn_zoo.conformance.subject import DEFAULTS_AT
from attn_zoo.contract import AttentionCard
from attn_zoo.count import peak_bytes
from attn_zoo.registry import attention_options

N = 8192
PAIRS = N * N
"""Bytes of one boolean for each pair of tokens: 64 MiB. Blocks of bounded size need far less, however many pairs there are."""

SUB_QUADRATIC = [name for name in attentions() if card(name).time.exponent < 2]


def peak(mechanism: AttentionCard, *, causal: bool, padded: bool = True) -> int:
    """Peak memory in bytes, inputs excluded, of the forward and backward pass of one head on one example."""
    torch.manual_seed(0)
    built = mechanism.build(Geometry(1, 8, N, N, causal), attention_options(mechanism, DEFAULTS_AT, {}))
    request = draw(built, torch.float32, torch.device("cpu"), batch=1).leaves()
    if padded and mechanism.can.key_padding:
        request = request.padded(torch.arange(N)[None] < N - 100)
    return peak_bytes(lambda: request(built).sum().backward(), torch.device("cpu"))


@pytest.mark.parametrize("name", SUB_QUADRATIC)
def test_holds_less_than_a_byte_for_each_pair(name):
    mechanism = card(name)
    for causal in (False, True) if mechanism.can.causal else (False,):
        held = peak(mechanism, causal=causal)
        assert held < PAIRS, f"causal={causal}: {held / 2**20:.0f} MiB at {N} tokens; N x N bytes are {PAIRS / 2**20:.0f}"


def test_every_sub_quadratic_mechanism_is_measured():
    assert {"longformer", "local", "strided", "fixed", "block_sparse", "bigbird", "reformer", "linformer"} <= set(SUB_QUADRATIC)
    assert "softmax" not in SUB_QUADRATIC

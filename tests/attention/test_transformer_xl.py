"""Transformer-XL against its definition written out, query after query and key after key."""

from __future__ import annotations

import math
from functools import cache, partial

import pytest
import torch
from stepping import step
from torch import Tensor
from written_out import require_same, require_same_in

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.recurrent.transformer_xl import TransformerXL
from attn_zoo.kernels.cpu import segments

HEADS, HEAD_DIM, BATCH = 2, 4, 2


def build(n: int = 23, *, causal: bool = True, **options) -> TransformerXL:
    torch.manual_seed(0)
    built = build_attention("transformer_xl", Geometry(HEADS, HEAD_DIM, n, n, causal), **options).double()
    assert isinstance(built, TransformerXL)
    with torch.no_grad():
        for bias in [built.content_bias, built.position_bias] if built.options.relative else []:
            bias.normal_()
    return built


def draw(n: int = 23, batch: int = BATCH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, HEADS, n, HEAD_DIM, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


@cache
def wave(distance: int, width: int) -> Tensor:
    """Encode a distance δ as sin(δ / 10000^(2k / width)) for each k, then the cosines."""
    phases = [distance / 10000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([*map(math.sin, phases), *map(math.cos, phases)], dtype=torch.float64)


def written_out(built: TransformerXL, inputs: list[Tensor], valid: Tensor | None = None) -> Tensor:
    """Attention within segment and memory, one pair of positions at a time."""
    query, key, value = inputs
    o, causal, (batch, _, n, d) = built.options, built.geometry.causal, query.shape
    out = []
    for b in range(batch):
        for h in range(HEADS):
            for i in range(n):
                first = i // o.segment * o.segment
                last = i if causal else min(first + o.segment, n) - 1
                seen = [j for j in range(max(0, first - o.memory), last + 1) if valid is None or valid[b, j]]
                scores = []
                for j in seen:
                    score = query[b, h, i] @ key[b, h, j]
                    if o.relative:
                        row = (built.position_projection @ wave(i - j, HEADS * HEAD_DIM)).unflatten(0, (HEADS, d))[h]
                        score = score + built.content_bias[h] @ key[b, h, j] + (query[b, h, i] + built.position_bias[h]) @ row
                    scores.append(score / math.sqrt(d))
                out.append(torch.stack(scores).softmax(0) @ value[b, h, seen] if seen else 0 * value[b, h, 0])
    return torch.stack(out).view(batch, HEADS, n, d)


CUTS = [(4, 4), (4, 0), (5, 2), (3, 7), (23, 9), (40, 3), (1, 6), (6, 100)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("segment", "memory"), CUTS)
def test_equals_its_definition_written_out(causal, segment, memory, monkeypatch):
    monkeypatch.setattr(segments, "TILE", 60)
    for relative in (True, False):
        for n in (13, 1) if relative else (13,):
            built, inputs = build(n, causal=causal, segment=segment, memory=memory, relative=relative), draw(n)
            expected, leaves = written_out(built, inputs), [*inputs, *built.parameters()]
            require_same_in(["eager", "tiled"], built, partial(built, *inputs), expected, leaves)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_left_out_and_keeps_its_place(causal):
    built, inputs = build(17, causal=causal, segment=4, memory=5), draw(17)
    valid = torch.stack([torch.arange(17) % 5 != 2, (torch.arange(17) > 6) & (torch.arange(17) < 14)])
    got = built(*inputs, key_valid=valid)
    require_same(got, written_out(built, inputs, valid), [*inputs, *built.parameters()])
    assert not got[1, :, :2].any(), "nothing valid is in reach there"


def test_many_short_pieces_and_long_ones_take_either_order_of_the_product():
    """Pieces of many rows compute q (W s), those of few rows (q W) s; both are the scores by distance."""
    built, (query, _, _) = build(segment=30, memory=30), draw(30)
    rows = torch.stack([built.position_projection @ wave(29 - t, 8) for t in range(30)]).unflatten(-1, (HEADS, HEAD_DIM))
    expected = torch.einsum("bhnd,thd->bhnt", query, rows)
    for piece, expect in ((slice(0, 30), expected), (slice(4, 5), expected[:, :, 4:5])):
        torch.testing.assert_close(built._by_distance(query[:, :, piece], 30), expect, rtol=1e-9, atol=1e-9)


def test_the_state_is_left_as_it_was_and_gradients_flow_through_it_unless_detached():
    built, inputs = build(segment=4, memory=4), draw()
    _, state = step(built, [x[:, :, :10] for x in inputs], built.initial_state(BATCH, dtype=torch.float64))
    before, rest = state.key.clone(), [x[:, :, 10:] for x in inputs]
    first, _ = step(built, rest, state)
    again, _ = step(built, rest, state)
    assert torch.equal(first, again) and torch.equal(state.key, before)
    (flows,) = torch.autograd.grad(first.sum(), inputs[2], retain_graph=True)
    assert flows[:, :, 4:10].abs().sum(dim=(0, 1, 3)).min() > 0 and not flows[:, :, :4].any()
    constant, _ = step(built, rest, state.detached())
    (stopped,) = torch.autograd.grad(constant.sum(), inputs[2])
    torch.testing.assert_close(constant, first)
    assert not stopped[:, :, :10].any() and torch.allclose(stopped[:, :, 10:], flows[:, :, 10:])


@pytest.mark.parametrize(("segment", "memory"), [(4, 4), (5, 0), (3, 7), (40, 40), (7, 100), (8, 3)])
def test_the_card_states_the_most_that_is_cached(segment, memory):
    for n in (1, 7, 8, 20, 23):
        built = build(n, segment=segment, memory=memory).float()
        reached, state = 0, built.initial_state(1)
        token = torch.zeros(1, HEADS, 1, HEAD_DIM)
        for _ in range(n):
            reached = max(reached, state.nbytes + 2 * token.nbytes)
            _, state = built.step(token, token, token, state)
        assert reached == built.card.cost(built.geometry, built.options).state_bytes, n

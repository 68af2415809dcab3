"""The state on every causal card is what a form of it holds that reads one token at a time and answers as the whole does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo import attentions
from attn_zoo.attention.features import log_positive_features
from attn_zoo.attention.lsh import hash_positions
from attn_zoo.attention.reformer import SELF_SCORE
from attn_zoo.conformance.requests import Request, draw
from attn_zoo.contract import Attention, Geometry
from attn_zoo.registry import build_attention, card

Step = tuple[Tensor, int]
"""Answer to one token, (heads, head_dim), and how many numbers were held meanwhile."""


def reading(request: Request) -> Iterator[dict[str, Tensor]]:
    """Each token's part of every tensor, (heads, head_dim); streams that are over are left out."""
    for t in range(request.value.shape[2]):
        yield {name: tensor[0, :, t] for name, tensor in request.tensors.items() if t < tensor.shape[2]}


def answer(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    scores = torch.einsum("hd,nhd->hn", query, torch.stack(keys)) * query.shape[-1] ** -0.5
    return torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), torch.stack(values))


def none(mechanism: Attention, request: Request) -> Iterator[Step]:
    for token in reading(request):
        yield token["value"], 0


def uniform(mechanism: Attention, request: Request) -> Iterator[Step]:
    total = torch.zeros_like(request.value[0, :, 0])
    for t, token in enumerate(reading(request)):
        total = total + token["value"]
        yield total / (t + 1), total.numel()


def softmax(mechanism: Attention, request: Request) -> Iterator[Step]:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for token in reading(request):
        keys.append(token["key"])
        values.append(token["value"])
        yield answer(token["query"], keys, values), sum(x.numel() for x in [*keys, *values])


def performer(mechanism: Any, request: Request) -> Iterator[Step]:
    h, d, m = *request.value[0, :, 0].shape, mechanism.options.features
    summed, mass, top = request.value.new_zeros(h, m, d), request.value.new_zeros(h, m), request.value.new_full((h, 1), -1e30)
    for token in reading(request):
        logs = log_positive_features(token["key"], mechanism.directions, is_key=True)
        higher = torch.maximum(top, logs.amax(dim=-1, keepdim=True))
        features, shrink = (logs - higher).exp(), (top - higher).exp()
        summed = summed * shrink[..., None] + features[..., None] * token["value"][:, None]
        mass, top = mass * shrink + features, higher
        logs = log_positive_features(token["query"], mechanism.directions, is_key=False)
        asked = (logs - logs.amax(dim=-1, keepdim=True)).exp()
        out = torch.einsum("hm,hmd->hd", asked, summed) / (asked * mass).sum(dim=-1, keepdim=True)
        yield out, summed.numel() + mass.numel() + top.numel()


def longformer(mechanism: Any, request: Request) -> Iterator[Step]:
    o = mechanism.options
    near: dict[int, tuple[Tensor, Tensor]] = {}
    of_all: list[tuple[Tensor, Tensor]] = []
    for t, token in enumerate(reading(request)):
        near[t] = token["key"], token["value"]
        near = {at: pair for at, pair in near.items() if at < o.global_tokens or at >= t - (o.window - 1) * o.dilation}
        if t < o.global_tokens:
            of_all.append((token["stream global_key"], token["stream global_value"]))
            out = answer(token["stream global_query"], *map(list, zip(*of_all, strict=True)))
        else:
            of_all.clear()
            seen = [at for at in near if at < o.global_tokens or (t - at) % o.dilation == 0]
            out = answer(token["query"], [near[at][0] for at in seen], [near[at][1] for at in seen])
        yield out, sum(x.numel() for pair in [*near.values(), *of_all] for x in pair)


def linformer_causal(mechanism: Any, request: Request) -> Iterator[Step]:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    own = 0
    for token in reading(request):
        if own == mechanism.block:  # no token of it comes any more, so it becomes short
            short = [
                list(torch.einsum("kc,chd->khd", weight, torch.stack(tokens[-own:])))
                for weight, tokens in ((mechanism.key_projection, keys), (mechanism.value_projection, values))
            ]
            keys[-own:], values[-own:], own = short[0], short[1], 0
        keys.append(token["key"])
        values.append(token["value"])
        own += 1
        yield answer(token["query"], keys, values), sum(x.numel() for x in [*keys, *values])


def reformer(mechanism: Any, request: Request) -> Iterator[Step]:
    o, h = mechanism.options, request.value.shape[1]
    buckets: dict[tuple[int, int, int], list[int]] = {}
    sizes: dict[tuple[int, int, int], int] = {}
    held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(h)]
    for t, token in enumerate(reading(request)):
        codes = hash_positions(token["query"][None, :, None], mechanism.rotations, o.buckets)[:, 0, :, 0].tolist()
        outs, numbers = [], 0
        for head in range(h):
            held[head][t] = token["query"][head], token["value"][head]
            found = []
            for r in range(o.rounds):
                place = r, head, codes[r][head]
                rank = sizes.get(place, 0)
                sizes[place] = rank + 1
                # Kept of a bucket are the last of its tokens; those of this chunk and the one before it are seen.
                members = [*buckets.get(place, []), t][-(rank % o.chunk + 1 + (o.chunk if rank >= o.chunk else 0)) :]
                found.append(members)
                full = (rank + 1) % o.chunk == 0
                buckets[place] = members[-o.chunk :] if full else members
            outs.append(_rounds(token["query"][head], held[head], found, t))
            numbers += sum(x.numel() for pair in held[head].values() for x in pair)
            wanted = {at for (_, of, _), members in buckets.items() if of == head for at in members}
            held[head] = {at: pair for at, pair in held[head].items() if at in wanted}
        yield torch.stack(outs), numbers


def _rounds(query: Tensor, held: dict[int, tuple[Tensor, Tensor]], found: list[list[int]], own: int) -> Tensor:
    normalisers, outs = [], []
    for members in found:
        keys = F.normalize(torch.stack([held[at][0] for at in members]), dim=-1)
        scores = keys @ query * query.shape[-1] ** -0.5
        scores = torch.where(torch.tensor([at == own for at in members]), SELF_SCORE, scores)
        scores = scores - torch.tensor([float(sum(at in others for others in found)) for at in members]).to(scores).log()
        normalisers.append(scores.logsumexp(dim=0))
        outs.append(scores.softmax(dim=0) @ torch.stack([held[at][1] for at in members]))
    return torch.stack(normalisers).softmax(dim=0) @ torch.stack(outs)


STEPS = {f.__name__: f for f in (none, uniform, softmax, performer, longformer, linformer_causal, reformer)}

CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("none", 9, {}),
    ("uniform", 9, {}),
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
]


def steps(name: str, length: int, options: dict[str, Any]) -> tuple[Tensor, Tensor, int, int]:
    """What the whole answers, what the steps answer, the most bytes they held in float32, and the card's state bytes."""
    torch.manual_seed(0)
    geometry = Geometry(2, 4, length, length, causal=True)
    mechanism = build_attention(name, geometry, **options).double().eval()
    request = draw(mechanism, torch.float64, torch.device("cpu"), batch=1)
    with torch.no_grad():
        whole = request(mechanism)
        answers, held = zip(*STEPS[name](mechanism, request), strict=True)
    stated = card(name).cost(geometry, mechanism.options).state_bytes
    assert stated is not None
    return whole[0], torch.stack(answers, dim=1), 4 * max(held), stated


@pytest.mark.parametrize(("name", "length", "options"), CASES)
def test_steps_answer_as_the_whole_and_hold_what_the_card_says(name, length, options):
    whole, answers, held, stated = steps(name, length, options)
    torch.testing.assert_close(answers, whole)
    assert held == stated


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (12, {"buckets": 2, "chunk": 4, "rounds": 2}),
        (60, {"buckets": 4, "chunk": 2, "rounds": 1}),
        (60, {"buckets": 8, "chunk": 2, "rounds": 2}),
    ],
)
def test_what_a_hash_may_look_up_again_is_never_more_than_the_card_says(length, options):
    whole, answers, held, stated = steps("reformer", length, options)
    torch.testing.assert_close(answers, whole)
    assert stated / 2 <= held <= stated


def test_every_card_that_states_less_than_a_cache_has_a_form_that_reads_one_token_at_a_time():
    """Keys and values of all tokens are enough for anyone; less than that has to be shown."""
    ours = [card(name) for name in attentions() if card(name).can.causal and card(name).origin.startswith("attn_zoo.")]
    geometry = Geometry(2, 4, 4096, 4096, causal=True)
    stated = {entry.name: entry.cost(geometry, entry.options()).state_bytes for entry in ours}
    cache = 2 * 4 * geometry.keys * geometry.inner_dim
    assert {name for name, state in stated.items() if state is not None and state < cache} <= set(STEPS)

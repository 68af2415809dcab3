"""Stepwise forms of causal mechanisms, which read one token at a time and keep only the state that later tokens may need.

A mechanism for any length does not know which token is the last; a mechanism built for one length does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.attention.content._hashing import lsh_buckets
from attn_zoo.attention.linear._feature_maps import log_positive_features
from attn_zoo.attention.sparse.fixed import sizes
from attn_zoo.attention.sparse.strided import stride_of
from attn_zoo.conformance.requests import Request
from attn_zoo.contract import Attention
from attn_zoo.kernels.cpu.lsh import SELF_SCORE

Step = tuple[Tensor, int]
"""Output of one token, (heads, head_dim), and the number of values in the state."""


def reading(request: Request) -> Iterator[dict[str, Tensor]]:
    """Slices of every tensor token by token, (heads, head_dim); streams that have ended are left out."""
    for t in range(request.value.shape[2]):
        yield {name: tensor[0, :, t] for name, tensor in request.tensors.items() if t < tensor.shape[2]}


def answer(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    scores = torch.einsum("hd,nhd->hn", query, torch.stack(list(keys))) * query.shape[-1] ** -0.5
    return torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), torch.stack(list(values)))


def none(mechanism: Attention, request: Request) -> Iterator[Step]:
    for token in reading(request):
        yield token["value"], 0


def uniform(mechanism: Attention, request: Request) -> Iterator[Step]:
    total = torch.zeros_like(request.value[0, :, 0])
    for t, token in enumerate(reading(request)):
        total = total + token["value"]
        yield total / (t + 1), total.numel()


def convolution(mechanism: Any, request: Request) -> Iterator[Step]:
    near: list[Tensor] = []
    for token in reading(request):
        near = [*near, token["value"]][-mechanism.options.kernel :]
        out = torch.einsum("nhd,hnd->hd", torch.stack(near), mechanism.weight[:, -len(near) :])
        yield out, sum(x.numel() for x in near) if mechanism.options.kernel > 1 else 0  # a single tap needs no other token


def softmax(mechanism: Attention, request: Request) -> Iterator[Step]:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for token in reading(request):
        keys.append(token["key"])
        values.append(token["value"])
        yield answer(token["query"], keys, values), sum(x.numel() for x in [*keys, *values])


def synthesizer(mechanism: Any, request: Request) -> Iterator[Step]:
    values: list[Tensor] = []
    for t, token in enumerate(reading(request)):
        values.append(token["value"])
        weights = _synthesized(mechanism, t, token.get("query"))[:, : t + 1].softmax(dim=-1)
        yield torch.einsum("hn,nhd->hd", weights, torch.stack(values)), sum(x.numel() for x in values)


def _synthesized(mechanism: Any, t: int, query: Tensor | None) -> Tensor:
    """Scores of token t, (heads, keys)."""
    if query is not None:
        parts = zip(mechanism.weights, mechanism.biases, strict=True)
        made = [torch.einsum("hd,hdw->hw", query.relu(), weight) + bias[:, 0] for weight, bias in parts]
        at, a = torch.arange(mechanism.geometry.keys), mechanism.options.factor
        return made[0][:, at % a] * made[1][:, at // a] if a else made[0]
    if hasattr(mechanism, "left"):
        return torch.einsum("hr,hnr->hn", mechanism.left[:, t], mechanism.right)
    scores: Tensor = mechanism.scores[:, t]
    return scores


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


def luna(mechanism: Any, request: Request) -> Iterator[Step]:
    packed, scale = mechanism.packed_query, request.value.shape[-1] ** -0.5
    keys, values = torch.zeros_like(packed), torch.zeros_like(packed)
    for t, token in enumerate(reading(request)):
        shares = F.elu(torch.einsum("hld,hd->hl", packed, token["stream context"]) * scale)[..., None] + 1
        keys, values = keys + shares * token["key"][:, None], values + shares * token["value"][:, None]
        weights = (torch.einsum("hld,hd->hl", keys, token["query"]) * scale / (t + 1)).softmax(dim=-1)
        yield torch.einsum("hl,hld->hd", weights, values) / (t + 1), keys.numel() + values.numel()


def mega(mechanism: Any, request: Request) -> Iterator[Step]:
    enter, leave, spread, gather = (x[0] for x in (mechanism.decay_in, mechanism.decay_out, mechanism.spread, mechanism.gather))
    enter, leave = enter.sigmoid(), leave.sigmoid()
    state = torch.zeros_like(enter)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for t, token in enumerate(reading(request)):
        if t % mechanism.options.chunk == 0:
            keys, values = [], []
        state = enter * spread * token["query"][..., None] + (1 - enter * leave) * state
        shared = F.silu((gather * state).sum(dim=-1) + mechanism.residual[:, 0] * token["query"])
        keys.append(shared * mechanism.gain[1, :, 0])
        values.append(token["value"])
        out = answer(shared * mechanism.gain[0, :, 0] + mechanism.offset[:, 0], keys, values)
        yield out + shared, sum(x.numel() for x in [state, *keys, *values])


def length_compression(mechanism: Any, request: Request) -> Iterator[Step]:
    m, near, entries = mechanism.options.compress_rate, Near(mechanism.options.window), list[tuple[Tensor, ...]]()
    own = torch.zeros(3, *request.value[0, :, 0].shape, dtype=request.value.dtype)
    for t, token in enumerate(reading(request)):
        weight = (torch.einsum("hd,hde->he", token["key"], mechanism.gate) + mechanism.position_bias[:, t % m]).exp()
        own = own + torch.stack([weight * token["key"], weight * token["value"], weight])
        near.read(token)
        if done := t % m == m - 1:
            entries.append((own[0] / own[2], own[1] / own[2]))
            own = torch.zeros_like(own)
        out = answer(token["query"], near.keys + [k for k, _ in entries], near.values + [v for _, v in entries])
        yield out, near.held + sum(x.numel() for entry in entries for x in entry) + (0 if done else own.numel())


def sparse_compression(mechanism: Any, request: Request) -> Iterator[Step]:
    m, kept, width = mechanism.options.compress_rate, mechanism.options.kept, mechanism.options.index_width
    near, entries, (h, d) = Near(mechanism.options.window), list[tuple[Tensor, ...]](), request.value[0, :, 0].shape
    own, following = ([torch.zeros(3, h, d).double(), torch.zeros(2, width).double()] for _ in range(2))  # sums of an entry
    maps, bias, index_bias = mechanism.before, mechanism.position_bias, mechanism.index_bias
    for t, token in enumerate(reading(request)):
        key, value, side = token["key"], token["value"], token["key"].flatten()
        for sums, slot, past in ((own, m + t % m, False), (following, t % m, True)):
            by = [torch.einsum("hd,hde->he", x, w) for x, w in zip((key, value, key), maps, strict=True)]
            k, v, logits = by if past else (key, value, torch.einsum("hd,hde->he", key, mechanism.gate))
            weight = (logits + bias[:, slot]).exp()
            sums[0] = sums[0] + torch.stack([weight * k, weight * v, weight])
            scored = (mechanism.index_gate[int(past)] @ side + index_bias[slot]).exp()
            sums[1] = sums[1] + torch.stack([scored * (mechanism.index_key[int(past)] @ side), scored])
        near.read(token)
        if done := t % m == m - 1:
            entries.append((own[0][0] / own[0][2], own[0][1] / own[0][2], own[1][0] / own[1][1]))
            own, following = following, [torch.zeros_like(x) for x in following]
        chosen = entries
        if len(entries) > kept:
            asked, weights = mechanism.index_query @ token["query"].flatten(), mechanism.index_weight @ token["query"].flatten()
            scores = (asked.unflatten(0, (-1, width)) @ torch.stack([e[2] for e in entries]).T).relu().T @ weights
            chosen = [entries[i] for i in scores.sort(descending=True, stable=True).indices[:kept].tolist()]
        out = answer(token["query"], near.keys + [e[0] for e in chosen], near.values + [e[1] for e in chosen])
        open_sums = sum(x.numel() for x in own) * (1 if done else 2)
        yield out, near.held + sum(x.numel() for entry in entries for x in entry) + open_sums


class Near:
    """Keys and values of the last tokens."""

    def __init__(self, window: int) -> None:
        self.window, self.keys, self.values = window, list[Tensor](), list[Tensor]()

    def read(self, token: dict[str, Tensor]) -> None:
        self.keys, self.values = (
            [*kept, token[name]][-self.window :] for kept, name in ((self.keys, "key"), (self.values, "value"))
        )

    @property
    def held(self) -> int:
        return sum(x.numel() for x in [*self.keys, *self.values])


def linformer_causal(mechanism: Any, request: Request) -> Iterator[Step]:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    own = 0
    for token in reading(request):
        if own == mechanism.block:  # the block is complete, so it is compressed
            short = [
                list(torch.einsum("kc,chd->khd", weight, torch.stack(tokens[-own:])))
                for weight, tokens in ((mechanism.key_projection, keys), (mechanism.value_projection, values))
            ]
            keys[-own:], values[-own:], own = short[0], short[1], 0
        keys.append(token["key"])
        values.append(token["value"])
        own += 1
        yield answer(token["query"], keys, values), sum(x.numel() for x in [*keys, *values])


def longformer(mechanism: Any, request: Request) -> Iterator[Step]:
    o = mechanism.options
    near: dict[int, tuple[Tensor, Tensor]] = {}
    of_all: list[tuple[Tensor, Tensor]] = []
    for t, token in enumerate(reading(request)):
        near[t] = token["key"], token["value"]
        near = {at: pair for at, pair in near.items() if at < o.global_tokens or at >= t - (o.window - 1) * o.dilation}
        if t < o.global_tokens:
            of_all.append((token["stream global_key"], token["stream global_value"]))
            out = answer(token["stream global_query"], *zip(*of_all, strict=True))
        else:
            of_all.clear()
            seen = [at for at in near if at < o.global_tokens or (t - at) % o.dilation == 0]
            out = answer(token["query"], [near[at][0] for at in seen], [near[at][1] for at in seen])
        yield out, sum(x.numel() for pair in [*near.values(), *of_all] for x in pair)


def reformer(mechanism: Any, request: Request) -> Iterator[Step]:
    o, h = mechanism.options, request.value.shape[1]
    buckets: dict[tuple[int, int, int], list[int]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(h)]
    for t, token in enumerate(reading(request)):
        codes = lsh_buckets(token["query"][None, :, None], mechanism.rotations, o.buckets)[:, 0, :, 0].tolist()
        outs, numbers = [], 0
        for head in range(h):
            held[head][t] = token["query"][head], token["value"][head]
            found = []
            for r in range(o.rounds):
                place = r, head, codes[r][head]
                rank = counts.get(place, 0)
                counts[place] = rank + 1
                # Only the last tokens of a bucket are kept; a query sees those of its chunk and of the one before it.
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


Mix = Callable[[dict[str, Tensor], int, int, dict[int, dict[str, Tensor]]], Tensor]
"""Function from a token, its head, its position, and the tokens that it sees, by position, to its output."""


def dropping(request: Request, names: Sequence[str], seen: Bool[Tensor, "heads queries keys"], mix: Mix) -> Iterator[Step]:
    """Steps in which each head keeps the tensors ``names`` of a token as long as a later query sees that token."""
    last = (seen * torch.arange(seen.shape[1])[:, None]).amax(dim=1).tolist()
    held: list[dict[int, dict[str, Tensor]]] = [{} for _ in last]
    for t, token in enumerate(reading(request)):
        outs = []
        for head in range(len(held)):
            held[head][t] = {name: token[name][head] for name in names}
            held[head] = {at: parts for at, parts in held[head].items() if last[head][at] >= t}
            outs.append(mix(token, head, t, {at: parts for at, parts in held[head].items() if seen[head, t, at]}))
        yield torch.stack(outs), sum(x.numel() for mine in held for parts in mine.values() for x in parts.values())


def frozen_random(mechanism: Any, request: Request) -> Iterator[Step]:
    _, h, n = mechanism.weights.shape
    to = mechanism.sources.unflatten(1, (h, n)) - n * torch.arange(h)[:, None]
    matrix = request.value.new_zeros(h, n, n).scatter_add(2, to.movedim(0, 2), mechanism.weights.movedim(0, 2))

    def mix(token: dict[str, Tensor], head: int, t: int, linked: dict[int, dict[str, Tensor]]) -> Tensor:
        weights = matrix[head, t, list(linked)]
        return weights @ torch.stack([parts["value"] for parts in linked.values()]) / weights.sum()

    return dropping(request, ("value",), matrix > 0, mix)


def patterned(mechanism: Any, request: Request) -> Iterator[Step]:
    """Softmax over a fixed pattern, computed for twice as many queries as there are tokens, since more may follow."""
    n = request.value.shape[2]
    i, j = torch.arange(2 * n)[:, None], torch.arange(n)
    seen = (PATTERNS[mechanism.card.name](mechanism, i, j) & (j <= i)).expand(request.value.shape[1], -1, -1)

    def mix(token: dict[str, Tensor], head: int, t: int, pairs: dict[int, dict[str, Tensor]]) -> Tensor:
        keys, values = ([parts[name][None] for parts in pairs.values()] for name in ("key", "value"))
        return answer(token["query"][head, None], keys, values)[0]

    return dropping(request, ("key", "value"), seen, mix)


def _local(mechanism: Any, i: Tensor, j: Tensor) -> Tensor:
    return j // mechanism.options.block >= i // mechanism.options.block - mechanism.options.neighbours


def _fixed(mechanism: Any, i: Tensor, j: Tensor) -> Tensor:
    block, summary = sizes(mechanism.geometry, mechanism.options)
    return (i // block == j // block) | (j % block >= block - summary)


def _strided(mechanism: Any, i: Tensor, j: Tensor) -> Tensor:
    stride = stride_of(mechanism.geometry, mechanism.options)
    return (i - j <= stride) | ((i - j) % stride == 0)


def _block_sparse(mechanism: Any, i: Tensor, j: Tensor) -> Tensor:
    """Random pattern of the mechanism, which does not depend on the length."""
    heads = torch.arange(mechanism.geometry.heads)[:, None, None]
    found: Tensor = mechanism.mask_mod(len(i), i.device)(heads, i, j)
    return found


def carried(mechanism: Attention, request: Request) -> Iterator[Step]:
    """Steps by the mechanism's own ``step``, for a card that claims ``stepwise``."""
    state = mechanism.initial_state(1, dtype=request.value.dtype)
    for t in range(request.value.shape[2]):
        token = request.between(t, t + 1)
        out, state = mechanism.step(token.query, token.key, token.value, state, **token.streams)
        yield out[0, :, 0], state.nbytes // request.value.element_size()


PATTERNS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "local": _local,
    "fixed": _fixed,
    "strided": _strided,
    "block_sparse": _block_sparse,
}

FORMS: dict[str, Callable[[Any, Request], Iterator[Step]]] = {
    form.__name__: form
    for form in (none, uniform, convolution, softmax, performer, luna, mega, linformer_causal, longformer, reformer, frozen_random)
}
FORMS |= {form.__name__: form for form in (length_compression, sparse_compression)}
FORMS |= dict.fromkeys(PATTERNS, patterned)
FORMS |= dict.fromkeys(("synthesizer_dense", "synthesizer_random", "synthesizer_factorised"), synthesizer)

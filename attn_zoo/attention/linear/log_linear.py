"""Log-linear attention: yₜ = Σₗ λₜₗ S⁽ˡ⁾ₜᵀ Cₜ + D xₜ. The past is split into about log n parts, and each part l has its own memory
S⁽ˡ⁾ and weight λₜₗ. C and x are the query and the value after SiLU. D is a learned factor per head.

Parts near t are short, and parts far from t are long. Position j is in part l(t, j), the number of binary digits of t xor j. So
part 0 is t itself, and part l has at most 2ˡ⁻¹ positions. Positions are counted from 0, without padded tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from attn_zoo.attention.linear._recurrence import Answer
from attn_zoo.attention.linear.ssd import Options, StateSpaceDuality
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState, Stream
from attn_zoo.contract.carried import check_state
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, PerHead, Queries, real_positions

CHUNK = 32
"""Number of positions in a chunk, a power of two. Weights are computed within a chunk; earlier chunks are read from memories."""
ONE = 0.5413248546129181
"""Logit whose softplus is 1."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the weights within chunks, of the sums over chunks, and of reading the memory of each part of the past.
    The parameters are three numbers per head: A and b, which set the decay, and D, which multiplies the input. The state holds the
    memories of all parts.
    """
    n, d, chunk = geometry.keys, geometry.head_dim, min(CHUNK, geometry.keys)
    count = -(-n // chunk)
    rows = sum(at.bit_count() for at in range(count))  # a chunk reads one memory for each part of the past, a binary digit of 1
    flops = (2 if geometry.causal else 4) * geometry.inner_dim * chunk * (2 * count * chunk + d * (count * (count > 1) + rows))
    state = FLOAT * geometry.inner_dim * d * n.bit_length() if geometry.causal else None
    return Cost(flops, 3 * geometry.heads, backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "log_linear",
    title="Log-linear attention (Mamba-2)",
    paper="Guo et al. 2025, arXiv:2506.04761",
    equation="state-space duality with one memory per part of a Fenwick tree",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n log n d^2",
    memory="n log n d",
    cost=cost,
    streams=lambda *_: (
        Stream("step", of="keys", starts_as="key", per_head=True),
        Stream("level", of="queries", starts_as="query"),
    ),
    variants={"raw": {"normalise": False}},
)
class LogLinear(StateSpaceDuality):
    """State-space duality with several memories. Each memory holds one part of the past and has its own weight.

    Paper: Guo et al. 2025, the log-linear form of Mamba-2.
    Symbols: λ → computed from the stream ``level``, a further projection of the tokens; S⁽ˡ⁾ → head_dim rows of MemoryState.summed
        for each l from 1.
    Differs: all differences between ``ssd`` and its paper apply here, too. λ of part l is softplus(s + 0.54), where s is channel l
        of the stream ``level``, or its last channel if l ≥ head_dim. The projection of this stream starts as a copy of that of
        queries. In the published code, λ is softplus(w s) with a learned w for each head and part, which starts at 1. If every
        λ is 1, the outputs equal those of ``ssd``. Padded tokens are not counted as positions, and leave the memories
        unchanged.
    """

    def definition(  # type: ignore[override]  # one more stream
        self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, step: PerHead, level: Queries
    ) -> Queries:
        """Return the outputs from the n × n weights, each multiplied by the λ of the part of the past to which its key belongs."""
        tensors = (*self.updates(query, key, value, key_valid, step)[:4], F.softplus(level + ONE))
        valid = real_positions(query, key_valid)

        def one_way(c: Tensor, written: Tensor, x: Tensor, logs: Tensor, lam: Tensor) -> Tensor:
            sums, parts = logs.cumsum(dim=2), _parts(torch.arange(c.shape[2], device=c.device), lam.shape[3])
            weights = c @ written.mT * (sums - sums.mT).tril().exp() * lam.gather(3, parts.expand(*lam.shape[:2], -1, -1))
            return weights.tril() @ x + self.skip[:, None, None] * x

        out = _real_first(one_way, valid, *tensors)
        if not self.geometry.causal:
            out = out + _real_first(one_way, valid.flip(1), *(x.flip(2) for x in tensors)).flip(2)
        return self.finish(out)

    def read(self, state: MemoryState, *inputs: Any, **streams: Keys) -> Answer:
        """Return the outputs of a whole sequence. ``state`` is ignored and returned unchanged."""
        query, key, value, key_valid = inputs
        tensors = (*self.updates(query, key, value, key_valid, streams["step"])[:4], F.softplus(streams["level"] + ONE))
        out = self._by_chunks(*tensors) if key_valid is None else _real_first(self._by_chunks, key_valid, *tensors)
        return out + self._skipped(*inputs), state

    def _by_chunks(self, *tensors: Keys) -> Queries:
        """Return the outputs of a sequence whose real tokens come first. Weights are computed within chunks. The parts beyond the
        chunk are then added one by one, each twice as long as the part before.
        """
        n = tensors[0].shape[2]
        chunk = min(CHUNK, n)
        c, b, x, logs, lam = (into_chunks(y, chunk) for y in tensors)
        since = logs.cumsum(dim=3)  # log decay since the start of the own part
        parts = _parts(torch.arange(chunk, device=c.device), lam.shape[4])
        weights = c @ b.mT * (since - since.mT).clamp(max=0).exp() * lam.gather(4, parts.expand(*lam.shape[:3], -1, -1))
        out, count = weights.tril() @ x, c.shape[2]
        if count > 1:
            totals = since[:, :, :, -1:]
            sums = (b * (totals - since).exp()).mT @ x
        size, part = 1, chunk.bit_length()
        while size < count:
            reading = torch.tensor([place for place in range(count) if place // size % 2], device=c.device)
            before = reading // size - 1
            share = lam[..., min(part, lam.shape[4] - 1), None].index_select(2, reading)
            asked = c.index_select(2, reading) * since.index_select(2, reading).exp() * share
            out = out.index_add(2, reading, asked @ sums.index_select(2, before))
            since = since.index_add(2, reading, totals.index_select(2, before).expand(-1, -1, -1, chunk, -1))
            first, second = (slice(start, count // size // 2 * 2, 2) for start in (0, 1))
            sums = totals[:, :, second].exp() * sums[:, :, first] + sums[:, :, second]
            totals = totals[:, :, first] + totals[:, :, second]
            size, part = 2 * size, part + 1
        return out.flatten(2, 3)[:, :, :n]

    def state_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the state before the first token. The state has no rows yet."""
        return 0, self.geometry.head_dim

    def advance(self, query: Queries, key: Keys, value: Keys, state: Any, **streams: Keys) -> tuple[Queries, MemoryState]:
        """Return the outputs of the next tokens and the new state, computed token by token. Each token is merged with the parts of
        the past that are shorter than the shortest empty part: their memories are added to the empty part.

        Raises:
            ValueError: the mechanism, batch size, dtype or device of the state is wrong.
        """
        d, dtype = self.geometry.head_dim, torch.promote_types(value.dtype, torch.float32)
        rows = state.position.bit_length() * d
        check_state(self.card.name, state, "summed", (len(value), self.geometry.heads, rows, d), dtype, value)
        with without_autocast(value.device):
            query, key, wide, level, step = (x.to(dtype) for x in (query, key, value, streams["level"], streams["step"]))
            updates, lam = self.updates(query, key, wide, None, step), F.softplus(level + ONE)
            parts, out = list(state.summed.split(d, dim=2)) if rows else [], []
            for t, (c, b, x, log, weights) in enumerate(zip(*(y.split(1, dim=2) for y in (*updates[:4], lam)), strict=True)):
                parts, own = [log.exp() * part for part in parts], b.mT @ x
                read = [c @ part * weights[..., min(at, d - 1), None] for at, part in enumerate((own, *parts))]
                out.append(torch.stack(read).sum(dim=0))
                ended = 0
                while (state.position + t) >> ended & 1:  # part ended + 1 is full
                    own, parts[ended], ended = own + parts[ended], torch.zeros_like(own), ended + 1
                parts[ended : ended + 1] = [own]
            mixed = torch.cat(out, dim=2) + self._skipped(query, key, wide, None)
            return self.finish(mixed).to(value.dtype), state.after(torch.cat(parts, dim=2), query.shape[2])


def _parts(place: Int[Tensor, "*batch n"], most: int) -> Int[Tensor, "*batch n n"]:
    """Return l(t, j) for all pairs of positions, limited to ``most`` - 1."""
    differ = place[..., :, None] ^ place[..., None, :]
    bits = torch.arange(place.shape[-1].bit_length(), device=place.device)
    return (differ[..., None] >> bits > 0).sum(dim=-1).clamp(max=most - 1)


def _real_first(read: Callable[..., Queries], valid: Bool[Tensor, "batch n"], *tensors: Keys) -> Queries:
    """Return the outputs of ``read`` for ``tensors`` with the real tokens moved to the front, so that padded tokens are not counted
    as positions. Outputs stand in the order of ``tensors``; those before the first real token are zero.
    """
    order = (~valid).long().argsort(dim=1, stable=True)[:, None, :, None]
    out = read(*(x.take_along_dim(order, dim=2) for x in tensors))
    return out.take_along_dim(order.argsort(dim=2), dim=2) * (valid.cumsum(dim=1) > 0)[:, None, :, None]

"""Reformer (LSH attention): yᵢ = Σⱼ exp(qᵢ·kⱼ / √d - z) vⱼ over the j that some hash puts near i, with kⱼ = qⱼ / |qⱼ|."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.attention.content._hashing import (
    MOST_HASHES,
    RADIX,
    ROTATIONS,
    Layout,
    default_buckets,
    hash_positions,
    lsh_buckets,
    rotation_columns,
    take,
)
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, by_length, check_dropout, softmax_over_valid
from attn_zoo.contract.shapes import Keys, KeyValid, Queries
from attn_zoo.kernels.cpu.lsh import Rule, attend_buckets, buckets_flops
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention

SELF_SCORE = -1e5
"""Score of a position with itself: no weight beside any other key, all of it where there is none."""


class Duplicates(Enum):
    """Weight of a key that several rounds find."""

    corrected = "corrected"
    """It counts once, as in the paper."""
    counted = "counted"
    """It counts in every round that finds it; cheaper, and the usual public choice."""


@dataclass
class Options:
    """Options of Reformer."""

    chunk: int = by_length("min(64, n/8)", lambda g: max(1, min(64, g.keys // 8)))
    """Positions compared with each other and with the chunk before, m in the paper."""
    buckets: int = 0
    """Buckets of each round, a power of two; 0 takes about length / (2 chunk), for the length it is built for."""
    rounds: int = 2
    """Independent hashes, n_rounds in the paper."""
    duplicates: Duplicates = Duplicates.corrected
    redraw: int = 0
    """Training calls between new draws of the hashes; 0 keeps the first draw. Evaluation never draws."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        if isinstance(self.duplicates, str):
            self.duplicates = Duplicates(self.duplicates)
        for name in ("chunk", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"reformer.{name} counts something, so it is at least 1; got {getattr(self, name)}")
        most = RADIX**MOST_HASHES
        if self.buckets and (self.buckets < 1 or self.buckets & (self.buckets - 1) or self.buckets > most):
            raise ValueError(f"reformer.buckets is a power of two up to {most}, or 0 for a number by length; got {self.buckets}")
        if self.redraw < 0:
            raise ValueError(f"reformer.redraw counts training calls, 0 for never; got {self.redraw}")
        check_dropout("reformer", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """In each round: the hash, then each chunk against itself and the one before. Sorting and gathering are no matrix products.

    State: queries and values that a round may look up again, in each bucket the chunk being filled and the one before it.
    Rounds may look up different ones, at most all.
    """
    n, c, d, rounds = geometry.keys, options.chunk, geometry.head_dim, options.rounds
    buckets = options.buckets or default_buckets(n, c)
    chunks = Layout.chunks(n, buckets, c)
    compare, backward = buckets_flops(geometry.heads, rounds, chunks, c, d)
    tokens = min(n, rounds * (buckets * (2 * c - 1) + 1))
    return Cost(
        flops=2 * geometry.heads * rounds * n * d * rotation_columns(buckets) + compare,
        parameters=0,
        backward_flops=backward,  # no gradient flows through a hash
        state_bytes=2 * FLOAT * tokens * geometry.inner_dim if geometry.causal else None,
    )


@register_attention(
    "reformer",
    title="Reformer LSH",
    paper="Kitaev et al. 2020, arXiv:2001.04451",
    equation="Eq. 2 to 6, Section 2",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, random_at_build=True, shares_query_key=True),
    time="n log n d + n c d",
    memory="n c + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    reads=("query", "value"),
    variants={
        "one_round": {"rounds": 1, "chunk": 4},
        "counted": {"duplicates": "counted", "chunk": 4, "rounds": 3},
        "many_buckets": {"buckets": 32, "chunk": 2},
    },
)
class Reformer(Attention):
    """Attention among positions that locality-sensitive hashes put into the same bucket, with shared queries and keys.

    Paper: Kitaev et al. 2020: Eq. 2 and 3 (attention over a set), Eq. 5 and 6 (bucket and chunk),
        Section 2 (shared-QK, chunks, rounds), Appendix A (rounds combined by their normalisers z and the
        correction log N for keys found more than once).
    Symbols: m → chunk, n_rounds → rounds, n_buckets → buckets, R → rotations.
    Differs: the chunk looked back at belongs to the same bucket (Eq. 6 alone also reaches into the
        bucket sorted before, which lets later or padded positions decide who sees whom), and without
        causality a bucket's first chunk looks back at its last, so that no position goes unseen; each
        bucket starts a new chunk and padding takes no place; many buckets are products of
        cross-polytope hashes of at most 16, where the paper's single hash costs N × buckets; by default
        buckets hold two chunks on average, where the paper's hold half a chunk; a key found N times
        counts in the first of these rounds alone, which is the sum of N times 1/N, and dropout strikes
        it once; rotations are kept, so that evaluation is deterministic, and drawn anew in training
        only if asked. Scores are divided by √d as in Eq. 1, which transformers' code leaves out.
    """

    rotations: Float[Tensor, "heads rounds head_dim rotations"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("rotations", self._draw())
        self._training_calls = 0

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A chunk as long as the input, or no hash at all."""
        n = geometry.keys
        if options.chunk >= n:
            return (f"chunk={options.chunk} is no shorter than the {n} tokens: every token sees all",)
        if (options.buckets or default_buckets(n, options.chunk)) == 1:
            return (f"chunk={options.chunk} leaves one bucket for {n} tokens: the order decides who sees whom, not the hash",)
        return ()

    @torch.no_grad()
    def redraw_hashes(self) -> None:
        """Draw new rotations from torch's global generator."""
        self.rotations.copy_(self._draw())

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Eq. 2 and 3 over all n × n pairs; a key that N rounds show has the weight of N keys, or of one if corrected."""
        rounds = self.seen(self.buckets(query), key_valid)
        itself = torch.eye(query.shape[2], dtype=torch.bool, device=query.device)
        times = rounds.sum(dim=0).masked_fill(itself, 0)
        times = times.clamp(max=1) if self.options.duplicates is Duplicates.corrected else times
        scores = query @ F.normalize(query, dim=-1).mT / query.shape[-1] ** 0.5
        allowed = (times > 0) | itself & ~times.any(dim=-1, keepdim=True)
        return softmax_over_valid(scores + times.clamp(min=1).to(scores.dtype).log(), allowed) @ value

    def seen(
        self, bucket: Int[Tensor, "rounds batch heads n"], key_valid: Bool[Tensor, "batch n"] | None
    ) -> Bool[Tensor, "rounds batch heads n n"]:
        """Eq. 5 and 6 pair by pair: same bucket, and same chunk or the one before, counted by earlier positions of the bucket."""
        chunk, causal = self.options.chunk, self.geometry.causal
        same = bucket[..., :, None] == bucket[..., None, :]
        if key_valid is not None:
            same = same & (key_valid[:, None, :, None] & key_valid[:, None, None, :])
        number = same.tril(-1).sum(dim=-1) // chunk
        last = (same.sum(dim=-1) - 1) // chunk
        before = number - 1 if causal else torch.where(number > 0, number - 1, last)
        near = (number[..., None, :] == number[..., :, None]) | (number[..., None, :] == before[..., :, None])
        return (same & near).tril() if causal else same & near

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Sort by bucket, compare each chunk with itself and the one before it, and weigh rounds by their normalisers z."""
        o, n, precise = self.options, query.shape[2], torch.promote_types(query.dtype, torch.float32)
        self._redraw_in_training()
        layout = self._layout(self.buckets(query), key_valid)
        query_at, key_at = layout.pairs()  # rounds batch heads chunks c, and 2 c
        unit = F.normalize(query.to(precise), dim=-1).to(query.dtype)
        queries = take(query, query_at.flatten(3)).unflatten(3, query_at.shape[3:])
        keys, values = (take(x, key_at.flatten(3)).unflatten(3, key_at.shape[3:]) for x in (unit, value))

        i, j = query_at[..., :, None], key_at[..., None, :]
        hidden = (j > i) | (j == n) if self.geometry.causal else j == n
        if o.duplicates is Duplicates.corrected:
            hidden = hidden | self._found_before(layout, query_at, key_at)
        scores = (queries @ keys.mT * query.shape[-1] ** -0.5).to(precise)
        scores = scores.masked_fill(i == j, SELF_SCORE).masked_fill(hidden, torch.finfo(precise).min)

        weights = F.dropout(scores.softmax(dim=-1), o.dropout, self.training).to(value.dtype)
        slot = layout.slot.flatten(0, 1)  # back to the order of positions, rounds beside the batch
        answers = take((weights @ values).flatten(3, 4).flatten(0, 1), slot).unflatten(0, (o.rounds, -1))
        z = take(scores.logsumexp(dim=-1).flatten(3).flatten(0, 1), slot).unflatten(0, (o.rounds, -1))
        return (z.softmax(dim=0)[..., None] * answers).sum(dim=0).to(value.dtype)

    @torch.no_grad()
    def _found_before(
        self,
        layout: Layout,
        query_at: Int[Tensor, "rounds batch heads chunks c"],
        key_at: Int[Tensor, "rounds batch heads chunks 2*c"],
    ) -> Bool[Tensor, "rounds batch heads chunks c 2*c"]:
        """Keys that an earlier round has shown to a query."""
        rounds = torch.arange(self.options.rounds, device=query_at.device).view(-1, 1, 1, 1, 1, 1)
        chunk = layout.slot.long() // self.options.chunk
        before = layout.before.gather(3, chunk.clamp(max=layout.before.shape[3] - 1))
        found = torch.zeros_like(query_at[..., :, None] == key_at[..., None, :])
        for earlier in range(self.options.rounds - 1):
            mine = take(torch.stack([chunk[earlier], before[earlier]], dim=-1), query_at.flatten(3)).unflatten(
                3, query_at.shape[3:]
            )
            theirs = take(chunk[earlier], key_at.flatten(3)).view_as(key_at)[..., None, :]
            found = found | (rounds > earlier) & ((theirs == mine[..., :1]) | (theirs == mine[..., 1:]))
        return found

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """``attend`` in tiles for a CPU's caches."""
        o = self.options
        self._redraw_in_training()
        layout = self._layout(self.buckets(query, tiled=True), key_valid)
        dropout = o.dropout if self.training else 0.0
        rule = Rule(self.geometry.causal, once=o.duplicates is Duplicates.corrected, dropout=dropout)
        return attend_buckets(query, value, layout.position, layout.slot, layout.before, rule).to(value.dtype)

    @torch.no_grad()
    def buckets(
        self, query: Float[Tensor, "batch heads n head_dim"], *, tiled: bool = False
    ) -> Int[Tensor, "rounds batch heads n"]:
        """Bucket of each position in each round; no gradient flows through a hash."""
        with without_autocast(query.device):  # a bucket must not depend on the precision of the rest
            lsh = hash_positions if tiled else lsh_buckets
            return lsh(query, self.rotations, self._bucket_count())

    @torch.no_grad()
    def _layout(self, buckets: Int[Tensor, "rounds batch heads n"], key_valid: Bool[Tensor, "batch n"] | None) -> Layout:
        """Chunks of the buckets; without causality a bucket's first chunk looks back at its last."""
        return Layout.make(buckets, key_valid, self._bucket_count(), self.options.chunk, wraps=not self.geometry.causal)

    def _bucket_count(self) -> int:
        return self.options.buckets or default_buckets(self.geometry.keys, self.options.chunk)

    def _redraw_in_training(self) -> None:
        if self.training and self.options.redraw:
            if self._training_calls % self.options.redraw == 0:
                self.redraw_hashes()
            self._training_calls += 1

    def _draw(self) -> Float[Tensor, "heads rounds head_dim rotations"]:
        return torch.randn(self.geometry.heads, self.options.rounds, self.geometry.head_dim, ROTATIONS)

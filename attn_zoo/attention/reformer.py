"""Reformer (LSH attention): yᵢ = Σⱼ exp(qᵢ·kⱼ / √d - z) vⱼ over the j that some hash puts near i, with kⱼ = qⱼ / |qⱼ|."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.attention.blocks import CHEAP_BYTES
from attn_zoo.attention.kept import FLOAT, INDEX, MASK, split_bytes
from attn_zoo.attention.lsh import (
    MOST_HASHES,
    RADIX,
    ROTATIONS,
    Layout,
    default_buckets,
    hash_positions,
    look_up,
    rotation_columns,
    take,
)
from attn_zoo.attention.masks import check_dropout, without_autocast
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.registry import register_attention

SELF_SCORE = -1e5
"""Score of a position with itself: no weight beside any other key, all of it where there is none."""


class Duplicates(Enum):
    """What to do about a key that several rounds find."""

    corrected = "corrected"
    """It counts once, as in the paper."""
    counted = "counted"
    """It counts in every round that finds it; cheaper, and the usual public choice."""


@dataclass
class Options:
    """Options of Reformer."""

    chunk: int = 8
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
    compare = 8 * Layout.chunks(n, buckets, c) * c * c * d
    tokens = min(n, rounds * (buckets * (2 * c - 1) + 1))
    return Cost(
        flops=geometry.heads * rounds * (2 * n * d * rotation_columns(buckets) + compare),
        parameters=0,
        backward_flops=geometry.heads * rounds * 2 * compare,  # no gradient flows through a hash
        activation_bytes={"eager": _kept_bytes(geometry, options, buckets)},
        state_bytes=2 * FLOAT * tokens * geometry.inner_dim if geometry.causal else None,
    )


def _kept_bytes(geometry: Geometry, options: Options, buckets: int) -> int:
    """Of each round the sorted queries with their norms, what meets in the products, scores and weights, and the indices."""
    n, h, c, d = geometry.keys, geometry.heads, options.chunk, geometry.head_dim
    chunks = Layout.chunks(n, buckets, c)
    slots, pairs = h * chunks * c, h * chunks * c * 2 * c
    group = chunks_together(h * c * c * FLOAT)
    products = split_bytes(h, chunks, group, c * d) + 2 * split_bytes(h, chunks, group, 2 * c * d)
    numbers = slots * d + 2 * slots + slots + 3 * pairs  # sorted queries, norms, normalisers; scores, weights before and after
    masks = pairs + 2 * (pairs if geometry.causal else h * chunks * 2 * c)
    indices = 2 * (slots + h * chunks) + 2 * h * n
    combined = FLOAT * h * n * (1 + d)  # normalisers and outputs of all rounds side by side
    return options.rounds * (products + FLOAT * numbers + MASK * masks + INDEX * indices + combined)


def chunks_together(pair_bytes: int) -> int:
    """Chunks that are compared at once, where the scores of one with itself take ``pair_bytes``."""
    return max(1, CHEAP_BYTES // (2 * pair_bytes))


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
        buckets hold two chunks on average, where the paper's hold half a chunk; rotations are kept,
        so that evaluation is deterministic, and drawn anew in training only if asked.
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

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """One round after another; rounds weigh in by their normalisers."""
        if self.training and self.options.redraw:
            if self._training_calls % self.options.redraw == 0:
                self.redraw_hashes()
            self._training_calls += 1
        layouts = self.layouts(query, key_valid)
        normalisers, outputs = zip(*(self._one_round(query, value, layouts, at) for at in range(len(layouts))), strict=True)
        weights = torch.stack(normalisers).softmax(dim=0).to(value.dtype)
        return (weights[..., None] * torch.stack(outputs)).sum(dim=0)

    @torch.no_grad()
    def layouts(self, query: Float[Tensor, "batch heads n head_dim"], key_valid: Bool[Tensor, "batch n"] | None) -> list[Layout]:
        """Where each round puts each position; no gradient flows through a hash."""
        buckets = self.options.buckets or default_buckets(self.geometry.keys, self.options.chunk)
        with without_autocast(query.device):  # a bucket must not depend on the precision of the rest
            codes = hash_positions(query, self.rotations, buckets)
        wraps = not self.geometry.causal
        return [Layout.make(code, key_valid, buckets, self.options.chunk, wraps=wraps) for code in codes]

    def _one_round(
        self, query: Tensor, value: Tensor, layouts: list[Layout], at: int
    ) -> tuple[Float[Tensor, "batch heads n"], Float[Tensor, "batch heads n head_dim"]]:
        """Normaliser log Σ exp and output of each position in round ``at``; the lowest number and zeros for padding."""
        layout, chunk, n = layouts[at], self.options.chunk, query.shape[2]
        here = layout.position

        cut = (-1, chunk)
        positions = here.unflatten(2, cut)
        before = look_up(layout.previous, positions[..., 0], nowhere=-1)
        before = before.masked_fill(before < 0, positions.shape[2])  # behind the last chunk, where there is nothing

        def with_previous(x: Tensor) -> Tensor:
            """Each chunk after the one before it in its bucket."""
            return torch.cat([take(x, before), x], dim=3)

        sorted_query = take(query, here).unflatten(2, cut)
        keys, values = with_previous(F.normalize(sorted_query, dim=-1)), with_previous(take(value, here).unflatten(2, cut))
        key_positions = with_previous(positions - n) + n  # what is taken from nowhere is zero, and so becomes n: empty
        parts = [sorted_query * query.shape[-1] ** -0.5, keys, values, positions, key_positions]
        if self.options.duplicates is Duplicates.corrected:
            for other in layouts[:at] + layouts[at + 1 :]:
                parts += [look_up(code, positions, nowhere=-2) for code in (other.chunk_of, other.previous)]
                parts.append(look_up(other.chunk_of, key_positions, nowhere=-3))
        group = chunks_together(chunk * chunk * query.shape[0] * query.shape[1] * FLOAT)  # scores are float32 at least
        pieces = zip(*(part.split(group, dim=2) for part in parts), strict=True)
        done = zip(*(self._compare(n, *piece) for piece in pieces), strict=True)
        normaliser, output = (torch.cat(piece, dim=2).flatten(2, 3) for piece in done)
        return take(normaliser, layout.slot), take(output, layout.slot)

    def _compare(
        self,
        n: int,
        query: Float[Tensor, "batch heads chunks m head_dim"],
        key: Float[Tensor, "batch heads chunks 2*m head_dim"],
        value: Float[Tensor, "batch heads chunks 2*m head_dim"],
        position: Int[Tensor, "batch heads chunks m"],
        key_position: Int[Tensor, "batch heads chunks 2*m"],
        *codes: Int[Tensor, "batch heads chunks _"],
    ) -> tuple[Float[Tensor, "batch heads chunks m"], Float[Tensor, "batch heads chunks m head_dim"]]:
        """Normaliser and output of the queries of some chunks. ``codes`` are chunk, previous and keys' chunk by other round."""
        theirs, own = key_position[..., None, :], position[..., :, None]
        allowed = theirs < n
        if self.geometry.causal:
            allowed = allowed & (theirs <= own)
        scores = query @ key.mT
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(theirs == own, SELF_SCORE)
        if codes:
            times = torch.ones_like(scores)
            for chunk_of, previous, key_chunk in zip(codes[::3], codes[1::3], codes[2::3], strict=True):
                found = key_chunk[..., None, :]
                times += (found == chunk_of[..., :, None]) | (found == previous[..., :, None])
            scores = scores - times.log()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        normaliser = scores.logsumexp(dim=-1)
        weights = (scores - normaliser[..., None]).exp().masked_fill(~allowed, 0)
        weights = F.dropout(weights, self.options.dropout, self.training)
        return normaliser, weights.to(value.dtype) @ value

    def _draw(self) -> Float[Tensor, "heads rounds head_dim rotations"]:
        return torch.randn(self.geometry.heads, self.options.rounds, self.geometry.head_dim, ROTATIONS)

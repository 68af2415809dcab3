"""Reformer (LSH attention): yᵢ = Σⱼ exp(qᵢ·kⱼ / √d - z) vⱼ with kⱼ = qⱼ / |qⱼ| and z = log Σⱼ exp(qᵢ·kⱼ / √d).

Both sums run over the positions j that at least one hash puts into the chunk of i or into the chunk before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention.content._hashing import BUCKETS, ROTATIONS, default_buckets, lsh_buckets, rotation_columns, take
from attn_zoo.contract import FLOAT, Capabilities, Cost, DropoutOptions, Geometry, RedrawnAttention, softmax_over_valid
from attn_zoo.contract.options import REDRAW, bounded, share_of_length
from attn_zoo.kernels.buckets import Layout, most_chunks
from attn_zoo.kernels.cpu.lsh import SELF_SCORE, Rule, attend_buckets, buckets_flops
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


class Duplicates(Enum):
    """Weight of a key that several rounds of hashing find for the same query."""

    corrected = "corrected"
    """The key counts once, as in the paper."""
    counted = "counted"
    """The key counts once per round that finds it. This is cheaper, and common in public implementations."""


@dataclass
class Options(DropoutOptions):
    """Options of Reformer."""

    chunk: int = share_of_length(8, most=64)
    """Number of positions in a chunk, m in the paper. Positions attend to their own chunk and to the chunk before it."""
    buckets: int = bounded(0, BUCKETS)
    """Number of hash buckets in each round, a power of two. 0 means about n / (2 chunk), where n is the length for which the
    mechanism is built.
    """
    rounds: int = bounded(2)
    """Number of independent hashes, n_rounds in the paper."""
    duplicates: Duplicates = Duplicates.corrected
    redraw: int = bounded(0, REDRAW)
    """Number of training calls between two draws of the hashes. 0 keeps the first draw. Evaluation never draws."""

    def __post_init__(self) -> None:
        self.duplicates = Duplicates(self.duplicates)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of hashing in each round, and of attention from each chunk to itself and to the chunk before
    it.

    The state holds queries and values of the last two chunks of each bucket, separately for each round. It never holds more than
    the queries and values of all tokens.
    """
    n, c, d, rounds = geometry.keys, options.chunk, geometry.head_dim, options.rounds
    buckets = options.buckets or default_buckets(n, c)
    hashed = 2 * geometry.heads * rounds * n * d * rotation_columns(buckets)
    compared, backward = buckets_flops(geometry.heads, rounds, most_chunks(n, buckets, c), c, d)
    tokens = min(n, rounds * (buckets * (2 * c - 1) + 1))
    state = 2 * FLOAT * tokens * geometry.inner_dim if geometry.causal else None
    return Cost(hashed + compared, 0, backward_flops=backward, state_bytes=state)  # no gradient flows through a hash


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
class Reformer(RedrawnAttention[Options]):
    """Softmax attention among positions that locality-sensitive hashes put into the same bucket. Queries and keys are the same
    vectors.

    Paper: Kitaev et al. 2020. Eq. 2 and 3 define attention over a set of keys; Eq. 5 and 6 define buckets and chunks. Section 2
        shares queries and keys. Appendix A averages the outputs of the rounds, weighted by their normalisers exp z, and subtracts
        log N from the score of a key that N rounds find.
    Symbols: m → chunk, n_rounds → rounds, n_buckets → buckets, R → rotations.
    Differs: each bucket starts a new chunk, and a chunk sees the chunk before it only if both belong to the same bucket. In Eq. 6,
        the chunk before may belong to another bucket. If attention is bidirectional, the first chunk of a bucket also sees the last
        chunk, so all chunks of a bucket are seen by equally many chunks. Padding is left out. With more than 16 buckets, the number
        of a bucket combines several cross-polytope hashes with at most 16 buckets each. The paper uses a single hash. By default a
        bucket holds two chunks on average; in the paper it holds half a chunk. If N rounds find a key, the key counts in the first
        of them only. In the paper it counts N times with weight 1/N; the sum is the same. The hashes are drawn once or, with
        ``redraw``, again during training. Evaluation draws none, so it is deterministic. Scores are divided by √d as in Eq. 1, but
        not in the library transformers.
    """

    rotations: Float[Tensor, "heads rounds head_dim rotations"]
    drawn = "rotations"

    def draw(self) -> Tensor:
        """Return random Gaussian directions for hashing, enough for the largest number of buckets."""
        return torch.randn(self.geometry.heads, self.options.rounds, self.geometry.head_dim, ROTATIONS)

    @classmethod
    def warnings(cls, geometry: Geometry, options: Options) -> tuple[str, ...]:
        """Return a warning if a chunk is as long as the input, and one if there is a single bucket."""
        c, n = options.chunk, geometry.keys
        if c >= n:
            return (f"chunk={c} is at least the number of tokens ({n}), so every token sees all tokens",)
        one = (options.buckets or default_buckets(n, c)) == 1
        return (f"chunk={c} leaves one bucket for {n} tokens, so positions decide which tokens see each other, not the hash",) * one

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 2 and 3, computed over all n × n pairs. A key that N rounds find counts N times or, with
        ``duplicates=corrected``, once.
        """
        chunk, before = self._layout(query, key_valid).of_positions()
        near = (chunk[..., None, :] == chunk[..., None]) | (chunk[..., None, :] == before[..., None])
        itself = torch.eye(query.shape[2], dtype=torch.bool, device=query.device)
        times = (near.tril() if self.geometry.causal else near).sum(dim=0).masked_fill(itself, 0)
        times = times.clamp(max=1) if self.options.duplicates is Duplicates.corrected else times
        scores = query @ F.normalize(query, dim=-1).mT / query.shape[-1] ** 0.5
        allowed = (times > 0) | itself & ~times.any(dim=-1, keepdim=True)
        return softmax_over_valid(scores + times.clamp(min=1).to(scores.dtype).log(), allowed) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs. Positions are sorted by bucket, and each chunk attends to itself and to the chunk before it. The
        outputs of the rounds are averaged. The weight of a round is the sum of exp(score) over its keys.
        """
        o, n, precise = self.options, query.shape[2], torch.promote_types(query.dtype, torch.float32)
        self.redraw_in_training()
        layout = self._layout(query, key_valid)
        query_at, key_at = layout.pairs()  # (rounds, batch, heads, chunks, c) and (rounds, batch, heads, chunks, 2 c)
        unit = F.normalize(query.to(precise), dim=-1).to(query.dtype)
        queries, keys, values = take(query, query_at, 2), take(unit, key_at, 2), take(value, key_at, 2)

        i, j = query_at[..., :, None], key_at[..., None, :]
        hidden = (j > i) | (j == n) if self.geometry.causal else j == n
        if o.duplicates is Duplicates.corrected:
            hidden = hidden | _found_before(layout, query_at, key_at)
        scores = (queries @ keys.mT * query.shape[-1] ** -0.5).to(precise)
        scores = scores.masked_fill(i == j, SELF_SCORE).masked_fill(hidden, torch.finfo(precise).min)

        weights = F.dropout(scores.softmax(dim=-1), o.dropout, self.training).to(value.dtype)
        slot = layout.slot.flatten(0, 1)  # back to the order of positions, rounds joined with the batch
        outputs = take((weights @ values).flatten(3, 4).flatten(0, 1), slot).unflatten(0, (o.rounds, -1))
        z = take(scores.logsumexp(dim=-1).flatten(3).flatten(0, 1), slot).unflatten(0, (o.rounds, -1))
        return (z.softmax(dim=0)[..., None] * outputs).sum(dim=0).to(value.dtype)

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``attend``, computed in tiles that fit CPU caches."""
        once = self.options.duplicates is Duplicates.corrected
        self.redraw_in_training()
        rule = Rule(self.geometry.causal, once=once, dropout=self.dropout_rate)
        return attend_buckets(query, value, *self._layout(query, key_valid), rule).to(value.dtype)

    @torch.no_grad()
    def _layout(self, query: Queries, key_valid: KeyValid) -> Layout:
        """Return the chunks of the buckets in each round. If bidirectional, the last chunk of a bucket precedes its first."""
        buckets = self.options.buckets or default_buckets(self.geometry.keys, self.options.chunk)
        with without_autocast(query.device):  # so that buckets do not depend on autocast
            bucket = lsh_buckets(query, self.rotations, buckets, tiled=self.implementation == "tiled")
        return Layout.make(bucket, key_valid, buckets, self.options.chunk, wraps=not self.geometry.causal)


@torch.no_grad()
def _found_before(layout: Layout, query_at: Tensor, key_at: Tensor) -> Bool[Tensor, "rounds batch heads chunks c 2*c"]:
    """Return the mask of pairs that an earlier round has compared."""
    chunk, before = layout.of_positions()
    found = query_at.new_zeros(*query_at.shape, key_at.shape[-1], dtype=torch.bool)
    for earlier in range(len(found) - 1):
        mine = take(torch.stack([chunk[earlier], before[earlier]], dim=-1), query_at[earlier + 1 :], 2)
        theirs = take(chunk[earlier], key_at[earlier + 1 :], 2)[..., None, :]
        found[earlier + 1 :] |= (theirs == mine[..., :1]) | (theirs == mine[..., 1:])
    return found

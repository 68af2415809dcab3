"""Transformer-XL: yᵢ = Σⱼ softmaxⱼ(((qᵢ + u)·kⱼ + (qᵢ + v)·W s(i - j)) / √d) vⱼ over the positions j of i's segment and of the
memory before this segment.

s(i - j) holds sines and cosines of the distance. The vectors u and v and the matrix W are learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, check_dtype, check_state
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid
from attn_zoo.contract.options import at_least, share_of_length
from attn_zoo.kernels.cpu.segments import Distances, Segmentation, attend_segments, segment_flops
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

LONGEST_WAVE = 10000.0
"""Longest wavelength of the sines of distances, in positions and divided by 2π, as in Vaswani et al. 2017."""


@dataclass
class Options(DropoutOptions):
    """Options of Transformer-XL."""

    segment: int = share_of_length(4, most=512)
    """Length of a segment in positions. Segments begin at multiples of this length."""
    memory: int = share_of_length(4, most=512, bound=at_least(0, "cached positions"))
    """Number of positions before a segment whose keys and values the segment also sees."""
    relative: bool = True
    """If true, scores also depend on relative positions. Otherwise scores are q·k / √d."""


def segmentation(geometry: Geometry, options: Options) -> Segmentation:
    """Return how a sequence of ``geometry.keys`` positions is divided into segments."""
    return Segmentation.of(geometry.keys, options.segment, options.memory, causal=geometry.causal)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of attention from each segment to itself and to its memory. If ``relative`` is true, the scores by distance
    and the projection of the sines of distances are counted, too.

    The state is a ``SegmentState``.
    """
    cut, inner, by_distance = segmentation(geometry, options), geometry.inner_dim, options.relative
    forward, backward = segment_flops(cut, inner, by_distance=by_distance)
    projected = by_distance * 2 * cut.distances * inner * inner
    held = max(min(options.segment, cut.n - start) + min(options.memory, start) for start in _last_two_starts(cut))
    return Cost(
        flops=forward + projected,
        parameters=by_distance * (inner * inner + 2 * inner),
        backward_flops=backward + projected,
        state_bytes=2 * FLOAT * inner * held if geometry.causal else None,
    )


def _last_two_starts(cut: Segmentation) -> tuple[int, int]:
    """Return the starts of the last segment and of the segment before it. If the last segment is short, the other can need a larger
    state.
    """
    last = (cut.segments - 1) * cut.length
    return last, max(0, last - cut.length)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """KV cache of the present segment and of the memory before it."""

    key: Float[Tensor, "batch heads cached head_dim"]
    value: Float[Tensor, "batch heads cached head_dim"]
    position: int = 0
    """Number of tokens read so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cached keys and values."""
        return self.key.nbytes + self.value.nbytes

    def detached(self) -> SegmentState:
        """Return a copy that is detached from autograd. Gradients then stop at the cached keys and values, as in the paper's
        training.
        """
        return replace(self, key=self.key.detach(), value=self.value.detach())


@register_attention(
    "transformer_xl",
    title="Transformer-XL (segment recurrence)",
    paper="Dai et al. 2019, arXiv:1901.02860",
    equation="Section 3.2, with the scores of Section 3.3",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n s d + n m d",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: TransformerXL(geometry, Options(segment=geometry.keys, memory=0, relative=False)),
    variants={"short": {"segment": 3, "memory": 4}, "content_only": {"segment": 6, "memory": 0, "relative": False}},
)
class TransformerXL(Attention[Options]):
    """Softmax attention from each segment to itself and to a memory: the keys and values of some positions before the segment.

    Paper: Dai et al. 2019, Section 3.2 (recurrence) and 3.3 (scores by distance, with u, v, W_kR and the sines R of distances).
    Symbols: L → segment (s in the formulas of cost); M → memory (m in the formulas of cost); u → content_bias; v → position_bias;
        W_kR → position_projection.
    Differs: one call reads all segments, and gradients reach the keys and values of the memory. In the paper, gradients stop at
        these keys and values. The same happens here if ``step`` gets ``state.detached()``. The cache holds a layer's keys and
        values, not its hidden states, which is equivalent while the weights do not change. Every layer has its own u, v and W_kR. u
        and v start at zero (near zero in the paper). The bidirectional form is an addition: a query sees its whole segment and the
        memory before the segment, and nothing after the segment.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        if options.relative:
            inner = geometry.inner_dim
            self.position_projection = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inner, inner)))
            self.content_bias = nn.Parameter(torch.zeros(geometry.heads, geometry.head_dim))
            self.position_bias = nn.Parameter(torch.zeros(geometry.heads, geometry.head_dim))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if each segment sees all positions before it, so that the time is quadratic in the length."""
        cut = segmentation(geometry, options)
        if options.memory < cut.length * (cut.segments - 1):
            return ()
        reach = f"segments of {options.segment} with a memory of {options.memory}"
        return (f"{reach} reach all {geometry.keys} tokens: the time is quadratic in the length",)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from n × n scores. A query sees only its segment and the memory before this segment."""
        n, o = query.shape[2], self.options
        position = torch.arange(n, device=query.device)
        start = (position // o.segment * o.segment)[:, None]
        reach = (position >= start - o.memory) & (position < start + o.segment)
        scores = query @ key.mT
        if o.relative:
            waves = F.linear(self._sines(n - 1, 2 * n - 1), self.position_projection).unflatten(-1, self.content_bias.shape)
            relative = waves[n - 1 - position[:, None] + position].permute(2, 0, 1, 3)  # (heads, n, n, head_dim): W s(i - j)
            by_distance = ((query + self.position_bias[:, None])[:, :, :, None] * relative).sum(dim=-1)
            scores = (query + self.content_bias[:, None]) @ key.mT + by_distance
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = softmax_over_valid(scores * query.shape[-1] ** -0.5, reach if allowed is None else reach & allowed)
        return weights @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed for all segments at once. Scores have shape (batch, heads, segments, segment length, memory
        + segment length).
        """
        n, device = query.shape[2], query.device
        cut = Segmentation.of(n, self.options.segment, self.options.memory, causal=self.geometry.causal)
        fill = -n % cut.length
        queries = F.pad(query, (0, 0, 0, fill)).unflatten(2, (-1, cut.length))
        keys, values = (F.pad(x, (0, 0, cut.memory, fill)).unfold(2, cut.width, cut.length).mT for x in (key, value))
        valid = torch.ones(1, n, dtype=torch.bool, device=device) if key_valid is None else key_valid
        allowed = F.pad(valid, (cut.memory, fill)).unfold(1, cut.width, cut.length)[:, None, :, None]
        if cut.causal:
            allowed = allowed & torch.ones(cut.length, cut.width, dtype=torch.bool, device=device).tril(cut.memory)
        scores = self._scores(queries, keys, lambda q: q @ self._rows(cut.width - 1, cut.distances)[:, None].mT)
        weights = F.dropout(softmax_over_valid(scores, allowed), self.options.dropout, self.training)
        return (weights @ values).flatten(2, 3)[:, :, :n]

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed in tiles of a few segments each."""
        cut = Segmentation.of(query.shape[2], self.options.segment, self.options.memory, causal=self.geometry.causal)
        distances = None
        if self.options.relative:
            with without_autocast(query.device):
                distances = Distances(self._rows(cut.width - 1, cut.distances), self.content_bias, self.position_bias)
        return attend_segments(query, key, value, key_valid, cut, distances=distances, dropout=self.dropout_rate)

    def initial_state(
        self, batch: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> SegmentState:
        """Return the state before the first token, which is an empty cache."""
        check_dtype(dtype)
        nothing = torch.zeros(batch, self.geometry.heads, 0, self.geometry.head_dim, dtype=dtype, device=device)
        return SegmentState(nothing, nothing)

    def advance(self, query: Queries, key: Keys, value: Keys, state: Any, **streams: Keys) -> tuple[Queries, SegmentState]:
        """Return the outputs of the next tokens and the new state, computed segment by segment.

        Raises:
            ValueError: the mechanism, batch size, dtype or device of the state is wrong.
        """
        shape = (value.shape[0], self.geometry.heads, self._cached(state.position), self.geometry.head_dim)
        check_state(self.card.name, state, "key", shape, value.dtype, value)
        out, start, n = [], state.position, value.shape[2]
        borders = [*range(start - start % self.options.segment + self.options.segment, start + n, self.options.segment), start + n]
        for end in borders:
            piece = slice(state.position - start, end - start)
            keys, values = (torch.cat([a, b[:, :, piece]], dim=2) for a, b in ((state.key, key), (state.value, value)))
            out.append(self._within_segment(query[:, :, piece], keys, values))
            if dropped := keys.shape[2] - self._cached(end):  # copies, so that dropped keys and values are freed
                keys, values = keys[:, :, dropped:].clone(), values[:, :, dropped:].clone()
            state = SegmentState(keys, values, end)
        return torch.cat(out, dim=2), state

    def _within_segment(self, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "batch heads n head_dim"]:
        """Return the outputs of a piece of a segment. Its queries are at the last positions of ``key``. Each query sees all keys up
        to its own position.
        """
        rows, width = query.shape[2], key.shape[2]
        scores = self._scores(query, key, lambda q: self._by_distance(q, width))
        past = torch.ones(rows, width, dtype=torch.bool, device=query.device).tril(width - rows)
        return F.dropout(softmax_over_valid(scores, past), self.options.dropout, self.training) @ value

    def _scores(
        self,
        query: Float[Tensor, "batch heads *segments rows head_dim"],
        key: Float[Tensor, "batch heads *segments width head_dim"],
        by_distance: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "batch heads *segments rows width"]:
        """Return the scores ((q + u)·k + (q + v)·W s(i - j)) / √d. The last query is at the position of the last key that it sees.

        Args:
            by_distance: function from (q + v) / √d to its products with W s, with one column per distance from ``width - 1`` down.
        """
        scale = query.shape[-1] ** -0.5
        if not self.options.relative:
            return query * scale @ key.mT
        bias = (self.geometry.heads, *(1,) * (query.dim() - 3), self.geometry.head_dim)
        scores = by_distance((query + self.position_bias.view(bias)) * scale)
        rows, width, distances = query.shape[-2], key.shape[-2], scores.shape[-1]
        column = torch.arange(width, device=query.device) + torch.arange(rows - 1, -1, -1, device=query.device)[:, None]
        column = column.clamp(max=distances - 1)  # only causal: future keys, which are masked
        shifted = scores.gather(-1, column.expand(*scores.shape[:-1], width))
        return ((query + self.content_bias.view(bias)) * scale) @ key.mT + shifted

    def _by_distance(self, query: Tensor, distances: int) -> Float[Tensor, "batch heads n distances"]:
        """Return the products q·W s for each distance, the largest distance first. They are computed as q·(W s) or (q W)·s,
        whichever takes fewer FLOPs.
        """
        (batch, heads, n, d), inner = query.shape, self.geometry.inner_dim
        if batch * n * (inner + heads * distances) < distances * (inner + batch * n):
            by_wave = query @ self.position_projection.unflatten(0, (heads, d))
            return by_wave @ self._sines(distances - 1, distances).mT
        return query @ self._rows(distances - 1, distances).mT

    def _rows(self, largest: int, distances: int) -> Float[Tensor, "heads distances head_dim"]:
        """Return the projected sines W s of the distances, the largest distance first."""
        rows = F.linear(self._sines(largest, distances), self.position_projection)
        return rows.unflatten(-1, self.content_bias.shape).transpose(0, 1)

    def _sines(self, largest: int, distances: int) -> Float[Tensor, "distances inner"]:
        """Return sines, then cosines, of the distances, the largest distance first. Wavelengths go from 2π to 2π ``LONGEST_WAVE``
        positions.
        """
        weight, inner = self.position_projection, self.geometry.inner_dim
        wide, device = torch.promote_types(weight.dtype, torch.float32), weight.device
        waves = LONGEST_WAVE ** (torch.arange(-(-inner // 2), dtype=wide, device=device) * (-2 / inner))
        phases = (largest - torch.arange(distances, dtype=wide, device=device))[:, None] * waves
        return torch.cat([phases.sin(), phases.cos()], dim=-1)[:, :inner].to(weight.dtype)

    def _cached(self, position: int) -> int:
        """Return how many positions are cached at ``position``: those of the present segment and of the memory before it."""
        begun = position % self.options.segment
        return begun + min(self.options.memory, position - begun)

"""Attention of segments of queries to their own keys and to those cached before them, with scores by content and by distance.

Whole segments stand beside each other in tiles whose scores fit a processor's caches; weights are computed anew for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.kernels.cpu._softmax import TILE, dropout_mask, masked_softmax_, softmax_backward_
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass(frozen=True, slots=True)
class Segmentation:
    """How a sequence of ``n`` positions is cut into segments of ``length``, each with ``memory`` positions before it."""

    n: int
    length: int
    memory: int
    causal: bool

    @classmethod
    def of(cls, n: int, segment: int, memory: int, *, causal: bool) -> Segmentation:
        """No segment is longer than the sequence, and no memory than what comes before the last segment."""
        length = max(1, min(segment, n))
        return cls(n, length, min(memory, (-(-n // length) - 1) * length), causal)

    @property
    def segments(self) -> int:
        """The last one may be short and is filled up."""
        return -(-self.n // self.length)

    @property
    def before(self) -> int:
        """Segments that the memory reaches into."""
        return -(-self.memory // self.length)

    @property
    def width(self) -> int:
        """Keys of a segment and its memory."""
        return self.length + self.memory

    @property
    def distances(self) -> int:
        """From the last query to the first key down to 0, or without causality down to the first query and the last key."""
        return self.width if self.causal else self.width + self.length - 1


class Distances(NamedTuple):
    """What scores by distance need. Rows of ``keys`` begin with the largest distance, ``width - 1``, and go down."""

    keys: Float[Tensor, "heads distances head_dim"]
    content_bias: Float[Tensor, "heads head_dim"]
    position_bias: Float[Tensor, "heads head_dim"]


def attend_segments(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, cut: Segmentation, *, distances: Distances | None, dropout: float
) -> Queries:
    """One softmax for each query over the valid keys of its segment, up to itself if causal, and of the memory before it.

    Scores are ((q + u)·k + (q + v)·r) / √head_dim with r of the distance between the two, or q·k / √head_dim without
    ``distances``; zeros where no key is valid. Beside its inputs nothing is kept for the gradient.
    """
    dtype = autocast_dtype(query)
    with without_autocast(query.device):
        tensors = [t.to(dtype) for t in (query, key, value, *(distances or ()))]
        out: Tensor = _Segments.apply(cut, dropout, key_valid, *tensors)
    return out


def segment_flops(cut: Segmentation, inner_dim: int, *, by_distance: bool) -> tuple[int, int]:
    """FLOPs of ``attend_segments`` for one example, forward and backward: there scores anew, and each product's two factors."""
    pairs, by_distances = (cut.segments * cut.length * count * inner_dim for count in (cut.width, by_distance * cut.distances))
    return 4 * pairs + 2 * by_distances, 10 * pairs + 6 * by_distances


def shifted(by_distance: Float[Tensor, "*front rows distances"], width: int) -> Float[Tensor, "*front rows width"]:
    """Scores by distance as scores by key: each row begins a step before the one above it. A view of contiguous memory.

    Row i needs the ``width`` distances that follow the first ``rows - 1 - i``; read with a stride that is shorter by one, each
    row moves on by one. Causally a row's last columns then lie in the next row: they stand for keys in the future.
    """
    *front, rows, distances = by_distance.shape
    *strides, _, _ = by_distance.stride()
    return by_distance.as_strided((*front, rows, width), (*strides, distances - 1, 1), by_distance.storage_offset() + rows - 1)


class _Segments(torch.autograd.Function):
    """``attend_segments`` tile by tile. Kept are the inputs, and under dropout what survives."""

    @staticmethod
    def forward(
        ctx: Any, cut: Segmentation, dropout: float, valid: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *extra: Tensor
    ) -> Tensor:
        queries, keys, values = _fold(query, 0, cut), _fold(key, cut.before, cut), _fold(value, cut.before, cut)
        out, survivors = torch.empty_like(queries), []
        for tile in _tiles(key, valid, cut):
            for head in range(query.shape[1]):
                asked = _Asked.of(queries[head, tile.items], [x[head] for x in extra])
                weights = masked_softmax_(asked.scores(tile.window(keys[head])), tile.hidden)
                if (kept := dropout_mask(weights, dropout)) is not None:
                    survivors.append(kept)
                    weights = weights * kept
                out[head, tile.items] = weights @ tile.window(values[head])
        ctx.save_for_backward(query, key, value, valid, *extra, *survivors)
        ctx.cut, ctx.extra = cut, len(extra)
        return _unfold(out, 0, cut, query)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, *rest = ctx.saved_tensors
        cut, extra, survivors = ctx.cut, rest[: ctx.extra], iter(rest[ctx.extra :])
        queries, keys, values = _fold(query, 0, cut), _fold(key, cut.before, cut), _fold(value, cut.before, cut)
        gradient, grad_query = _fold(gradient, 0, cut), torch.empty_like(queries)
        precise = torch.promote_types(query.dtype, torch.float32)  # many tiles add to one key
        grad_key, grad_value, *grad_extra = (torch.zeros(x.shape, dtype=precise, device=x.device) for x in (keys, values, *extra))
        for tile in _tiles(key, valid, cut):
            for head in range(query.shape[1]):
                asked, near = _Asked.of(queries[head, tile.items], [x[head] for x in extra]), tile.window(keys[head])
                weights, grad_rows = masked_softmax_(asked.scores(near), tile.hidden), gradient[head, tile.items]
                kept = next(survivors, None)
                tile.add(grad_value[head], (weights if kept is None else weights * kept).mT @ grad_rows)
                grad_scores = softmax_backward_(weights, grad_rows @ tile.window(values[head]).mT, kept)
                tile.add(grad_key[head], grad_scores.mT @ asked.by_content)
                grad_query[head, tile.items] = asked.gradient(grad_scores, near, [x[head] for x in grad_extra])
        found = (
            _unfold(grad_query, 0, cut, query),
            _unfold(grad_key, cut.before, cut, key),
            _unfold(grad_value, cut.before, cut, value),
        )
        return None, None, None, *(x.to(query.dtype) for x in (*found, *grad_extra))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What some segments' queries ask for, by content and, where distances count, by distance."""

    by_content: Float[Tensor, "items length head_dim"]
    by_distance: Float[Tensor, "items length head_dim"] | None = None
    positions: Float[Tensor, "distances head_dim"] | None = None

    @classmethod
    def of(cls, query: Tensor, extra: Sequence[Tensor]) -> _Asked:
        """``extra`` holds what ``Distances`` does, of one head, or nothing."""
        scale = query.shape[-1] ** -0.5
        if not extra:
            return cls(query * scale)
        positions, content_bias, position_bias = extra
        return cls((query + content_bias) * scale, (query + position_bias) * scale, positions)

    def scores(self, keys: Float[Tensor, "items width head_dim"]) -> Float[Tensor, "items length width"]:
        """By content and distance together."""
        scores = self.by_content @ keys.mT
        if self.by_distance is not None and self.positions is not None:
            scores += shifted(self.by_distance @ self.positions.mT, keys.shape[1])
        return scores

    def gradient(
        self, grad_scores: Float[Tensor, "items length width"], keys: Tensor, grad_extra: Sequence[Tensor]
    ) -> Float[Tensor, "items length head_dim"]:
        """That of the queries; those of the distances' rows and of the biases are added to ``grad_extra``."""
        scale = keys.shape[-1] ** -0.5
        grad_query = (grad_scores @ keys).mul_(scale)
        if self.by_distance is None or self.positions is None:
            return grad_query
        (items, length, width), distances = grad_scores.shape, self.positions.shape[0]
        grad_distances = grad_scores.new_zeros(items, length, distances)
        grad_rows = shifted(grad_distances, width)
        grad_rows[..., :-1] = grad_scores[..., :-1]
        grad_rows[..., -1] += grad_scores[..., -1]  # causally it lies on the next row's first, and is zero but in the last row
        grad_position = (grad_distances @ self.positions).mul_(scale)
        grad_extra[0].add_(grad_distances.flatten(0, 1).mT @ self.by_distance.flatten(0, 1))
        grad_extra[1].add_(grad_query.sum(dim=(0, 1)))
        grad_extra[2].add_(grad_position.sum(dim=(0, 1)))
        return grad_query.add_(grad_position)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some segments of all examples, by their numbers, and what they look at."""

    items: slice
    slots: Int[Tensor, "items_looked_at"]
    """Segments of keys, those of the memory before the own one."""
    hidden: Bool[Tensor, "items #length width"]

    def window(self, keys: Float[Tensor, "slots length head_dim"]) -> Float[Tensor, "items width head_dim"]:
        """Memory and own keys side by side; of the memory's first segment the end."""
        near = keys.index_select(0, self.slots).view(self.items.stop - self.items.start, -1, keys.shape[-1])
        return near[:, near.shape[1] - self.hidden.shape[-1] :]

    def add(self, whole: Float[Tensor, "slots length head_dim"], windows: Float[Tensor, "items width head_dim"]) -> None:
        """Add windows where they came from."""
        missing = len(self.slots) // windows.shape[0] * whole.shape[1] - windows.shape[1]
        filled = F.pad(windows, (0, 0, missing, 0)) if missing else windows
        whole.index_add_(0, self.slots, filled.reshape(len(self.slots), *whole.shape[1:]).to(whole.dtype))


def _tiles(key: Tensor, valid: Tensor | None, cut: Segmentation) -> Iterator[_Tile]:
    """Segmentation all segments into tiles of about ``TILE`` scores."""
    (batch, _, n, _), device = key.shape, key.device
    there = torch.ones(batch, n, dtype=torch.bool, device=device) if valid is None else valid
    there = _fold(there[:, None, :, None], cut.before, cut)[0, ..., 0]
    reach, columns = torch.arange(cut.before + 1, device=device), torch.arange(cut.width, device=device)
    future = columns - cut.memory > torch.arange(cut.length, device=device)[:, None] if cut.causal else None
    together = max(1, TILE // (cut.length * cut.width))
    for start in range(0, batch * cut.segments, together):
        items = torch.arange(start, min(start + together, batch * cut.segments), device=device)
        slots = (items + items // cut.segments * cut.before)[:, None] + reach
        hidden = ~there[slots].flatten(1)[:, None, -cut.width :]
        yield _Tile(slice(start, start + len(items)), slots.flatten(), hidden if future is None else hidden | future)


def _fold(x: Tensor, before: int, cut: Segmentation) -> Tensor:
    """(batch, heads, n, d) as segments of each head, (heads, slots, length, d): ``before`` of zeros and those of each example."""
    batch, heads, n, d = x.shape
    folded = x.new_zeros(heads, batch, (before + cut.segments) * cut.length, d)
    folded[:, :, before * cut.length :][:, :, :n] = x.transpose(0, 1)
    return folded.view(heads, -1, cut.length, d)


def _unfold(folded: Tensor, before: int, cut: Segmentation, like: Tensor) -> Float[Tensor, "batch heads n head_dim"]:
    """The inverse of ``_fold``."""
    batch, heads, n, d = like.shape
    return folded.view(heads, batch, -1, d)[:, :, before * cut.length :][:, :, :n].transpose(0, 1)

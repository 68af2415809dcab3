"""Attention of segments to themselves and to a memory of earlier keys, with scores by content and by distance (Transformer-XL).

A tile holds whole segments, as many as fit the caches of a CPU. The backward pass recomputes weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.kernels.cpu._softmax import TILE, drop_, masked_softmax_, softmax_backward_
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Division of a sequence of ``n`` positions into segments of ``length`` positions. Each segment also sees a number of positions
    before it (``memory``).
    """

    n: int
    length: int
    memory: int
    causal: bool

    @classmethod
    def of(cls, n: int, segment: int, memory: int, *, causal: bool) -> Segmentation:
        """Return the division into segments of ``segment`` positions. Each segment also sees a number of positions before it
        (``memory``). Both numbers are reduced if the sequence is shorter.
        """
        length = max(1, min(segment, n))
        return cls(n, length, min(memory, (-(-n // length) - 1) * length), causal)

    @property
    def segments(self) -> int:
        """Number of segments. A last segment that is shorter is filled up and counted."""
        return -(-self.n // self.length)

    @property
    def before(self) -> int:
        """Number of segments over which the memory of one segment extends."""
        return -(-self.memory // self.length)

    @property
    def width(self) -> int:
        """Number of keys that a segment sees: its own and those of its memory."""
        return self.length + self.memory

    @property
    def distances(self) -> int:
        """Number of different distances between a query and the keys that its segment sees. Distances to later keys, which are
        negative, count only if attention is bidirectional.
        """
        return self.width if self.causal else self.width + self.length - 1


class Distances(NamedTuple):
    """Tensors for scores by distance: a key for each distance, and the biases u (``content_bias``) and v (``position_bias``). The
    keys are in descending order of distance, beginning with the distance ``Segmentation.width - 1``.
    """

    keys: Float[Tensor, "heads distances head_dim"]
    content_bias: Float[Tensor, "heads head_dim"]
    position_bias: Float[Tensor, "heads head_dim"]


def attend_segments(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, cut: Segmentation, *, distances: Distances | None, dropout: float
) -> Queries:
    """Return the outputs of softmax attention from each query to the valid keys of its segment and of the memory (positions before
    the segment).

    Scores are ((q + u)·k + (q + v)·r) / √head_dim, where r is the key of the distance between query and key, and u and v are
    biases (see ``Distances``). Without ``distances``, scores are q·k / √head_dim. If a query sees no valid key, its output is
    zero. Only the inputs and dropout masks are saved for the backward pass.
    """
    dtype = autocast_dtype(query)
    with without_autocast(query.device):
        tensors = [t.to(dtype) for t in (query, key, value, *(distances or ()))]
        out: Tensor = _Segments.run(cut, dropout, key_valid, *tensors)
    return out


def segment_flops(cut: Segmentation, inner_dim: int, *, by_distance: bool) -> tuple[int, int]:
    """Return the FLOPs of ``attend_segments`` for one example: those of the forward pass and those of the backward pass, which
    also recomputes the scores.
    """
    pairs, by_distances = (cut.segments * cut.length * count * inner_dim for count in (cut.width, by_distance * cut.distances))
    return 4 * pairs + 2 * by_distances, 10 * pairs + 6 * by_distances


def shifted(by_distance: Float[Tensor, "*front rows distances"], width: int) -> Float[Tensor, "*front rows width"]:
    """Return the scores by key, as a view of scores by distance (the relative shift of Transformer-XL). ``by_distance`` must be
    contiguous.

    Row i of the result begins at column ``rows - 1 - i`` of row i of ``by_distance``. If attention is causal, the last entries of a
    row are numbers from the next row of ``by_distance``. These entries belong to future keys, which the caller must mask.
    """
    *front, rows, distances = by_distance.shape
    *strides, _, _ = by_distance.stride()
    return by_distance.as_strided((*front, rows, width), (*strides, distances - 1, 1), by_distance.storage_offset() + rows - 1)


class _Segments(OnceDifferentiable):
    """Autograd function of ``attend_segments``, tile by tile. It saves the inputs and the dropout masks."""

    @staticmethod
    def forward(
        ctx: Any, cut: Segmentation, dropout: float, valid: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *extra: Tensor
    ) -> Tensor:
        queries, keys, values = _fold(query, 0, cut), _fold(key, cut.before, cut), _fold(value, cut.before, cut)
        out, survivors = torch.empty_like(queries), list[Tensor]()
        for tile in _tiles(key, valid, cut):
            for head in range(query.shape[1]):
                scaled = _ScaledQueries.of(queries[head, tile.items], [x[head] for x in extra])
                weights = drop_(masked_softmax_(scaled.scores(tile.window(keys[head])), tile.hidden), dropout, survivors)
                out[head, tile.items] = weights @ tile.window(values[head])
        ctx.save_for_backward(query, key, value, valid, *extra, *survivors)
        ctx.cut, ctx.extra = cut, len(extra)
        return _unfold(out, 0, cut, query)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, *rest = ctx.saved_tensors
        cut, extra, survivors = ctx.cut, rest[: ctx.extra], iter(rest[ctx.extra :])
        queries, keys, values = _fold(query, 0, cut), _fold(key, cut.before, cut), _fold(value, cut.before, cut)
        gradient, grad_query = _fold(gradient, 0, cut), torch.empty_like(queries)
        precise = torch.promote_types(query.dtype, torch.float32)  # gradients of many tiles are added for one key
        grad_key, grad_value, *grad_extra = (torch.zeros(x.shape, dtype=precise, device=x.device) for x in (keys, values, *extra))
        for tile in _tiles(key, valid, cut):
            for head in range(query.shape[1]):
                scaled, near = _ScaledQueries.of(queries[head, tile.items], [x[head] for x in extra]), tile.window(keys[head])
                weights, grad_rows = masked_softmax_(scaled.scores(near), tile.hidden), gradient[head, tile.items]
                kept = next(survivors, None)
                tile.add(grad_value[head], (weights if kept is None else weights * kept).mT @ grad_rows)
                grad_scores = softmax_backward_(weights, grad_rows @ tile.window(values[head]).mT, kept)
                tile.add(grad_key[head], grad_scores.mT @ scaled.by_content)
                grad_query[head, tile.items] = scaled.gradient(grad_scores, near, [x[head] for x in grad_extra])
        found = (
            _unfold(grad_query, 0, cut, query),
            _unfold(grad_key, cut.before, cut, key),
            _unfold(grad_value, cut.before, cut, value),
        )
        return None, None, None, *(x.to(query.dtype) for x in (*found, *grad_extra))


@dataclass(frozen=True, slots=True)
class _ScaledQueries:
    """Scaled queries of some segments, with biases: (q + u) / √d by content and, with distances, (q + v) / √d by distance."""

    by_content: Float[Tensor, "items length head_dim"]
    by_distance: Float[Tensor, "items length head_dim"] | None = None
    positions: Float[Tensor, "distances head_dim"] | None = None

    @classmethod
    def of(cls, query: Tensor, extra: Sequence[Tensor]) -> _ScaledQueries:
        """Scale queries. ``extra`` holds the tensors of ``Distances`` for one head, or nothing."""
        scale = query.shape[-1] ** -0.5
        if not extra:
            return cls(query * scale)
        positions, content_bias, position_bias = extra
        return cls((query + content_bias) * scale, (query + position_bias) * scale, positions)

    def scores(self, keys: Float[Tensor, "items width head_dim"]) -> Float[Tensor, "items length width"]:
        """Return the scores by content plus the scores by distance."""
        scores = self.by_content @ keys.mT
        if self.by_distance is not None and self.positions is not None:
            scores += shifted(self.by_distance @ self.positions.mT, keys.shape[1])
        return scores

    def gradient(
        self, grad_scores: Float[Tensor, "items length width"], keys: Tensor, grad_extra: Sequence[Tensor]
    ) -> Float[Tensor, "items length head_dim"]:
        """Return the gradient of the queries. Gradients of the rows of distances and of the biases are added to ``grad_extra``."""
        scale = keys.shape[-1] ** -0.5
        grad_query = (grad_scores @ keys).mul_(scale)
        if self.by_distance is None or self.positions is None:
            return grad_query
        (items, length, width), distances = grad_scores.shape, self.positions.shape[0]
        grad_distances = grad_scores.new_zeros(items, length, distances)
        grad_rows = shifted(grad_distances, width)
        grad_rows[..., :-1] = grad_scores[..., :-1]
        # Causally this column overlaps the next row's first one, and is zero except in the last row.
        grad_rows[..., -1] += grad_scores[..., -1]
        grad_position = (grad_distances @ self.positions).mul_(scale)
        grad_extra[0].add_(grad_distances.flatten(0, 1).mT @ self.by_distance.flatten(0, 1))
        grad_extra[1].add_(grad_query.sum(dim=(0, 1)))
        grad_extra[2].add_(grad_position.sum(dim=(0, 1)))
        return grad_query.add_(grad_position)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Indices of some segments over all examples, and of the segments of keys that they see."""

    items: slice
    slots: Int[Tensor, "items_looked_at"]
    """Indices of segments of keys: for each item the segments of the memory, then its own segment."""
    hidden: Bool[Tensor, "items #length width"]

    def window(self, keys: Float[Tensor, "slots length head_dim"]) -> Float[Tensor, "items width head_dim"]:
        """Concatenate the keys of the memory and of the segment itself. Of the first segment of the memory, take only the end."""
        near = keys.index_select(0, self.slots).view(self.items.stop - self.items.start, -1, keys.shape[-1])
        return near[:, near.shape[1] - self.hidden.shape[-1] :]

    def add(self, whole: Float[Tensor, "slots length head_dim"], windows: Float[Tensor, "items width head_dim"]) -> None:
        """Add windows to the segments that they come from. This is the inverse of ``window``."""
        missing = len(self.slots) // windows.shape[0] * whole.shape[1] - windows.shape[1]
        filled = F.pad(windows, (0, 0, missing, 0)) if missing else windows
        whole.index_add_(0, self.slots, filled.reshape(len(self.slots), *whole.shape[1:]).to(whole.dtype))


def _tiles(key: Tensor, valid: Tensor | None, cut: Segmentation) -> Iterator[_Tile]:
    """Split all segments into tiles of about ``TILE`` scores."""
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
    """Reshape (batch, heads, n, d) to (heads, slots, length, d): per example ``before`` segments of zeros, then its segments."""
    batch, heads, n, d = x.shape
    folded = x.new_zeros(heads, batch, (before + cut.segments) * cut.length, d)
    folded[:, :, before * cut.length :][:, :, :n] = x.transpose(0, 1)
    return folded.view(heads, -1, cut.length, d)


def _unfold(folded: Tensor, before: int, cut: Segmentation, like: Tensor) -> Float[Tensor, "batch heads n head_dim"]:
    """Undo ``_fold``."""
    batch, heads, n, d = like.shape
    return folded.view(heads, batch, -1, d)[:, :, before * cut.length :][:, :, :n].transpose(0, 1)

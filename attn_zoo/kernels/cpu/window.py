"""Sliding-window attention in blocks of queries, without n × n tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.library import custom_op

from attn_zoo.contract.untraced import untraced
from attn_zoo.kernels.cpu._softmax import TILE, drop_, masked_softmax_, softmax_backward_
from attn_zoo.kernels.derivatives import OnceDifferentiable, once_differentiable
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid, Queries

SMALLEST_BLOCK = 16


def spans(length: int, left: int, right: int) -> Iterator[tuple[int, int, int, int]]:
    """Return the tiles of attention to ``left`` keys before and ``right`` keys after each query. A tile is given by four
    bounds: start and end of its queries, and start and end of the keys that these queries see.
    """
    rows = max(SMALLEST_BLOCK, math.ceil((left + right) / 8))  # so that tiles hold an eighth more pairs than the window
    for start in range(0, length, rows):
        end = min(length, start + rows)
        yield start, end, max(0, start - left), min(length, end + right)


def band_flops(length: int, left: int, right: int, extra: int) -> tuple[int, int]:
    """Return the FLOPs of attention to the keys in the window and to ``extra`` global keys, per head and per channel: those of
    the forward pass and those of the backward pass, which also recomputes the scores.
    """
    flops = 4 * sum((end - start) * (last - first + extra) for start, end, first, last in spans(length, left, right))
    return flops, 5 * flops // 2


def banded_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    valid: Bool[Tensor, "batch #heads keys"] | None,
    extra_key: Compressed,
    extra_value: Compressed,
    extra_valid: CompressedValid,
    *,
    left: int,
    right: int,
    dropout: float,
) -> Queries:
    """Return the outputs of softmax attention from each query i to the valid keys i - left … i + right and to the valid extra keys.
    If a query sees no valid key, its output is zero.

    If an extra key is also in ``key``, mark it False in ``valid``, because it would count twice otherwise. Give both ``valid``
    and ``extra_valid``, or None for both if all keys are valid. Only the inputs and the dropout masks are saved for the
    backward pass.
    """
    dtype = autocast_dtype(query)
    tensors = [t.to(dtype) for t in (query, key, value, extra_key, extra_value)]
    with without_autocast(query.device):
        if torch.compiler.is_compiling() and not dropout:
            return _band(*tensors, valid, extra_valid, left, right)
        return _attend(tensors, valid, extra_valid, left, right, dropout)


@untraced
def _attend(
    tensors: list[Tensor], valid: Tensor | None, extra_valid: Tensor | None, left: int, right: int, dropout: float
) -> Queries:
    query, (batch, heads) = tensors[0], tensors[0].shape[:2]
    out: Tensor = _Band.run(*_joined(tensors, valid, extra_valid, left, right), left, right, dropout)
    return out.view(query.shape) if len(out) == batch else out[0].unflatten(0, (batch, heads))


def _joined(
    tensors: list[Tensor], valid: Tensor | None, extra_valid: Tensor | None, left: int, right: int
) -> tuple[Tensor | None, ...]:
    """Join short examples along the heads, and expand both masks to all heads."""
    (_, heads, length, _), extra = tensors[0].shape, tensors[3].shape[2]
    if _widest(length, left, right, extra) * heads <= TILE // 2:  # a tile takes several examples
        tensors = [t.flatten(0, 1)[None] for t in tensors]
    if valid is not None and extra_valid is not None:
        valid, extra_valid = (
            seen.expand(-1, heads, -1).reshape(*tensors[0].shape[:2], -1) for seen in (valid, extra_valid[:, None])
        )
    return *tensors, valid, extra_valid


def attend_dilated(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, *, extra: int, dilation: int, left: int, right: int, dropout: float
) -> Float[Tensor, "batch heads rest head_dim"]:
    """Return the outputs of softmax attention for all positions after the first ``extra`` positions, whose keys are global. A query
    i sees the global keys, and the valid keys i + j · ``dilation`` for j from -``left`` to ``right``.
    """
    batch, heads, n, _ = query.shape
    valid = query.new_ones(batch, n, dtype=torch.bool) if key_valid is None and dilation > 1 else key_valid
    out = banded_attention(
        _fold(query[:, :, extra:], dilation),
        _fold(key[:, :, extra:], dilation),
        _fold(value[:, :, extra:], dilation),
        None if valid is None else _fold(valid[:, None, extra:, None], dilation)[..., 0].repeat(1, heads, 1),
        _repeat(key[:, :, :extra], dilation),
        _repeat(value[:, :, :extra], dilation),
        None if valid is None else valid[:, :extra].clone(),  # a view would keep the whole mask alive
        left=left,
        right=right,
        dropout=dropout,
    )
    return out if dilation == 1 else out.unflatten(1, (heads, dilation)).transpose(2, 3).flatten(2, 3)[:, :, : n - extra]


def _fold(x: Tensor, dilation: int) -> Tensor:
    """Reshape so that each residue class of positions is a sequence. The classes are joined to the heads."""
    if dilation == 1:
        return x
    length = math.ceil(x.shape[2] / dilation)
    filled = F.pad(x, (0, 0, 0, length * dilation - x.shape[2])).unflatten(2, (length, dilation))
    return filled.transpose(2, 3).flatten(1, 2)


def _repeat(x: Tensor, dilation: int) -> Tensor:
    """Repeat extra keys or values for each residue class."""
    return x if dilation == 1 else x[:, :, None].expand(-1, -1, dilation, -1, -1).flatten(1, 2)


class _Band(OnceDifferentiable):
    """Autograd function of ``banded_attention``, tile by tile. It saves the inputs and dropout masks, and computes weights
    again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        extra_key: Tensor,
        extra_value: Tensor,
        valid: Tensor | None,
        extra_valid: Tensor | None,
        left: int,
        right: int,
        dropout: float,
    ) -> Tensor:
        out, masks = torch.empty_like(query), list[Tensor]()
        band = _Weights(query, valid, extra_valid, left, right, extra_key.shape[2])
        for tile in band.tiles():
            weights = drop_(band.weights(tile, query[tile.rows], _join(extra_key, key, tile)), dropout, masks)
            torch.bmm(weights, _join(extra_value, value, tile), out=out[tile.rows])
        ctx.save_for_backward(query, key, value, extra_key, extra_value, valid, extra_valid, *masks)
        ctx.reach = left, right
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, extra_key, extra_value, valid, extra_valid, *masks = ctx.saved_tensors
        extra, scale = extra_key.shape[2], query.shape[-1] ** -0.5
        precise = torch.promote_types(query.dtype, torch.float32)  # gradients of many tiles are added for one key
        grad_query = torch.empty_like(query)
        grad_key, grad_value, grad_extra_key, grad_extra_value = (
            torch.zeros_like(t, dtype=precise) for t in (key, value, extra_key, extra_value)
        )
        left, right = ctx.reach
        band = _Weights(query, valid, extra_valid, left, right, extra)
        for at, tile in enumerate(band.tiles()):
            own, grad_rows, keys = query[tile.rows], gradient[tile.rows], _join(extra_key, key, tile)
            weights = band.weights(tile, own, keys)
            mask = masks[at] if masks else None
            dropped = weights if mask is None else weights * mask
            grad_weights = torch.bmm(grad_rows, _join(extra_value, value, tile).mT, out=band.scores(tile))
            grad_scores = softmax_backward_(weights, grad_weights, mask)
            torch.baddbmm(own, grad_scores, keys, beta=0, alpha=scale, out=grad_query[tile.rows])
            _add_product(grad_value[tile.keys], dropped[..., extra:].mT, grad_rows, 1.0)
            _add_product(grad_key[tile.keys], grad_scores[..., extra:].mT, own, scale)
            if extra:
                _add_product(grad_extra_value[tile.sequences], dropped[..., :extra].mT, grad_rows, 1.0)
                _add_product(grad_extra_key[tile.sequences], grad_scores[..., :extra].mT, own, scale)
        grads = (grad_query, grad_key, grad_value, grad_extra_key, grad_extra_value)
        return *(grad.to(query.dtype) for grad in grads), None, None, None, None, None


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    extra_key: Tensor,
    extra_value: Tensor,
    valid: Tensor | None,
    extra_valid: Tensor | None,
    left: int,
    right: int,
) -> Tensor:
    return _attend([query, key, value, extra_key, extra_value], valid, extra_valid, left, right, 0.0).contiguous()


def _differentiate(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    extra_key: Tensor,
    extra_value: Tensor,
    valid: Tensor | None,
    extra_valid: Tensor | None,
    left: int,
    right: int,
) -> tuple[Tensor, ...]:
    given = [query, key, value, extra_key, extra_value]
    saved: Any = _joined(given, valid, extra_valid, left, right)
    context = SimpleNamespace(saved_tensors=saved, reach=(left, right))
    grads: Any = _Band.backward(context, gradient.reshape(saved[0].shape))
    return tuple(grad.reshape(x.shape).contiguous() for grad, x in zip(grads[: len(given)], given, strict=True))


_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor extra_key, Tensor extra_value, Tensor? valid, Tensor? extra_valid"
# Operators, because a graph with the loop over tiles would hold for one length, and take minutes to trace.
_band = custom_op("attn_zoo::band", _compute, mutates_args=(), schema=f"({_INPUTS}, SymInt left, SymInt right) -> Tensor")
_band_backward = custom_op(
    "attn_zoo::band_backward",
    _differentiate,
    mutates_args=(),
    schema=f"(Tensor gradient, {_INPUTS}, SymInt left, SymInt right) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_band.register_fake
def _(query: Tensor, *others: Any) -> Tensor:
    return query.new_empty(query.shape)


@_band_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, value, *others[:2]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, left, right = inputs
    ctx.save_for_backward(*tensors)
    ctx.reach = left, right


@once_differentiable
def _band_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_band_backward(gradient, *ctx.saved_tensors, *ctx.reach), None, None, None, None


_band.register_autograd(_band_gradients, setup_context=_save)


class _Tile(NamedTuple):
    """Slices of queries of some sequences of one example, and of the keys that any of them reaches."""

    sequences: tuple[int, slice]
    start: int
    end: int
    first: int
    last: int

    @property
    def rows(self) -> tuple[int, slice, slice]:
        """Index of the queries."""
        return *self.sequences, slice(self.start, self.end)

    @property
    def keys(self) -> tuple[int, slice, slice]:
        """Index of the keys."""
        return *self.sequences, slice(self.first, self.last)


class _Weights:
    """Softmax weights, tile by tile, in memory that all tiles use again."""

    def __init__(self, query: Tensor, valid: Tensor | None, extra_valid: Tensor | None, left: int, right: int, extra: int) -> None:
        self.shape, self.left, self.right, self.extra = query.shape, left, right, extra
        length, widest = query.shape[2], _widest(query.shape[2], left, right, extra)
        together = max(1, TILE // widest)
        self.together = math.ceil(query.shape[1] / math.ceil(query.shape[1] / together))
        self.rooms = [query.new_empty(self.together * widest) for _ in range(2)]
        rows = max(end - start for start, end, _, _ in spans(length, left, right))
        # Two corners of a tile are out of reach: keys too far to the left of the later queries, or to the right of the earlier.
        # Adding -inf there is several times faster than masked_fill.
        corner = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril(-1)
        self.corner, self.opposite = (query.new_zeros(rows, rows).masked_fill_(off, float("-inf")) for off in (corner, ~corner))
        self.hidden = None if valid is None or extra_valid is None else (~extra_valid, ~valid)

    def tiles(self) -> Iterator[_Tile]:
        """Return tiles of about ``TILE`` scores each."""
        examples, sequences, length, _ = self.shape
        for example in range(examples):
            for span in spans(length, self.left, self.right):
                for at in range(0, sequences, self.together):
                    yield _Tile((example, slice(at, min(sequences, at + self.together))), *span)

    def scores(self, tile: _Tile, which: int = 0) -> Float[Tensor, "sequences rows extra_keys"]:
        """Return a buffer, used again for each tile, with one number for each pair of query and key."""
        chosen = tile.sequences[1]
        shape = (chosen.stop - chosen.start, tile.end - tile.start, self.extra + tile.last - tile.first)
        return self.rooms[which][: math.prod(shape)].view(shape)

    def weights(self, tile: _Tile, query: Tensor, keys: Tensor) -> Float[Tensor, "sequences rows extra_keys"]:
        """Return the softmax weights over extra keys and keys in reach."""
        _, start, end, first, last = tile
        room = self.scores(tile)
        scores = torch.baddbmm(room, query, keys.mT, beta=0, alpha=query.shape[-1] ** -0.5, out=room)
        band = scores[..., self.extra :]
        far, near = end - 1 - self.left, start + self.right + 1
        if first < far:
            off = first - start + self.left
            band[..., : far - first].add_(self.corner[: end - start, off : off + far - first])
        if near < last:
            band[..., near - first :].add_(self.opposite[: end - start, : last - near])
        if self.hidden is None:
            return torch.softmax(scores, dim=-1, out=self.scores(tile, 1))
        extra, others = self.hidden
        return masked_softmax_(scores, torch.cat([extra[tile.sequences], others[tile.keys]], dim=-1)[:, None])


def _widest(length: int, left: int, right: int, extra: int) -> int:
    """Return the number of scores of the widest tile of one sequence."""
    return max((end - start) * (last - first + extra) for start, end, first, last in spans(length, left, right))


def _join(extra: Tensor, every: Tensor, tile: _Tile) -> Float[Tensor, "sequences extra_keys head_dim"]:
    """Concatenate extra keys or values with the keys or values in reach."""
    near = every[tile.keys]
    return torch.cat([extra[tile.sequences], near], dim=1) if extra.shape[2] else near


def _add_product(into: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Add a scaled product to ``into``, in the dtype of ``into``."""
    if into.dtype == left.dtype:
        torch.baddbmm(into, left, right, alpha=scale, out=into)
    else:
        into.add_(left @ right, alpha=scale)

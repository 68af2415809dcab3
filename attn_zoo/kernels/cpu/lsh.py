"""Attention within buckets of locality-sensitive hashes. Keys are normalised queries.

Each hash round sorts the positions into chunks. A query attends to its own chunk and to the chunk before. The outputs of all
rounds are averaged, with the sums of exponentials as weights, so the result is one softmax over the keys of all rounds. The
log-sum-exp of this softmax is saved, because the backward pass recomputes the weights from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.kernels.cpu._softmax import drop_, softmax_and_lse
from attn_zoo.kernels.cpu._tiling import like_tokens, rows_of_step, sequences
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys

SELF_SCORE = -1e5
"""Score of a position with itself. It is so low that a position attends to itself only if it sees no other key."""

HIDDEN = -1e30
"""Number that is added to the scores of hidden keys. These scores are then far below ``SELF_SCORE``, but do not overflow."""

SHORTEST = 1e-12
"""Lower bound of the norms by which queries are divided."""

ROWS = 1024
"""Number of positions that are hashed at once. Their products with the rotations must stay in the cache."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the weights of a chunk: which keys are masked, and the dropout."""

    causal: bool
    once: bool
    """If True, a key that a query sees in several rounds counts only in the first of these rounds."""
    dropout: float


def hash_tiled(
    x: Keys, rotations: Float[Tensor, "heads rounds head_dim columns"], radices: Sequence[int]
) -> Int[Tensor, "rounds batch heads n"]:
    """Return the number of the bucket of each position in each round. The number has one digit per radix. Each digit is the argmax
    over [x R; -x R], where the matrix R has radix / 2 columns of ``rotations``. Different digits use different columns.
    """
    if not radices:
        return x.new_zeros(rotations.shape[1], *x.shape[:3], dtype=torch.long)
    used = rotations.to(x.dtype).permute(0, 1, 3, 2)
    return torch.cat([_hash(rows, used, radices) for rows in x.split(ROWS, dim=2)], dim=3)


def _hash(
    x: Keys, used: Float[Tensor, "heads rounds columns head_dim"], radices: Sequence[int]
) -> Int[Tensor, "rounds batch heads n"]:
    heads, rounds, columns, _ = used.shape
    # Positions are the last axis: comparing directions elementwise is several times as fast as position by position.
    projected = torch.stack([used[head].flatten(0, 1) @ x[:, head].mT for head in range(heads)], dim=1)
    projected = projected.unflatten(2, (rounds, columns)).permute(2, 3, 0, 1, 4)
    codes, at = torch.zeros_like(projected[:, 0], dtype=torch.long), 0
    for factor in radices:
        part = projected[:, at : (at := at + factor // 2)]
        codes = codes * factor + _first_largest([*part.unbind(1), *part.neg().unbind(1)])
    return codes


def _first_largest(candidates: list[Tensor]) -> Int[Tensor, "..."]:
    """Return the elementwise argmax over the candidates, and the first of equal ones."""
    largest, which = candidates[0], torch.zeros_like(candidates[0])
    for at, candidate in enumerate(candidates[1:], 1):
        # In floating point throughout, for vectorisation; the last candidate that was larger has the highest index.
        which = torch.maximum(which, largest.clone().lt_(candidate).mul_(at))
        largest = torch.maximum(largest, candidate)
    return which.long()


def attend_buckets(
    query: Float[Tensor, "b h n d"],
    value: Float[Tensor, "b h n d"],
    position: Int[Tensor, "rounds b h slots"],
    slot: Int[Tensor, "rounds b h n"],
    before: Int[Tensor, "rounds b h chunks"],
    rule: Rule,
) -> Float[Tensor, "b h n d"]:
    """Return Σⱼ exp(qᵢ·kⱼ / √d) vⱼ / Σⱼ exp(qᵢ·kⱼ / √d) over all positions j that any round compares with i. A position j that
    several rounds compare with i counts once per round or, with ``rule.once``, only in the first of these rounds. Keys kⱼ are
    normalised queries. Outputs at padding are zero.

    Args:
        position, slot, before: the fields of ``buckets.Layout``.
    """
    dtype = autocast_dtype(query)
    with without_autocast(query.device):
        out: Tensor = _Buckets.run(query.to(dtype), value.to(dtype), position, slot, before, rule)
    return out


def buckets_flops(heads: int, rounds: int, chunks: int, chunk: int, head_dim: int) -> tuple[int, int]:
    """Return the FLOPs of ``attend_buckets`` for one example: those of the forward pass and those of the backward pass, which
    also recomputes the scores.
    """
    flops = 8 * heads * rounds * chunks * chunk * chunk * head_dim
    return flops, 5 * flops // 2


class _Buckets(OnceDifferentiable):
    """Autograd function of ``attend_buckets``. It handles some sequences at a time, round by round."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, value: Tensor, position: Tensor, slot: Tensor, before: Tensor, rule: Rule) -> Tensor:
        masks: list[Tensor] = []
        out, total = like_tokens(value), torch.empty(query.shape[:3], dtype=_precise(query), device=query.device)
        for which in _together(query):
            tokens = _Tokens(query[which], value[which], rule)
            rounds = [_attend_round(chunks, masks) for chunks in tokens.rounds(position, slot, before, which)]
            outputs, sums = zip(*rounds, strict=True)
            shares = torch.stack(sums)
            total[which] = shares.logsumexp(dim=0).view_as(total[which])
            mixed = torch.zeros_like(outputs[0])
            for share, output in zip(shares.softmax(dim=0).to(value.dtype), outputs, strict=True):
                mixed.addcmul_(share[:, None], output)
            out[which] = mixed.view_as(out[which])
        ctx.save_for_backward(query, value, position, slot, before, out, total, *masks)
        ctx.rule = rule
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, value, position, slot, before, out, total, *masks = ctx.saved_tensors
        grad_query, grad_value, in_order = like_tokens(query), like_tokens(value), iter(masks)
        with without_autocast(grad_out.device):
            for which in _together(query):
                tokens = _Tokens(query[which], value[which], ctx.rule)
                grads = _Gradients(tokens, grad_out[which], out[which], total[which])
                for at, chunks in enumerate(tokens.rounds(position, slot, before, which)):
                    grads.add_round(chunks, float(at == 0) if ctx.rule.once else 1 / len(position), in_order)
                grad_query[which] = grads.grad_query().view_as(grad_query[which])
                grad_value[which] = grads.grad_value.view_as(grad_value[which])
        return grad_query, grad_value, None, None, None, None


class _Tokens:
    """Table of normalised queries and values of some sequences, concatenated."""

    def __init__(self, query: Float[Tensor, "b h n d"], value: Float[Tensor, "b h n d"], rule: Rule) -> None:
        self.rule, self.n, self.d, precise = rule, query.shape[2], query.shape[3], _precise(query)
        self.length = torch.linalg.vector_norm(query, dim=-1, keepdim=True, dtype=precise).clamp_(min=SHORTEST)
        self.table = torch.cat([(query / self.length).to(query.dtype), value], dim=-1).flatten(0, 2)
        self.length = self.length.flatten(0, 2)
        self.scale = self.length * self.d**-0.5

    def rounds(self, position: Tensor, slot: Tensor, before: Tensor, which: tuple[slice, slice]) -> Iterator[_Chunks]:
        """Iterate over the rounds. Each is given as the chunks of these sequences."""
        earlier: list[tuple[Tensor, Tensor]] = []
        for places in zip(position, slot, before, strict=True):
            at, slots, previous = (indices[which].flatten(0, 1).long() for indices in places)
            chunks = _Chunks(self, at, slots, previous, earlier)
            yield chunks
            if self.rule.once:
                earlier = [*earlier, chunks.codes()]


class _Chunks:
    """Chunks of one round over all sequences, as row indices of the table."""

    def __init__(
        self,
        tokens: _Tokens,
        position: Int[Tensor, "s slots"],
        slot: Int[Tensor, "s n"],
        before: Int[Tensor, "s chunks"],
        earlier: list[tuple[Tensor, Tensor]],
    ) -> None:
        (s, count), n = before.shape, tokens.n
        sequence, here = torch.arange(s, device=before.device)[:, None], position.unflatten(1, (count, -1))
        self.tokens, self.earlier, self.chunk, self.count = tokens, earlier, here.shape[2], s * count
        # An extra empty chunk at the end serves as the previous chunk if a chunk has none, and holds the slots of padding.
        self.before = torch.where(before < 0, self.count, before + sequence * count).flatten()
        self.slot = torch.where(slot < position.shape[1], slot + sequence * position.shape[1], self.count * self.chunk).flatten()
        rows = torch.cat([here.flatten(0, 1), here.new_full((1, self.chunk), n)])
        keys = torch.cat([rows.index_select(0, self.before), rows[:-1]], dim=1)
        hidden = keys == n
        self.keys = keys.masked_fill_(hidden, 0) + (sequence * n).expand(s, count).reshape(-1, 1)
        self.own, self.empty = self.keys[:, self.chunk :], hidden[:, self.chunk :, None]
        self.shift = tokens.length.new_zeros(self.keys.shape).masked_fill_(hidden, HIDDEN)[:, None]
        self._slot, self._before = slot, before

    def steps(self) -> Iterator[_Step]:
        """Return slices of chunks, one per step."""
        widest = max(self.shift.element_size() * self.chunk, 2 * self.tokens.table.element_size() * self.tokens.d)
        return (_Step(self, rows) for rows in rows_of_step(self.count, 2 * self.chunk * widest, self.keys.device))

    def slots(self, dtype: torch.dtype, *, filled: bool) -> Float[Tensor, "chunks+1 c d"]:
        """Allocate a row for each slot, with zeros if ``filled``, and a last, empty chunk of zeros."""
        shape, device = (self.count + 1, self.chunk, self.tokens.d), self.keys.device
        if filled:
            return torch.zeros(shape, dtype=dtype, device=device)
        slots = torch.empty(shape, dtype=dtype, device=device)
        slots[-1] = 0
        return slots

    def codes(self) -> tuple[Float[Tensor, "sn"], Float[Tensor, "sn"]]:
        """Return indices of each position's chunk and of the chunk before it, as floating-point numbers, which compare faster."""
        count = self._before.shape[1]
        now = self._slot // self.chunk
        previous = self._before.gather(1, now.clamp(max=count - 1))
        return now.flatten().to(self.shift.dtype), previous.flatten().to(self.shift.dtype)


class _Step:
    """Queries, keys and values of some chunks of a round."""

    def __init__(self, chunks: _Chunks, rows: slice) -> None:
        tokens = chunks.tokens
        self.chunks, self.rows, self.rule = chunks, rows, tokens.rule
        self.own, self.keys = chunks.own[rows].flatten(), chunks.keys[rows].flatten()
        self.shape = chunks.keys[rows].shape
        found = tokens.table.index_select(0, self.keys).view(*self.shape, -1)
        self.unit, self.value = found.split(tokens.d, dim=-1)
        scale = tokens.scale.index_select(0, self.own).view(-1, chunks.chunk, 1)
        self.query = (self.unit[:, chunks.chunk :] * scale).to(found.dtype)

    def weights(self) -> tuple[Float[Tensor, "chunks c 2*c"], Float[Tensor, "chunks c 1"]]:
        """Return the softmax weights over the keys of the previous chunk and of the chunk itself, and the log-sum-exp of the
        scores.
        """
        c = self.chunks.chunk
        scores = _product(self.query, self.unit.mT, self.chunks.shift[self.rows])
        near = scores[..., c:]
        if self.rule.causal:  # slots are in the order of positions, with empty ones after valid ones
            near += torch.full((c, c), HIDDEN, dtype=scores.dtype, device=scores.device).triu_(1)
        near.diagonal(dim1=-2, dim2=-1).fill_(SELF_SCORE)
        for now, previous in self.chunks.earlier:
            theirs = now.index_select(0, self.keys).view(self.shape[0], 1, -1).expand_as(scores)
            for mine in (now, previous):
                seen = theirs.clone().eq_(mine.index_select(0, self.own).view(self.shape[0], -1, 1))
                scores.add_(seen, alpha=HIDDEN)
        return softmax_and_lse(scores)


def _attend_round(chunks: _Chunks, masks: list[Tensor]) -> tuple[Float[Tensor, "sn d"], Float[Tensor, "sn"]]:
    """Return the output of each position in one round, and the log-sum-exp. Dropout masks are appended to ``masks``."""
    normaliser = chunks.shift.new_zeros(chunks.count + 1, chunks.chunk, 1)
    out = chunks.slots(chunks.tokens.table.dtype, filled=False)
    for step in chunks.steps():
        weights, normaliser[step.rows] = step.weights()
        torch.bmm(drop_(weights, step.rule.dropout, masks).to(out.dtype), step.value, out=out[step.rows])
    return out.flatten(0, 1).index_select(0, chunks.slot), normaliser.flatten().index_select(0, chunks.slot)


class _Gradients:
    """Gradients of scaled queries, keys and values, summed by position over the rounds."""

    def __init__(self, tokens: _Tokens, grad_out: Tensor, out: Tensor, total: Tensor) -> None:
        self.tokens, self.grad_rows, self.total = tokens, grad_out.flatten(0, 2), total.flatten()
        self.mean = (grad_out * out).sum(dim=-1, dtype=total.dtype).flatten()
        self.grad_scaled, self.grad_unit, self.grad_value = (self.total.new_zeros(len(self.total), tokens.d) for _ in range(3))

    def add_round(self, chunks: _Chunks, share: float, masks: Iterator[Tensor]) -> None:
        """Add the gradients of one round. In it, a position that sees only itself has the weight ``share``."""
        total = self.total.index_select(0, chunks.own.flatten()).view_as(chunks.empty).masked_fill_(chunks.empty, -HIDDEN)
        alone = total < SELF_SCORE / 2
        scaled, unit, value = (chunks.slots(total.dtype, filled=added) for added in (False, True, True))
        for step in chunks.steps():
            weights, normaliser = step.weights()
            weights.mul_(normaliser.sub_(total[step.rows]).exp_().masked_fill_(alone[step.rows], share))
            found = self._of_step(step, weights, next(masks, None))
            scaled[step.rows] = found[0]
            for slots, grad_keys in zip((unit, value), found[1:], strict=True):
                # index_add_ takes ten times as long for a source that is not contiguous.
                slots.index_add_(0, chunks.before[step.rows], grad_keys[:, : chunks.chunk].contiguous().to(slots.dtype))
                slots[step.rows] += grad_keys[:, chunks.chunk :]
        for slots, by_position in ((scaled, self.grad_scaled), (unit, self.grad_unit), (value, self.grad_value)):
            by_position += slots.flatten(0, 1).index_select(0, chunks.slot)

    def _of_step(self, step: _Step, weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values from the weights over all rounds."""
        c, dtype = step.chunks.chunk, step.value.dtype
        grad_rows = self.grad_rows.index_select(0, step.own).view(-1, c, self.tokens.d)
        less = self.mean.index_select(0, step.own).neg_().view(-1, c, 1)
        if mask is None:
            grad_scores = _product(grad_rows, step.value.mT, less)
        else:
            grad_scores = torch.bmm(grad_rows, step.value.mT).to(weights.dtype).mul_(mask).add_(less)
        grad_scores = grad_scores.mul_(weights)
        grad_scores[..., c:].diagonal(dim1=-2, dim2=-1).zero_()  # the score of a position with itself is constant
        grad_scores, weights = grad_scores.to(dtype), (weights if mask is None else weights.mul_(mask)).to(dtype)
        return torch.bmm(grad_scores, step.unit), torch.bmm(grad_scores.mT, step.query), torch.bmm(weights.mT, grad_rows)

    def grad_query(self) -> Float[Tensor, "sn d"]:
        """Return the gradient of the queries, which are used twice: scaled by 1/√d and, normalised, as keys."""
        unit = self.tokens.table[:, : self.tokens.d]
        across = self.grad_unit - unit * (self.grad_unit * unit).sum(dim=-1, keepdim=True)
        return self.grad_scaled.mul_(self.tokens.d**-0.5) + across.div_(self.tokens.length)


def _product(left: Tensor, right: Tensor, shift: Tensor) -> Tensor:
    """Compute left @ right + shift in the dtype of ``shift``."""
    if left.dtype == shift.dtype:
        return torch.baddbmm(shift, left, right)
    return torch.bmm(left, right).to(shift.dtype).add_(shift)


def _together(query: Float[Tensor, "b h n d"]) -> Iterator[tuple[slice, slice]]:
    """Return slices of examples and heads that are computed together."""
    batch, heads, n, d = query.shape
    return sequences(batch, heads, n * d * query.element_size(), query.device)


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

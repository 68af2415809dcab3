"""Attention among positions that hashes put into the same bucket, with queries of length one as keys.

Every round sorts the positions into chunks, and a chunk meets itself and the one before it, some chunks in a step. Rounds are
averaged by their sums of exponentials, which makes them one softmax; for the gradient its log-sum-exp is kept, from which the
weights are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.kernels.cpu._softmax import dropout_mask, softmax_and_lse
from attn_zoo.kernels.cpu._tiling import like_tokens, rows_of_step, sequences
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys

SELF_SCORE = -1e5
"""Score of a position with itself: no weight beside any other key, all of it where there is none."""

HIDDEN = -1e30
"""Added to the scores of what is hidden: below ``SELF_SCORE`` by more than any score, and far from what overflows."""

SHORTEST = 1e-12
"""Least length that a query is divided by."""

ROWS = 1024
"""Positions hashed at once: their products are several times as long as they are, and soon forgotten."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Mask and dropout of a chunk's weights."""

    causal: bool
    once: bool
    """Whether a key that several rounds find counts in the first of them alone."""
    dropout: float


def hash_tiled(
    x: Keys, rotations: Float[Tensor, "heads rounds head_dim columns"], radices: Sequence[int]
) -> Int[Tensor, "rounds batch heads n"]:
    """Bucket of each position in each round: argmax over [x R; -x R], a digit for each radix, which uses half as many columns."""
    if not radices:
        return x.new_zeros(rotations.shape[1], *x.shape[:3], dtype=torch.long)
    used = rotations.to(x.dtype).permute(0, 1, 3, 2)
    return torch.cat([_hash(rows, used, radices) for rows in x.split(ROWS, dim=2)], dim=3)


def _hash(
    x: Keys, used: Float[Tensor, "heads rounds columns head_dim"], radices: Sequence[int]
) -> Int[Tensor, "rounds batch heads n"]:
    heads, rounds, columns, _ = used.shape
    # Positions last: numbers of one direction are compared all together, several times as fast as position by position.
    turned = torch.stack([used[head].flatten(0, 1) @ x[:, head].mT for head in range(heads)], dim=1)
    turned = turned.unflatten(2, (rounds, columns)).permute(2, 3, 0, 1, 4)
    codes, at = torch.zeros_like(turned[:, 0], dtype=torch.long), 0
    for factor in radices:
        part = turned[:, at : (at := at + factor // 2)]
        codes = codes * factor + _first_largest([*part.unbind(1), *part.neg().unbind(1)])
    return codes


def _first_largest(candidates: list[Tensor]) -> Int[Tensor, "..."]:
    """Number of the largest candidate, the first of equals, element by element."""
    largest, which = candidates[0], torch.zeros_like(candidates[0])
    for at, candidate in enumerate(candidates[1:], 1):
        # In floating point all the way, many numbers at a time; the last one that was larger has the highest number.
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
    """Σⱼ exp(qᵢ·kⱼ / √d) vⱼ over Σⱼ exp(qᵢ·kⱼ / √d), j over what each round shows position i; zeros for padding.

    Args:
        position: of each slot; n where it is empty.
        slot: of each position; behind all of them for padding.
        before: chunk before each one in the same bucket, or -1.
    """
    dtype = autocast_dtype(query)
    with without_autocast(query.device):
        out: Tensor = _Buckets.apply(query.to(dtype), value.to(dtype), position, slot, before, rule)
    return out


def buckets_flops(heads: int, rounds: int, chunks: int, chunk: int, head_dim: int) -> tuple[int, int]:
    """FLOPs of ``attend_buckets`` for one example, forward and backward: there scores anew, and each product's two factors."""
    flops = 8 * heads * rounds * chunks * chunk * chunk * head_dim
    return flops, 5 * flops // 2


class _Buckets(torch.autograd.Function):
    """``attend_buckets`` of some sequences at a time, one round after another."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, value: Tensor, position: Tensor, slot: Tensor, before: Tensor, rule: Rule) -> Tensor:
        masks: list[Tensor] = []
        out, total = like_tokens(value), torch.empty(query.shape[:3], dtype=_precise(query), device=query.device)
        for which in _together(query):
            tokens = _Tokens(query[which], value[which], rule)
            found = [_answer(chunks, masks) for chunks in tokens.rounds(position, slot, before, which)]
            answers, sums = zip(*found, strict=True)
            shares = torch.stack(sums)
            total[which] = shares.logsumexp(dim=0).view_as(total[which])
            mixed = torch.zeros_like(answers[0])
            for share, answer in zip(shares.softmax(dim=0).to(value.dtype), answers, strict=True):
                mixed.addcmul_(share[:, None], answer)
            out[which] = mixed.view_as(out[which])
        ctx.save_for_backward(query, value, position, slot, before, out, total, *masks)
        ctx.rule = rule
        return out

    @staticmethod
    @once_differentiable
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
    """Table of normalised queries and values of some sequences, one after another."""

    def __init__(self, query: Float[Tensor, "b h n d"], value: Float[Tensor, "b h n d"], rule: Rule) -> None:
        self.rule, self.n, self.d, precise = rule, query.shape[2], query.shape[3], _precise(query)
        self.length = torch.linalg.vector_norm(query, dim=-1, keepdim=True, dtype=precise).clamp_(min=SHORTEST)
        self.table = torch.cat([(query / self.length).to(query.dtype), value], dim=-1).flatten(0, 2)
        self.length = self.length.flatten(0, 2)
        self.scale = self.length * self.d**-0.5

    def rounds(self, position: Tensor, slot: Tensor, before: Tensor, which: tuple[slice, slice]) -> Iterator[_Chunks]:
        """Chunks of these sequences, round by round."""
        earlier: list[tuple[Tensor, Tensor]] = []
        for places in zip(position, slot, before, strict=True):
            at, slots, previous = (indices[which].flatten(0, 1).long() for indices in places)
            chunks = _Chunks(self, at, slots, previous, earlier)
            yield chunks
            if self.rule.once:
                earlier = [*earlier, chunks.codes()]


class _Chunks:
    """Chunks of one round, by rows of the table, all sequences beside each other."""

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
        # Behind all chunks is one of nothing: it is before those that have none before them, and there padding lies.
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
        """Chunks that are compared together."""
        widest = max(self.shift.element_size() * self.chunk, 2 * self.tokens.table.element_size() * self.tokens.d)
        return (_Step(self, rows) for rows in rows_of_step(self.count, 2 * self.chunk * widest, self.keys.device))

    def slots(self, dtype: torch.dtype, *, filled: bool) -> Float[Tensor, "chunks+1 c d"]:
        """A row for each slot, to be written if not ``filled`` with zeros, and behind them the chunk of nothing, of zeros."""
        shape, device = (self.count + 1, self.chunk, self.tokens.d), self.keys.device
        if filled:
            return torch.zeros(shape, dtype=dtype, device=device)
        slots = torch.empty(shape, dtype=dtype, device=device)
        slots[-1] = 0
        return slots

    def codes(self) -> tuple[Float[Tensor, "sn"], Float[Tensor, "sn"]]:
        """Number of each position's chunk and of the one before it, as floating point, which compares faster."""
        count = self._before.shape[1]
        now = self._slot // self.chunk
        previous = self._before.gather(1, now.clamp(max=count - 1))
        return now.flatten().to(self.shift.dtype), previous.flatten().to(self.shift.dtype)


class _Step:
    """Factors of the products of some chunks of a round, and their scores."""

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
        """Softmax over the keys of the chunk before and of its own, and the log-sum-exp of the scores."""
        c = self.chunks.chunk
        scores = _product(self.query, self.unit.mT, self.chunks.shift[self.rows])
        near = scores[..., c:]
        if self.rule.causal:  # slots are in the order of positions, and later ones than valid ones are all that is ever empty
            near += torch.full((c, c), HIDDEN, dtype=scores.dtype, device=scores.device).triu_(1)
        near.diagonal(dim1=-2, dim2=-1).fill_(SELF_SCORE)
        for now, previous in self.chunks.earlier:
            theirs = now.index_select(0, self.keys).view(self.shape[0], 1, -1).expand_as(scores)
            for mine in (now, previous):
                seen = theirs.clone().eq_(mine.index_select(0, self.own).view(self.shape[0], -1, 1))
                scores.add_(seen, alpha=HIDDEN)
        return softmax_and_lse(scores)


def _answer(chunks: _Chunks, masks: list[Tensor]) -> tuple[Float[Tensor, "sn d"], Float[Tensor, "sn"]]:
    """Average of the values of each position in one round, and the log-sum-exp; the dropout mask joins ``masks``."""
    normaliser = chunks.shift.new_zeros(chunks.count + 1, chunks.chunk, 1)
    answer = chunks.slots(chunks.tokens.table.dtype, filled=False)
    for step in chunks.steps():
        weights, normaliser[step.rows] = step.weights()
        if (mask := dropout_mask(weights, step.rule.dropout)) is not None:
            masks.append(mask)
            weights.mul_(mask)
        torch.bmm(weights.to(answer.dtype), step.value, out=answer[step.rows])
    return answer.flatten(0, 1).index_select(0, chunks.slot), normaliser.flatten().index_select(0, chunks.slot)


class _Gradients:
    """Sums by position of the gradients of scaled queries, keys and values."""

    def __init__(self, tokens: _Tokens, grad_out: Tensor, out: Tensor, total: Tensor) -> None:
        self.tokens, self.grad_rows, self.total = tokens, grad_out.flatten(0, 2), total.flatten()
        self.mean = (grad_out * out).sum(dim=-1, dtype=total.dtype).flatten()
        self.grad_scaled, self.grad_unit, self.grad_value = (self.total.new_zeros(len(self.total), tokens.d) for _ in range(3))

    def add_round(self, chunks: _Chunks, share: float, masks: Iterator[Tensor]) -> None:
        """Add the gradients of one round, in which the weight of a position that sees itself alone is ``share``."""
        total = self.total.index_select(0, chunks.own.flatten()).view_as(chunks.empty).masked_fill_(chunks.empty, -HIDDEN)
        alone = total < SELF_SCORE / 2
        scaled, unit, value = (chunks.slots(total.dtype, filled=added) for added in (False, True, True))
        for step in chunks.steps():
            weights, normaliser = step.weights()
            weights.mul_(normaliser.sub_(total[step.rows]).exp_().masked_fill_(alone[step.rows], share))
            found = self._of_step(step, weights, next(masks, None))
            scaled[step.rows] = found[0]
            for slots, grad_keys in zip((unit, value), found[1:], strict=True):
                # Where what is added is not in one piece, that takes ten times as long.
                slots.index_add_(0, chunks.before[step.rows], grad_keys[:, : chunks.chunk].contiguous().to(slots.dtype))
                slots[step.rows] += grad_keys[:, chunks.chunk :]
        for slots, by_position in ((scaled, self.grad_scaled), (unit, self.grad_unit), (value, self.grad_value)):
            by_position += slots.flatten(0, 1).index_select(0, chunks.slot)

    def _of_step(self, step: _Step, weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values from the weights over all rounds."""
        c, dtype = step.chunks.chunk, step.value.dtype
        grad_rows = self.grad_rows.index_select(0, step.own).view(-1, c, self.tokens.d)
        less = self.mean.index_select(0, step.own).neg_().view(-1, c, 1)
        if mask is None:
            grad_scores = _product(grad_rows, step.value.mT, less)
        else:
            grad_scores = torch.bmm(grad_rows, step.value.mT).to(weights.dtype).mul_(mask).add_(less)
        grad_scores = grad_scores.mul_(weights)
        grad_scores[..., c:].diagonal(dim1=-2, dim2=-1).zero_()  # no score with oneself depends on the query
        grad_scores, weights = grad_scores.to(dtype), (weights if mask is None else weights.mul_(mask)).to(dtype)
        return torch.bmm(grad_scores, step.unit), torch.bmm(grad_scores.mT, step.query), torch.bmm(weights.mT, grad_rows)

    def grad_query(self) -> Float[Tensor, "sn d"]:
        """Gradient of the queries, which enter scaled by 1/√d and, normalised, as keys."""
        unit = self.tokens.table[:, : self.tokens.d]
        across = self.grad_unit - unit * (self.grad_unit * unit).sum(dim=-1, keepdim=True)
        return self.grad_scaled.mul_(self.tokens.d**-0.5) + across.div_(self.tokens.length)


def _product(left: Tensor, right: Tensor, shift: Tensor) -> Tensor:
    """Their product and ``shift``, in the latter's type."""
    if left.dtype == shift.dtype:
        return torch.baddbmm(shift, left, right)
    return torch.bmm(left, right).to(shift.dtype).add_(shift)


def _together(query: Float[Tensor, "b h n d"]) -> Iterator[tuple[slice, slice]]:
    """Examples and heads that are taken together."""
    batch, heads, n, d = query.shape
    return sequences(batch, heads, n * d * query.element_size(), query.device)


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

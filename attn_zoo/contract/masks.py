"""Softmax and weighted means that leave out padded keys and, if causal, future keys. The softmax can have sinks (learned
scores that belong to no key).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.shapes import Keys, KeyValid, Queries

Sinks = Float[Tensor, "heads"] | None
"""Score of the sink of each head, or None without sinks. A sink adds a term to the denominator of the softmax, without a key or
value.
"""


def softmax_over_valid(
    scores: Float[Tensor, "... keys"], allowed: Bool[Tensor, "..."] | None, sinks: Sinks = None
) -> Float[Tensor, "... keys"]:
    """Return the softmax over the entries of the last axis that are ``allowed``. A row without allowed entries gets zeros.

    ``allowed`` broadcasts against ``scores``; None allows everything. Sinks are learned scores, one per head, that join the softmax
    but belong to no key. If sinks are given, the second axis of ``scores`` must be the heads, and the last axes of ``scores`` and
    ``allowed`` must have the same length.
    """
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(-1, *[1] * (scores.dim() - 2)).expand(*scores.shape[:-1], 1)
        allowed = None if allowed is None else F.pad(allowed, (0, 1), value=True)
        return softmax_over_valid(torch.cat([scores, sink], dim=-1), allowed)[..., :-1]
    if allowed is None:
        return scores.softmax(dim=-1)
    # The lowest finite number instead of -inf keeps a row that allows nothing free of NaN, in the gradient too.
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0)


def with_sink_token(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, sinks: Float[Tensor, "heads"]
) -> tuple[Queries, Keys, Keys, KeyValid]:
    """Return the inputs with one more token before the first position. Its value is zero, and every query gives it the score of
    the sink. A sink is a learned score in the softmax that belongs to no key.

    Heads become one channel wider. The new channel is 1 in queries, 0 in keys, and proportional to the sink in the key of the new
    token. Compute softmax attention with scores q·k / √(d + 1) over the returned inputs, and drop the first output and the last
    channel. The result is softmax attention with sinks over the given inputs.
    """
    wide = query.shape[-1] + 1
    query = F.pad(query * (wide / query.shape[-1]) ** 0.5, (0, 1, 1, 0), value=1.0)
    sink = F.pad((sinks.to(key.dtype) * wide**0.5)[None, :, None, None], (wide - 1, 0)).expand(len(key), -1, -1, -1)
    valid = None if key_valid is None else F.pad(key_valid, (1, 0), value=True)
    return query, torch.cat([sink, F.pad(key, (0, 1))], dim=2), F.pad(value, (0, 1, 1, 0)), valid


def allowed_pairs(
    query: Float[Tensor, "batch heads queries _"], key: Float[Tensor, "batch heads keys _"], key_valid: KeyValid, *, causal: bool
) -> Bool[Tensor, "#batch 1 _ keys"] | None:
    """Return a mask that is True if a query may see a key: the key is valid and, if ``causal``, not later than the query.
    Return None if all keys are visible.
    """
    allowed = None if key_valid is None else key_valid[:, None, None, :]
    if causal:
        past = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        allowed = past if allowed is None else past & allowed
    return allowed


def weighted_mean(sums: Float[Tensor, "..."], weights: Float[Tensor, "... 1"] | None = None) -> Float[Tensor, "..."]:
    """Return weighted sums divided by the sums of their weights. Return zeros if all weights are zero.

    If ``weights`` is None, the last column of ``sums`` holds the sums of weights. The divisor is at least the square root of the
    smallest normal number, so the gradient, which divides by the square of the divisor, stays finite.
    """
    if weights is None:
        sums, weights = sums[..., :-1], sums[..., -1:]
    # A sum of weights comes near the limit only in causal attention with inputs far from unit scale: if the largest feature of
    # the query is at an index at which no past key has its largest feature.
    return sums / weights.clamp(min=torch.finfo(weights.dtype).tiny ** 0.5)


def hide_rows_without_keys(
    out: Float[Tensor, "batch heads queries head_dim"], key_valid: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return the outputs, set to zero for each example whose keys are all padding."""
    if key_valid is None:
        return out
    return out.masked_fill(~key_valid.any(dim=-1)[:, None, None, None], 0)

"""Heavily compressed attention (HCA): Y = softmax(Q [K̃ ; K_near]ᵀ / √d) [Ṽ ; V_near], K̃ᵢ = Σⱼ softmaxⱼ(Zⱼ + Bⱼ) ⊙ Kⱼ, Z = K W.

An entry is a compressed key K̃ᵢ with its compressed value Ṽᵢ. Both are weighted sums over m tokens, with separate weights for each
channel. W and B are learned. K_near are the keys of a window around the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from attn_zoo.attention.low_rank._window import Few, naive_attention, window_attention, window_block, within
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, SinkOptions
from attn_zoo.contract.masks import softmax_over_valid
from attn_zoo.contract.options import WIDE, by_length, window_by_length
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class LengthOptions(SinkOptions, DropoutOptions):
    """Options of heavily compressed attention."""

    compress_rate: int = by_length("min(128, √n)", lambda g: min(128, math.isqrt(g.keys)))
    """m, the number of tokens that one entry compresses."""
    window: int = window_by_length()
    """Number of uncompressed keys in the window of a query, the query's own position included. It must be odd. If causal, the
    window ends at the query.
    """


def reach(geometry: Geometry, window: int, length: int) -> tuple[int, int]:
    """Return how many keys of a window lie on the left and on the right of its query. Both numbers are less than ``length``."""
    left, right = (window - 1, 0) if geometry.causal else (window // 2, window // 2)
    return min(left, length - 1), min(right, length - 1)


def cost(geometry: Geometry, options: LengthOptions) -> Cost:
    """Return the cost, with the FLOPs of the weights for compression, attention to the compressed entries, and attention to the
    window in blocks of queries.

    The state holds keys and values of the window and of complete entries. For the incomplete entry, it holds the sums of weights
    and the weighted sums so far.
    """
    n, m, inner = geometry.keys, options.compress_rate, geometry.inner_dim
    left, right = reach(geometry, options.window, n)
    block = window_block(left)
    rows = -(-n // block) * block
    flops = 2 * n * inner * geometry.head_dim + 4 * rows * (-(-n // m) + left + block + right) * inner
    parameters = inner * (geometry.head_dim + m) + geometry.heads * options.sinks
    near = geometry.cached_width()
    held = max(near * min(t, options.window) + inner * (2 * (t // m) + 3 * (t % m > 0)) for t in (n - 1, n))
    state = FLOAT * held if geometry.causal else None
    return Cost(flops, parameters, backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "length_compression",
    title="Heavily compressed attention (HCA)",
    paper="DeepSeek-AI 2026, arXiv:2606.19348 (DeepSeek-V4)",
    equation="Eq. 20 to 23 of Section 2.3.2",
    options=LengthOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^2 d / m + n w d + n d^2",
    memory="n^2 / m + n w + n d",
    cost=cost,
    variants={"four": {"compress_rate": 4, "window": 5}, "sinks": {"compress_rate": 8, "window": 9, "sinks": True}},
)
class LengthCompression(Attention[LengthOptions]):
    """Softmax attention to a window of keys and to compressed entries. Each entry is a weighted sum of m tokens, with weights that
    depend on their content.

    Paper: DeepSeek-AI 2026 (DeepSeek-V4), Section 2.3.2: heavily compressed attention, beside a sliding window.
    Symbols: m′ → compress_rate, W^Z → gate, B → position_bias, C^Comp → entries.
    Differs: every head has its own keys and values; in the paper all heads share one key, which is also the value. The same weights
        compress keys and values. Z is computed from the keys of a head; the paper computes it from the tokens. The paper's norms,
        rotary positions and grouped output projection are left out. If causal, a query sees an entry if none of the entry's tokens
        lies after the query, as in the paper. The bidirectional form is an addition: a query sees all entries, including a shorter
        last one. Padded tokens have no weight in an entry, and an entry of padding alone is never seen. Sinks (learned scores in
        the softmax that belong to no key) are an option here. B starts at zero.
    """

    saturates = WIDE

    def __init__(self, geometry: Geometry, options: LengthOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        h, d = geometry.heads, geometry.head_dim
        self.gate = nn.Parameter(torch.randn(h, d, d) * d**-0.5)
        self.position_bias = nn.Parameter(torch.zeros(h, options.compress_rate, d))
        self.sinks = nn.Parameter(torch.zeros(geometry.heads)) if options.sinks else None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: compress entry by entry by Eq. 20 to 23, then attend in one softmax to the entries and keys that a
        query sees.
        """
        n, m, causal = key.shape[2], self.options.compress_rate, self.geometry.causal
        valid, t = real_positions(query, key_valid), torch.arange(n, device=key.device)
        keys, values, seen = [], [], []
        for start in range(0, n, m):
            end = min(start + m, n)
            logits = key[:, :, start:end] @ self.gate + self.position_bias[:, : end - start]
            logits = logits.masked_fill(~valid[:, None, start:end, None], torch.finfo(logits.dtype).min)
            weights = logits.softmax(dim=2)
            keys.append((weights * key[:, :, start:end]).sum(dim=2))
            values.append((weights * value[:, :, start:end]).sum(dim=2))
            seen.append((t >= start + m - 1 if causal else t >= 0) & valid[:, start:end].any(dim=1, keepdim=True))
        few = Few(torch.stack(keys, dim=2), torch.stack(values, dim=2), torch.stack(seen, dim=-1)[:, None])
        left, _ = reach(self.geometry, self.options.window, n)
        near = within(n, left, valid, key.device)
        return naive_attention(query, key, value, near.tril() if causal else near, few, self.sinks)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: compress all groups of m tokens at once, then attend to the entries and, in blocks of queries, to the
        window.
        """
        valid = real_positions(query, key_valid)
        left, right = reach(self.geometry, self.options.window, key.shape[2])
        few = self.entries(query, key, value, valid)
        near, p = valid[:, None], self.dropout_rate
        return window_attention(query, key, value, near, few, left=left, right=right, dropout=p, sinks=self.sinks)

    def entries(self, query: Queries, key: Keys, value: Keys, valid: Bool[Tensor, "batch keys"]) -> Few:
        """Return the entries (compressed keys and values), and a mask that is True for each entry that a query sees."""
        m = self.options.compress_rate
        real = in_windows(valid[:, None, :, None], m)[:, 0, ..., 0]
        keys, values, logits = (in_windows(x, m) for x in (key, value, key @ self.gate.to(key.dtype)))
        keys, values = compress(logits + self.position_bias[:, None].to(key.dtype), real, keys, values)
        return Few(keys, values, seen_entries(real, m, key.shape[2], causal=self.geometry.causal))


def in_windows(x: Shaped[Tensor, "batch heads n w"], m: int) -> Shaped[Tensor, "batch heads windows m w"]:
    """Return ``x`` split along the length into windows of m tokens. The last window is filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % m)).unflatten(2, (-1, m))


def overlapping(
    before: Shaped[Tensor, "batch heads n w"], own: Shaped[Tensor, "batch heads n w"], m: int
) -> Shaped[Tensor, "batch heads windows slots w"]:
    """Return 2 m slots for each group of m tokens. The first m slots hold the rows of ``before`` for the previous group, or zeros
    for the first group. The last m slots hold the rows of ``own`` for the group itself.
    """
    return torch.cat([F.pad(in_windows(before, m), (0, 0, 0, 0, 1, 0))[:, :, :-1], in_windows(own, m)], dim=3)


def compress(logits: Tensor, real: Bool[Tensor, "batch windows slots"], *parts: Tensor) -> list[Tensor]:
    """Return the weighted sum of each tensor in ``parts`` over the slots of each window. The weights are the softmax of ``logits``
    over the slots that ``real`` marks.

    ``logits`` and each tensor in ``parts`` have shape (batch, heads, windows, slots, channels).
    """
    weights = softmax_over_valid(logits.mT, real[:, None, :, None]).mT
    return [(weights * part).sum(dim=3) for part in parts]


def seen_entries(real: Bool[Tensor, "batch windows slots"], m: int, n: int, *, causal: bool) -> Bool[Tensor, "batch 1 n windows"]:
    """Return a mask that is True for each entry that a query sees. An entry must hold a real token. If causal, the last position of
    the entry's window must not lie after the query.
    """
    seen = real.any(dim=-1)[:, None, None].expand(-1, -1, n, -1)
    if causal:
        end = torch.arange(1, real.shape[1] + 1, device=real.device) * m
        seen = seen & (end <= torch.arange(1, n + 1, device=real.device)[:, None])
    return seen

"""Compressed sparse attention (CSA): softmax attention to a window of keys and to compressed entries, as in HCA
(``length_compression``). Here, entries hold fewer tokens and overlap, and an indexer chooses k entries for each query.

Tokens are divided into groups of m. The entry of a group is a weighted sum over 2 m tokens: the m tokens of the group (Cᵇ), and a
linear map of the m tokens before the group (Cᵃ). The weights are softmax(Z + B) over these 2 m tokens. Z is a learned linear map of
the keys, and B is learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention.content._index import highest, index_loss, index_scores, side_by_side
from attn_zoo.attention.low_rank import length_compression as hca
from attn_zoo.attention.low_rank._window import Few, naive_attention, window_block, within
from attn_zoo.contract import FLOAT, AuxiliaryLoss, Capabilities, Cost, Geometry
from attn_zoo.contract.options import at_least, bounded, share_of_length
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(hca.LengthOptions):
    """Options of compressed sparse attention."""

    compress_rate: int = bounded(4)
    """m, the number of tokens in a group. The entry of a group compresses this group and the group before it."""
    kept: int = share_of_length(16, most=64, bound=at_least(1, "entries"))
    """k, the number of entries to which a query attends. If it sees fewer entries, it attends to all of them."""
    index_heads: int = bounded(4)
    """Number of index heads, the small heads whose scores choose the entries."""
    index_width: int = bounded(16)
    """Number of channels of an index head."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention to the window and to the entries, of the indexer, which chooses entries, and of
    the linear maps that compress tokens to entries. In the backward pass, the auxiliary loss needs the scores of all entries, and
    gives gradients to the maps of the indexer, but none to queries and keys.

    The state holds the keys and values of the window, and the keys, values and index keys of complete entries. For up to two
    incomplete entries, the state holds the sums of weights and the weighted sums so far.
    """
    n, m, inner, width = geometry.keys, options.compress_rate, geometry.inner_dim, options.index_width
    wide, entries = options.index_heads * width, -(-n // m)
    left, right = hca.reach(geometry, options.window, n)
    block = window_block(left)
    maps, near = 2 * n * inner * (wide + options.index_heads + 4 * width), 2 * n * wide * entries
    loss = 2 * n * entries * inner + maps + 2 * near
    trained = 8 * n * inner * geometry.head_dim + 4 * -(-n // block) * block * (entries + left + block + right) * inner
    parameters = inner * (4 * geometry.head_dim + 2 * m + wide + options.index_heads + 4 * width) + 2 * m * width
    parameters += geometry.heads * options.sinks
    cached = geometry.cached_width()
    held = max(
        cached * min(t, options.window) + (2 * inner + width) * (t // m) + (3 * inner + 2 * width) * ((t > 0) + (t % m > 0))
        for t in (n - 1, n)
    )
    state = FLOAT * held if geometry.causal else None
    return Cost(maps + near + trained, parameters, backward_flops=2 * trained + loss, state_bytes=state)


@register_attention(
    "sparse_compression",
    title="Compressed sparse attention (CSA)",
    paper="DeepSeek-AI 2026, arXiv:2606.19348 (DeepSeek-V4)",
    equation="Eq. 9 to 17 of Section 2.3.1",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, mixes_heads=True),
    time="n^2 d / m + n w d + n d^2",
    memory="n^2 / m + n w + n d",
    cost=cost,
    variants={"three": {"compress_rate": 3, "window": 5, "kept": 4, "index_heads": 2, "index_width": 5, "sinks": True}},
)
class SparseCompression(hca.LengthCompression):
    """Softmax attention to a window of keys, and to the k compressed entries that a small learned scorer ranks highest. Each entry
    is a weighted sum of 2 m tokens. All heads see the same entries.

    Paper: DeepSeek-AI 2026 (DeepSeek-V4), Section 2.3.1: compressed sparse attention and its lightning indexer.
    Symbols: m → compress_rate, k → kept, C^a, V^a and Z^a → the parameter ``before``, which maps the m tokens before a group; Z^b →
        gate; B → position_bias; K^IComp → index keys computed by index_key and index_gate (item 0 maps tokens in the group, item 1
        tokens before it); q^I and w → index_query and index_weight.
    Differs: the differences of ``length_compression`` apply, too. Cᵇ is the key or value of a token in the group itself. Cᵃ is a
        linear map of the key or value of a token before the group. The indexer reads the queries and keys of all heads. Scores of
        all entries are computed and masked. If index scores are equal, the first entry is chosen.
    Choice: a separate loss trains the indexer, as in the mechanism ``indexer``, but over the visible entries in place of the
        visible keys.
    """

    options: Options

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        h, d, inner = geometry.heads, geometry.head_dim, geometry.inner_dim
        m, width = options.compress_rate, options.index_width
        self.position_bias = nn.Parameter(torch.zeros(h, 2 * m, d))
        self.before = nn.Parameter(torch.randn(3, h, d, d) * d**-0.5)
        self.index_query = nn.Parameter(torch.randn(options.index_heads * width, inner) * inner**-0.5)
        self.index_weight = nn.Parameter(torch.randn(options.index_heads, inner) * inner**-0.5)
        self.index_key, self.index_gate = (nn.Parameter(torch.randn(2, width, inner) * inner**-0.5) for _ in range(2))
        self.index_bias = nn.Parameter(torch.zeros(2 * m, width))
        self.auxiliary = AuxiliaryLoss()

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: compute and score the compressed entries one by one, then attend in one softmax to the chosen entries
        and the keys in the window.
        """
        n, m, causal = key.shape[2], self.options.compress_rate, self.geometry.causal
        valid, t = real_positions(query, key_valid), torch.arange(n, device=key.device)
        rows, columns = (x.transpose(1, 2).flatten(2) for x in (query, key))
        keys, values, seen, index = [], [], [], []
        for start in range(0, n, m):
            now, past = slice(start, min(start + m, n)), slice(max(start - m, 0), start)
            slots = torch.tensor([*range(m - (past.stop - past.start), m + now.stop - start)], device=key.device)
            real = torch.cat([valid[:, past], valid[:, now]], dim=1)

            def summed(logits: Tensor, x: Tensor, real: Tensor = real) -> Tensor:
                low = torch.finfo(x.dtype).min
                return (logits.masked_fill(~real[:, None, :, None], low).softmax(dim=2) * x).sum(dim=2)

            logits = torch.cat([key[:, :, past] @ self.before[2], key[:, :, now] @ self.gate], dim=2) + self.position_bias[:, slots]
            keys.append(summed(logits, torch.cat([key[:, :, past] @ self.before[0], key[:, :, now]], dim=2)))
            values.append(summed(logits, torch.cat([value[:, :, past] @ self.before[1], value[:, :, now]], dim=2)))
            seen.append((t >= start + m - 1 if causal else t >= 0) & valid[:, now].any(dim=1, keepdim=True))
            gates, parts = (
                torch.cat([columns[:, past] @ maps[1].T, columns[:, now] @ maps[0].T], dim=1)[:, None]
                for maps in (self.index_gate, self.index_key)
            )
            entry = summed(gates + self.index_bias[slots], parts)
            near = torch.einsum("bnhw,bw->bnh", (rows @ self.index_query.T).unflatten(2, (-1, parts.shape[-1])), entry[:, 0])
            index.append((near.relu() * (rows @ self.index_weight.T)).sum(dim=-1))
        visible = torch.stack(seen, dim=-1)
        rank = torch.stack(index, dim=-1).masked_fill(~visible, -torch.inf).sort(dim=-1, descending=True, stable=True)
        chosen = visible & (rank.indices.argsort(dim=-1) < self.options.kept)
        near = within(n, hca.reach(self.geometry, self.options.window, n)[0], valid, key.device)
        few = Few(torch.stack(keys, dim=2), torch.stack(values, dim=2), chosen[:, None])
        return naive_attention(query, key, value, near.tril() if causal else near, few, self.sinks)

    def entries(self, query: Queries, key: Keys, value: Keys, valid: Bool[Tensor, "batch keys"]) -> Few:
        """Return the entries (compressed keys and values), and a mask that is True for each entry that a query attends to."""
        m, maps = self.options.compress_rate, self.before.to(key.dtype)
        real = hca.overlapping(valid[:, None, :, None], valid[:, None, :, None], m)[:, 0, ..., 0]
        keys = hca.overlapping(key @ maps[0], key, m)
        values = hca.overlapping(value @ maps[1], value, m)
        logits = hca.overlapping(key @ maps[2], key @ self.gate.to(key.dtype), m) + self.position_bias[:, None].to(key.dtype)
        few_keys, few_values = hca.compress(logits, real, keys, values)
        seen = hca.seen_entries(real[..., m:], m, key.shape[2], causal=self.geometry.causal)
        index = self._index(query, key, real, seen)
        if self.training:
            far = query.detach() @ few_keys.detach().mT * query.shape[-1] ** -0.5
            self.auxiliary.term = index_loss(index, far, seen, valid)
        return Few(few_keys, few_values, highest(index, self.options.kept)[:, None])

    def _index(
        self, query: Queries, key: Keys, real: Bool[Tensor, "batch windows slots"], seen: Bool[Tensor, "batch 1 n windows"]
    ) -> Float[Tensor, "batch n windows"]:
        """Return the index scores of the entries. Hidden entries get the lowest number of the dtype."""
        with without_autocast(query.device):  # so that the choice does not depend on autocast
            rows, columns = (side_by_side(x) for x in (query, key))
            mapped = ([columns[:, None] @ x.T for x in maps.to(rows.dtype)] for maps in (self.index_gate, self.index_key))
            gates, keys = (hca.overlapping(before, own, self.options.compress_rate) for own, before in mapped)
            (entries,) = hca.compress(gates + self.index_bias.to(rows.dtype), real, keys)
            queries, weights = (rows @ maps.to(rows.dtype).T for maps in (self.index_query, self.index_weight))
            index = index_scores(queries, entries[:, 0], weights)
            return index.masked_fill(~seen[:, 0], torch.finfo(index.dtype).min)

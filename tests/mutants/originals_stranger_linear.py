"""More sound attentions in the style of third-party code: recurrences, low rank, random features, hashing, and a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, by_length, softmax_over_valid
from attn_zoo.precision import without_autocast
from mutants.originals import NoOptions, original
from mutants.originals_stranger import CHUNK


@dataclass(frozen=True)
class Held:
    """State of a recurrence: the decayed sum of the outer products of the tokens read."""

    summed: Tensor
    position: int = 0

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes


def decayed_cost(geometry: Geometry, options: NoOptions, size: int = CHUNK) -> Cost:
    d, flops = geometry.head_dim, 0
    for start in range(0, geometry.keys, size):
        c = min(size, geometry.keys - start)
        flops += geometry.heads * (2 * c * d + 2 * c * c * (2 * d + 1) + 4 * c * d * (d + 1))
    state = 4 * geometry.inner_dim * (d + 1) if geometry.causal else None
    return Cost(flops * (1 if geometry.causal else 2), parameters=geometry.inner_dim + geometry.heads, state_bytes=state)


@original(
    "decayed",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=decayed_cost,
)
class Decayed(Attention):
    """Mean of values with weights φ(q)·φ(k) times the gates a = sigmoid(w·k + b) of all tokens between, by chunks with a carry."""

    SIZE = CHUNK

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.gate = nn.Parameter(torch.randn(geometry.heads, geometry.head_dim, 1) / geometry.head_dim**0.5)
        self.bias = nn.Parameter(torch.full((geometry.heads, 1, 1), 2.0))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        forward, _ = self.read(self.empty(value), query, key, value, key_valid)
        if self.geometry.causal:
            return forward
        valid = None if key_valid is None else key_valid.flip(1)
        backward, _ = self.read(self.empty(value), query.flip(2), key.flip(2), value.flip(2), valid)
        return forward + backward.flip(2)

    def empty(self, value: Tensor) -> Tensor:
        shape = (len(value), self.geometry.heads, self.geometry.head_dim, self.geometry.head_dim + 1)
        return torch.zeros(shape, dtype=torch.promote_types(value.dtype, torch.float32), device=value.device)

    def read(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        with without_autocast(value.device):
            dtype, outputs = summed.dtype, []
            logs = self.log_gates(key.to(dtype), key_valid)
            keys, values = self.phi(key.to(dtype), key_valid), F.pad(value.to(dtype), (0, 1), value=1.0)
            for chunk in zip(*(x.split(self.SIZE, dim=2) for x in (self.phi(query.to(dtype)), keys, values, logs)), strict=True):
                out, summed = self.chunk(summed, *chunk)
                outputs.append(out)
            return self.divided(torch.cat(outputs, dim=2)).to(value.dtype), summed

    def chunk(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the chunk and the sum after it; ``logs`` are log gates, (batch, heads, c, 1)."""
        total = logs.cumsum(dim=2)
        decays = (total - total.mT).tril().exp().tril()
        out = (query @ key.mT * decays) @ value + (query * total.exp()) @ summed
        last = total[:, :, -1:]
        return out, summed * last.exp() + (key * (last - total).exp()).mT @ value

    def phi(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        features = F.elu(x) + 1
        return features if valid is None else features * valid[:, None, :, None]

    def log_gates(self, key: Tensor, valid: Tensor | None) -> Tensor:
        logs = F.logsigmoid(key @ self.gate.to(key.dtype) + self.bias.to(key.dtype))
        return logs if valid is None else logs * valid[:, None, :, None]

    def divided(self, out: Tensor) -> Tensor:
        return out[..., :-1] / out[..., -1:].clamp(min=torch.finfo(out.dtype).tiny ** 0.5)

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Held:
        return Held(self.empty(torch.empty(batch, 0, dtype=dtype, device=device)))

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Held]:
        if len(state.summed) != len(value):
            raise ValueError(f"the state is of {len(state.summed)} examples, got {len(value)}")
        out, summed = self.read(state.summed, query, key, value, None)
        return out, Held(summed, state.position + value.shape[2])


@dataclass
class SegmentOptions:
    segments: int = by_length("min(32, n/4)", lambda g: max(1, min(32, g.keys // 4)))

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ValueError(f"segments are counted from 1; got {self.segments}")


def segmented_cost(geometry: Geometry, options: SegmentOptions) -> Cost:
    return Cost(4 * options.segments * (geometry.keys + geometry.queries) * geometry.inner_dim, parameters=0)


@original(
    "segmented",
    options=SegmentOptions,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=True),
    time="n m d",
    memory="n m",
    cost=segmented_cost,
    variants={"three": {"segments": 3}},
)
class Segmented(Attention):
    """Softmax attention to the means of keys and values over consecutive segments of the valid tokens."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        valid = torch.ones(len(key), key.shape[2], dtype=torch.bool, device=key.device) if key_valid is None else key_valid
        holds = self.segment(valid)[:, None] == torch.arange(self.options.segments, device=key.device)[:, None]
        holds = holds & valid[:, None]
        size = holds.sum(dim=-1, keepdim=True)
        means = (holds / size.clamp(min=1)).to(key.dtype)[:, None]
        scores = query @ (means @ key).mT * query.shape[-1] ** -0.5
        return softmax_over_valid(scores, (size[..., 0] > 0)[:, None, None]) @ (means @ value)

    def segment(self, valid: Tensor) -> Tensor:
        """Return the index of the segment of each token."""
        rank, count = valid.cumsum(dim=1) - 1, valid.sum(dim=1, keepdim=True)
        return torch.div(rank * self.options.segments, count.clamp(min=1), rounding_mode="floor")


@dataclass
class MixedOptions:
    block: int = 8

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block counts positions, so it is at least 1; got {self.block}")


def sorted_cost(geometry: Geometry, options: MixedOptions) -> Cost:
    slots = -(-geometry.keys // options.block) * options.block
    return Cost(2 * geometry.keys * geometry.inner_dim + 4 * slots * options.block * geometry.inner_dim, parameters=0)


@original(
    "sorted",
    options=MixedOptions,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True, random_at_build=True, shares_query_key=True),
    time="n b d + n log n",
    memory="n b + n d",
    cost=sorted_cost,
    reads=("query", "value"),
    variants={"small": {"block": 3}},
)
class Sorted(Attention):
    """Softmax attention within blocks of tokens that are neighbours in the order of a random projection."""

    plane: Tensor

    def __init__(self, geometry: Geometry, options: MixedOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("plane", torch.randn(geometry.head_dim, 1))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        block, n = self.options.block, query.shape[2]
        valid = torch.ones(len(query), n, dtype=torch.bool, device=query.device) if key_valid is None else key_valid
        height = (query @ self.plane.to(query.dtype))[..., 0].masked_fill(~valid[:, None], float("inf"))
        order = self.order(height)
        tokens, values = (self.blocks(x.gather(2, order[..., None].expand_as(x)), block) for x in (query, value))
        allowed = self.blocks(valid[:, None, :, None].expand(-1, order.shape[1], -1, -1).gather(2, order[..., None]), block).mT
        out = softmax_over_valid(tokens * query.shape[-1] ** -0.5 @ tokens.mT, allowed) @ values
        back = self.inverse(order)[..., None].expand_as(value)
        return out.flatten(2, 3).gather(2, back)

    def order(self, height: Tensor) -> Tensor:
        return height.argsort(dim=-1, stable=True)

    def inverse(self, order: Tensor) -> Tensor:
        return order.argsort(dim=-1)

    def blocks(self, x: Tensor, block: int) -> Tensor:
        return F.pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, block))

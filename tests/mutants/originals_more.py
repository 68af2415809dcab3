"""More sound attentions for mutants: of the zoo, a gated recurrence, chosen blocks, and a plane that turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo import card as card_of
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, softmax_over_valid
from mutants.originals import ORIGINALS, Hashed, NoOptions, Sums, original


def gated_cost(geometry: Geometry, options: NoOptions) -> Cost:
    state = 4 * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return Cost(flops=4 * geometry.queries * geometry.keys * geometry.inner_dim, parameters=0, state_bytes=state)


@original(
    "gated",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n^2 d",
    memory="n^2",
    cost=gated_cost,
)
class Gated(Attention):
    """Sₜ = gₜ Sₜ₋₁ + kₜ vₜᵀ, yₜ = Sₜᵀ qₜ / d, with gₜ the sigmoid of the key's mean plus 2; both ways without causality."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        sums = self.logs(key, key_valid).cumsum(dim=2)
        apart = (sums - sums.mT).tril()
        decay = apart.exp().tril()
        if not self.geometry.causal:
            before = sums - self.logs(key, key_valid)
            decay = decay + (before - before.mT).mT.triu().exp().triu()
        return (query / query.shape[-1] @ key.mT) * decay.to(query.dtype) @ value

    def logs(self, key: Tensor, key_valid: Tensor | None) -> Tensor:
        wide = key.to(torch.promote_types(key.dtype, torch.float32))
        logs = torch.nn.functional.logsigmoid(wide.mean(dim=-1, keepdim=True) + 2)
        return logs if key_valid is None else logs.masked_fill(~key_valid[:, None, :, None], 0)

    def definition(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        def scan(order: range) -> Tensor:
            state, found = torch.zeros_like(key.mT @ value), {}
            for t in order:
                state = gates[:, :, t, :, None] * state + key[:, :, t, :, None] * value[:, :, t, None, :]
                found[t] = (query[:, :, t, None, :] @ state)[:, :, 0] / query.shape[-1]
            return torch.stack([found[t] for t in range(len(order))], dim=2)

        n, gates = key.shape[2], self.logs(key, key_valid).exp()
        return scan(range(n)) if self.geometry.causal else scan(range(n)) + scan(range(n - 1, -1, -1))

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Sums:
        d = self.geometry.head_dim
        return Sums(torch.zeros(batch, self.geometry.heads, d, d, dtype=dtype, device=device))

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Sums]:
        if len(state.summed) != len(value):
            raise ValueError(f"the state is of {len(state.summed)} examples, got {len(value)}")
        summed, gates, found = state.summed, self.logs(key, None).exp().to(key.dtype), []
        for t in range(value.shape[2]):
            summed = gates[:, :, t, :, None] * summed + key[:, :, t, :, None] * value[:, :, t, None, :]
            found.append((query[:, :, t, None, :] @ summed)[:, :, 0] / query.shape[-1])
        return torch.stack(found, dim=2), replace(state, summed=summed, position=state.position + value.shape[2])


class Turning(Hashed):
    """``Hashed`` with a plane that every third training call turns towards the mean query, after the call."""

    calls: Tensor

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.written = ("plane", "calls")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        if self.training and self.is_due():
            self.turn(query.detach())
        return out

    def is_due(self) -> bool:
        self.calls += 1
        return bool(self.calls % 3 == 0)

    def turn(self, query: Tensor) -> None:
        self.plane = self.plane + 3 * query.mean(dim=(0, 1, 2))[:, None]


ORIGINALS["compressed"] = card_of("length_compression")
ORIGINALS["window"] = replace(card_of("local"), implementations=("eager",), variants={"neighbours": {"block": 4, "neighbours": 2}})
ORIGINALS["features"] = replace(card_of("performer"), implementations=("eager",))

Turning.card = ORIGINALS["turning"] = replace(ORIGINALS["hashed"], name="turning", title="turning", build=Turning)


@dataclass
class ChosenOptions:
    block: int = 6
    chosen: int = 2

    def __post_init__(self) -> None:
        if self.block < 1 or self.chosen < 1:
            raise ValueError(f"there is a token in a block and a block chosen or more; got {self.block} and {self.chosen}")


def chosen_cost(geometry: Geometry, options: ChosenOptions) -> Cost:
    n = geometry.keys
    blocks = -(-n // options.block)
    return Cost(flops=2 * n * (blocks + 2 * n) * geometry.inner_dim, parameters=0)


@original(
    "chosen",
    options=ChosenOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^2 d",
    memory="n^2",
    cost=chosen_cost,
    variants={"three": {"block": 4, "chosen": 3}},
)
class Chosen(Attention):
    """Softmax attention to the own block and to the others (causal: earlier ones) of the highest products with their mean key."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        n = key.shape[2]
        at = torch.arange(n, device=key.device) // self.options.block
        valid = torch.ones(len(key), n, dtype=torch.bool, device=key.device) if key_valid is None else key_valid
        with torch.no_grad():
            gate, own = self.gates(query, key, valid, at)
            best = gate.masked_fill(own, torch.inf).topk(min(self.options.chosen, gate.shape[-1]), dim=-1)
            taken = torch.zeros_like(gate, dtype=torch.bool).scatter(3, best.indices, best.values > -torch.inf)
        allowed = taken[..., at] & valid[:, None, None]
        allowed = allowed.tril() if self.geometry.causal else allowed
        return softmax_over_valid(query @ key.mT / query.shape[-1] ** 0.5, allowed) @ value

    def gates(self, query: Tensor, key: Tensor, valid: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate of each query and block, and the mask of a query's own block."""
        z = torch.arange((key.shape[2] - 1) // self.options.block + 1, device=key.device)
        own = at[:, None] == z
        count = (own * valid[..., None]).sum(dim=1)[:, None, None]
        sums = key.new_zeros(*key.shape[:2], len(z), key.shape[3]).index_add(2, at, key)
        gate = query @ (sums / count.mT.clamp(min=1)).mT
        return gate.masked_fill(~self.visible(count, z, at[:, None]), -torch.inf), own

    def visible(self, count: Tensor, z: Tensor, own: Tensor) -> Tensor:
        """Mask of the other blocks z that a query of block ``own`` may choose, by the number of their real tokens."""
        return (count > 0) & (z < own if self.geometry.causal else z != own)

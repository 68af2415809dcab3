"""More sound attentions for mutants: of the zoo, a plane that turns, and chosen blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attn_zoo import card as card_of
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, softmax_over_valid
from mutants.originals import ORIGINALS, Hashed, NoOptions, original


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
ORIGINALS["gated"] = replace(card_of("retention"), implementations=("eager",), variants={"raw": {"normalise": False}})
ORIGINALS["gating"] = replace(card_of("gated_linear"), implementations=("eager",), variants={})
ORIGINALS["features"] = replace(card_of("performer"), implementations=("eager",))
ORIGINALS["indexed"] = card_of("indexer")

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

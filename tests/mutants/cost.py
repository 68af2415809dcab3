"""Mutants whose cost differs from that on the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear import linear
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import Cost, Geometry, Growth
from mutants.entering import breaks, plant
from mutants.originals import ORIGINALS

EXACT, STATE = "cost_formula_is_exact", "state_bytes_are_needed_and_enough"


def stating(original: str, **figures: Callable[[Geometry, Cost], Any]) -> Callable[[Geometry, Any], Cost]:
    """Return the cost of an original with other figures, each a function of the geometry and of the right cost."""

    def cost(geometry: Geometry, options: Any) -> Cost:
        right = ORIGINALS[original].cost(geometry, options)
        return replace(right, **{name: of(geometry, right) for name, of in figures.items()})

    return cost


def state_of(tensors: float, causal: bool = True) -> Callable[[Geometry, Any], Cost]:
    """Return the cost of softmax with a cache of some tensors like the keys."""

    def state(geometry: Geometry, right: Cost) -> int | None:
        return int(tensors * 4 * geometry.keys * geometry.inner_dim) if geometry.causal or not causal else None

    return stating("softmax", state_bytes=state)


plant("HidesParameters", "linformer", EXACT, "states 0 parameters", cost=stating("linformer", parameters=lambda *_: 0))
HALVED = stating("softmax", backward_flops=lambda _, right: right.flops)
plant("HalvesItsBackward", "softmax", EXACT, "backward FLOPs, but PyTorch counts", cost=HALVED)
plant("LacksOneKeyOfFive", "softmax", STATE, "depend on 40 independent numbers", cost=state_of(1.8))
plant("CachesQueriesToo", "softmax", STATE, "because later outputs depend only on key, value", cost=state_of(3))
plant("StateWithoutOrder", "softmax", STATE, "must be None if attention is not causal", cost=state_of(2, causal=False))
plant("LinearInName", "softmax", "time_grows_as_printed", "FLOPs grow like n^2.00", time=Growth("n d"))


@breaks("shapes_flow_without_numbers", "softmax", "does not run on the meta device")
def peeping(attend, self, query, key, value, key_valid):
    """Branches on the values of its inputs."""
    return attend(query, key, value if value.sum() > 0 else value * 1, key_valid)


@breaks("time_grows_as_printed", "linear", "numbers written grow like n^")
class QuadraticSums(Linear):
    """Forms all pairs block by block without a matrix product, so that no FLOPs are counted."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        pairs = torch.stack([(query - key[:, :, j : j + 1]).sum(dim=(2, 3)) for j in range(0, key.shape[2], 16)]).sum(dim=0)
        return super().attend(query, key, value, key_valid) + 0 * pairs[..., None, None]


WITH_TILES: dict[str, Any] = {"implementations": ("eager", "tiled"), "cost": linear.cost}


@breaks("time_grows_as_printed", "linear", "eager, causal=False: FLOPs grow like n^", **WITH_TILES)
class QuadraticBesideItsTiles(Linear):
    """Compares all pairs block by block in ``eager``, while the card counts the ``tiled`` form, which does not."""

    attend_tiled = Linear.attend

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        pairs = torch.stack([(query @ rows.mT).sum(dim=-1) for rows in key.split(16, dim=2)]).sum(dim=0)
        return super().attend(query, key, value, key_valid) + 0 * pairs[..., None]


@breaks("time_grows_as_printed", "linear", "eager, causal=False: numbers written grow like n^", **WITH_TILES)
class QuadraticSumsBesideItsTiles(QuadraticSums):
    """Forms all pairs in ``eager`` alone, without a matrix product."""

    attend_tiled = Linear.attend


@breaks("memory_grows_as_printed", "linear", "bytes of the largest tensor at")
class FormsAllPairs(Linear):
    """Allocates queries × keys always, as a public BigBird does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        weights = torch.zeros(query.shape[2], key.shape[2], dtype=query.dtype)
        return super().attend(query, key, value, key_valid) + weights[0, 0]


@breaks("memory_grows_as_printed", "linear", "eager, causal=False: bytes of the largest tensor at", **WITH_TILES)
class FormsAllPairsBesideItsTiles(FormsAllPairs):
    """Allocates queries × keys in ``eager`` alone."""

    attend_tiled = Linear.attend

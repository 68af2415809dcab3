"""Mutants whose cost differs from that on the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear import linear
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.contract import Cost, Geometry, Growth
from mutants.entering import breaks
from mutants.originals import ORIGINALS, PlainSoftmax


def half_cost(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["softmax"].cost(geometry, options), flops=2 * geometry.queries * geometry.keys * geometry.inner_dim)


@breaks("cost_formula_is_exact", "softmax", "FLOPs, but PyTorch counts", cost=half_cost)
class CountsHalf(PlainSoftmax):
    """Counts a multiply-add as one FLOP."""


def hidden_parameters(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["linformer"].cost(geometry, options), parameters=0)


@breaks("cost_formula_is_exact", "linformer", "the card states 0 parameters", cost=hidden_parameters)
class HidesParameters(Linformer):
    """Does not count its parameters, which grow with the length."""


def backward_as_forward(geometry: Geometry, options: Any) -> Cost:
    cost = ORIGINALS["softmax"].cost(geometry, options)
    return replace(cost, backward_flops=cost.flops)


@breaks("cost_formula_is_exact", "softmax", "backward FLOPs, but PyTorch counts", cost=backward_as_forward)
class HalvesItsBackward(PlainSoftmax):
    """Counts one of the two gradients of each product in the backward pass."""


def state_of(tensors: float) -> Callable[[Geometry, Any], Cost]:
    def cost(geometry: Geometry, options: Any) -> Cost:
        state = int(tensors * 4 * geometry.keys * geometry.inner_dim)
        return replace(ORIGINALS["softmax"].cost(geometry, options), state_bytes=state if geometry.causal else None)

    return cost


@breaks("state_bytes_are_needed_and_enough", "softmax", "depend on 40 independent numbers", cost=state_of(1))
class CachesKeysOnly(PlainSoftmax):
    """States a cache of the keys without the values."""


@breaks("state_bytes_are_needed_and_enough", "softmax", "depend on 40 independent numbers", cost=state_of(1.8))
class ForgetsTheFirst(PlainSoftmax):
    """States a cache that lacks the key of one of five tokens."""


@breaks("state_bytes_are_needed_and_enough", "softmax", "because later outputs depend only on key, value", cost=state_of(3))
class CachesQueriesToo(PlainSoftmax):
    """States a cache that holds queries as well."""


def always(geometry: Geometry, options: Any) -> Cost:
    return replace(ORIGINALS["softmax"].cost(geometry, options), state_bytes=8 * geometry.keys * geometry.inner_dim)


@breaks("state_bytes_are_needed_and_enough", "softmax", "state_bytes must be None if attention is not causal", cost=always)
class StateWithoutOrder(PlainSoftmax):
    """States a cache without causality, where every token sees all others."""


@breaks("shapes_flow_without_numbers", "softmax", "does not run on the meta device")
def peeping(attend, self, query, key, value, key_valid):
    """Branches on the values of its inputs."""
    return attend(query, key, value if value.sum() > 0 else value * 1, key_valid)


@breaks("time_grows_as_printed", "softmax", "FLOPs grow like n^2.00", time=Growth("n d"))
class LinearInName(PlainSoftmax):
    """Claims a growth of time that its own cost formula contradicts."""


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


@breaks("memory_grows_as_printed", "linear", "the largest tensor grows like n^")
class FormsAllPairs(Linear):
    """Allocates queries × keys always, as a public BigBird does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        weights = torch.zeros(query.shape[2], key.shape[2], dtype=query.dtype)
        return super().attend(query, key, value, key_valid) + weights[0, 0]


@breaks("memory_grows_as_printed", "linear", "eager, causal=False: the largest tensor grows like n^", **WITH_TILES)
class FormsAllPairsBesideItsTiles(FormsAllPairs):
    """Allocates queries × keys in ``eager`` alone."""

    attend_tiled = Linear.attend

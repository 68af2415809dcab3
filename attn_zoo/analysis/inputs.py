"""Queries, keys and values on which mechanisms are compared. They are random, or captured from a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import Geometry, UnsupportedError


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInputs:
    """Queries Q, keys K and values V of one attention layer, after the projections and the split into heads of width d. For these
    inputs, softmax attention computes softmax(Q Kᵀ / √d) V."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys head_dim"]
    key_valid: Bool[Tensor, "batch keys"] | None = None
    """True for a real token."""
    causal: bool = False

    @property
    def geometry(self) -> Geometry:
        """Sizes of a mechanism for these inputs: number of heads, head width, numbers of queries and keys, and causality."""
        _, heads, queries, head_dim = self.query.shape
        return Geometry(heads, head_dim, queries, self.key.shape[2], self.causal)

    @property
    def query_valid(self) -> Bool[Tensor, "batch queries"] | None:
        """Mask of queries that are real tokens: the mask of the keys if there are as many queries as keys. Otherwise it is None,
        which means that all queries are real."""
        return self.key_valid if self.query.shape[2] == self.key.shape[2] else None

    def double(self) -> AttentionInputs:
        """Return a copy of the inputs in float64."""
        return replace(self, query=self.query.double(), key=self.key.double(), value=self.value.double())

    def sequence(self, at: int) -> AttentionInputs:
        """Return the inputs of the sequence with the index ``at``, as a batch of one."""
        valid = None if self.key_valid is None else self.key_valid[at : at + 1]
        parts = {name: getattr(self, name)[at : at + 1] for name in ("query", "key", "value")}
        return replace(self, **parts, key_valid=valid)


def random_inputs(
    sequences: int, heads: int, length: int, head_dim: int, *, scale: float = 1.0, seed: int = 0, causal: bool = False
) -> AttentionInputs:
    """Return queries, keys and values from independent normal distributions. Values have variance 1. Queries and keys have
    variance ``scale``, so the scores q·k / √d have standard deviation ``scale``, where d is the width of a head.

    Raises:
        ValueError: a size is below 1, or the scale is not positive and finite.
    """
    for name, size in {"sequences": sequences, "heads": heads, "length": length, "head_dim": head_dim}.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, because it is a count; got {size}")
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"scale must be positive, because it is the standard deviation of the scores; got {scale}")
    generator = torch.Generator().manual_seed(seed)
    shape = (sequences, heads, length, head_dim)
    query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
    return AttentionInputs(query * scale**0.5, key * scale**0.5, value, causal=causal)


def gather(batches: Sequence[Sequence[AttentionInputs]]) -> list[AttentionInputs]:
    """Return the inputs of each layer, joined over all batches. ``batches[b][i]`` holds the inputs of layer i for batch b.

    Raises:
        UnsupportedError: layers or batches differ in heads, lengths or causality.
    """
    kinds = {(layer.geometry, layer.value.shape[-1]) for batch in batches for layer in batch}
    if len(kinds) != 1 or len({len(batch) for batch in batches}) != 1:
        shapes = sorted({str(geometry) for geometry, _ in kinds})
        raise UnsupportedError(
            "all layers and sequences must have the same number of heads and the same lengths; got "
            f"{' and '.join(shapes) or 'no layer'}"
        )
    gathered = []
    for layers in zip(*batches, strict=True):
        parts = {name: torch.cat([getattr(layer, name) for layer in layers]) for name in ("query", "key", "value")}
        gathered.append(AttentionInputs(**parts, key_valid=_join_valid(layers), causal=layers[0].causal))
    return gathered


def _join_valid(layers: Sequence[AttentionInputs]) -> Tensor | None:
    if all(layer.key_valid is None for layer in layers):
        return None
    return torch.cat([torch.ones(x.key.shape[::2], dtype=torch.bool) if x.key_valid is None else x.key_valid for x in layers])

"""Queries, keys and values on which mechanisms are compared, and functions that run any mechanism on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import Attention, Geometry, UnsupportedError
from attn_zoo.registry import build_attention


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

    def double(self) -> AttentionInputs:
        """Return a copy of the inputs in float64."""
        return replace(self, query=self.query.double(), key=self.key.double(), value=self.value.double())

    def sequences(self, rows: slice) -> AttentionInputs:
        """Return the inputs of some of the sequences."""
        valid = None if self.key_valid is None else self.key_valid[rows]
        return replace(self, query=self.query[rows], key=self.key[rows], value=self.value[rows], key_valid=valid)


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
    """Return the inputs of each layer, joined over all batches. ``batches[b][i]`` holds the inputs of layer i for batch b, without
    padding.

    Raises:
        UnsupportedError: layers or batches differ in heads, lengths or causality, or there are not as many queries as keys.
    """
    kinds = {layer.geometry for batch in batches for layer in batch}
    if len(kinds) != 1 or len({len(batch) for batch in batches}) != 1:
        raise UnsupportedError(
            "all layers and sequences must have the same number of heads and the same lengths; got "
            f"{' and '.join(sorted(map(str, kinds))) or 'no layer'}"
        )
    (geometry,) = kinds
    if geometry.queries != geometry.keys:
        raise UnsupportedError(
            f"there must be as many queries as keys (self-attention); got {geometry.queries} queries and {geometry.keys} keys"
        )
    gathered = []
    for layers in zip(*batches, strict=True):
        parts = {name: torch.cat([getattr(layer, name) for layer in layers]) for name in ("query", "key", "value")}
        gathered.append(AttentionInputs(**parts, causal=geometry.causal))
    return gathered


def build_layers(
    name: str, layers: Sequence[AttentionInputs], options: Mapping[str, Any], seed: int = 0
) -> tuple[list[Attention], bool]:
    """Return one mechanism per layer, and True if building them drew random numbers. The mechanisms are in float64 and evaluation
    mode. They share weights as they would in the layers of one model. PyTorch's global random generator is left unchanged.

    Args:
        name: name of the mechanism.
        layers: inputs of each layer. Their shapes determine the sizes of a mechanism.

    Raises:
        UnknownNameError: no such mechanism or option.
        ValueError, UnsupportedError: the mechanism cannot be built with these options for these inputs.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        built = [build_attention(name, layer.geometry, **options) for layer in layers]
        drawn = not torch.equal(before, torch.get_rng_state())
        for mechanism in built:
            mechanism.check_stack(built)
        for at, mechanism in enumerate(built):
            mechanism.join(at, built)
    return [mechanism.eval().double() for mechanism in built], drawn


@torch.no_grad()
def attend(mechanism: Attention, inputs: AttentionInputs) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return the output of a mechanism for ``inputs``, which must have the dtype of the mechanism. No gradients are recorded.

    Queries or keys that the mechanism does not use are left out. If the mechanism requires the same tensor as queries and keys,
    it gets the queries for both. Each additional input (stream) is computed from the queries, keys or values, as in a newly built
    layer.

    Raises:
        UnsupportedError: the mechanism does not support these inputs, such as padding or fewer queries than keys.
    """
    card = mechanism.card
    tied = card.can.shares_query_key
    own = {"query": inputs.query, "key": inputs.query if tied else inputs.key, "value": inputs.value}
    streams = {
        stream.name: stream.of_channels(own[stream.starts_as][:, :, : stream.first])
        for stream in card.streams(mechanism.geometry, mechanism.options)
    }
    query = inputs.query if "query" in card.reads else None
    key = inputs.key if "key" in card.reads and not tied else None
    return mechanism(query, key, inputs.value, key_valid=inputs.key_valid, streams=streams)


def described(inputs: Mapping[str, Any]) -> str:
    """Return a description in one line of inputs that ``attn-zoo analyze`` recorded."""

    def counted(count: int, word: str) -> str:
        return f"{count} {word}{'s' * (count > 1)}"

    sequences, tokens = counted(inputs["sequences"], "sequence"), f"{inputs['length']} tokens"
    heads = f"{counted(inputs['heads'], 'head')} of width {inputs['head_dim']}{', causal' * inputs['causal']}"
    if inputs["name"] == "random":
        return f"random normal inputs, scores with standard deviation {inputs['scale']:g}: {sequences}, {tokens}, {heads}"
    heads = heads if tokens in inputs["data"] else f"{tokens}, {heads}"
    layers = counted(inputs["layers"], "layer")
    return f"{inputs['name']}, weights {inputs['weights']}, {layers}: {sequences} of {inputs['data']}; {heads}"

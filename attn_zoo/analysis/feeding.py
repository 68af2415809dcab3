"""Functions that run any mechanism on given queries, keys and values, as an attention layer does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.contract import Attention, UnsupportedError
from attn_zoo.registry import build_attention


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
    own = {"query": inputs.query, "key": inputs.query if card.can.shares_query_key else inputs.key, "value": inputs.value}
    reads = {name: tensor if name in card.reads else None for name, tensor in own.items()}
    streams = {}
    for stream in card.streams(mechanism.geometry, mechanism.options):
        if inputs.query.shape[2] != inputs.key.shape[2] and (stream.of == "queries") != (stream.starts_as == "query"):
            raise UnsupportedError(
                f"{card.name} needs as many queries as keys, because its input {stream.name!r} has one vector for each of the "
                f"{stream.of} and starts as a copy of the {stream.starts_as}. Give inputs with as many queries as keys"
            )
        streams[stream.name] = stream.of_channels(own[stream.starts_as][:, :, : stream.first])
    query, key = reads["query"], None if card.can.shares_query_key else reads["key"]
    return mechanism(query, key, inputs.value, key_valid=inputs.key_valid, streams=streams)

"""Functions that run any mechanism on given queries, keys and values, in the way an attention layer does."""

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
    """Return one mechanism per layer, and whether building them drew random numbers. The mechanisms are in float64 and evaluation
    mode, and they are connected as in a model.

    PyTorch's global generator is left unchanged.

    Args:
        name: name of the mechanism.
        layers: inputs of each layer, whose sizes decide the geometry.

    Raises:
        UnknownNameError: no such attention or option.
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
    """Return the output of a mechanism for inputs that have its dtype.

    Inputs that the mechanism does not read are left out. If its queries and keys are the same tensor, the queries are used for
    both. Each additional input (stream) is the projection that it is initialised from.

    Raises:
        UnsupportedError: the mechanism lacks a capability that the inputs need.
    """
    card = mechanism.card
    own = {"query": inputs.query, "key": inputs.query if card.can.shares_query_key else inputs.key, "value": inputs.value}
    reads = {name: tensor if name in card.reads else None for name, tensor in own.items()}
    streams = {}
    for stream in card.streams(mechanism.geometry, mechanism.options):
        if inputs.query.shape[2] != inputs.key.shape[2] and (stream.of == "queries") != (stream.starts_as == "query"):
            raise UnsupportedError(
                f"{card.name} needs a {stream.starts_as} for each token of its {stream.of}, which cross-attention does not "
                "have; give inputs with as many queries as keys"
            )
        streams[stream.name] = own[stream.starts_as][:, :, : stream.first]
    query, key = reads["query"], None if card.can.shares_query_key else reads["key"]
    return mechanism(query, key, inputs.value, key_valid=inputs.key_valid, streams=streams)

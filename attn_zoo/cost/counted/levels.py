"""What a mechanism, a layer or a block costs, by formula and by PyTorch's counters, without computing a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from attn_zoo.contract import Attention, AttentionCard, Cost, Geometry, choose_implementation
from attn_zoo.cost.counted.counter import Tally, as_on_a_cpu, kept_bytes, tally
from attn_zoo.cost.counted.formulas import block_cost, layer_cost
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, build_attention, card

Level = Literal["mechanism", "layer", "block"]
LEVELS: tuple[Level, ...] = get_args(Level)

ON_SHAPES = ("eager", "tiled")
"""Implementations that run on the ``meta`` device."""

QUANTITIES = ("flops", "backward_flops", "parameters", "activation_bytes", "state_bytes")


@dataclass(frozen=True, slots=True)
class Counts:
    """The five counts of one example in float32, as ``Cost`` defines them. None is unknown; for the state, also none at all."""

    flops: int | None = None
    backward_flops: int | None = None
    parameters: int | None = None
    activation_bytes: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts from two sources."""

    formula: Counts
    pytorch: Counts

    def shown(self, quantity: str) -> int | None:
        """One of ``QUANTITIES``: the formula's, and PyTorch's where there is no formula."""
        stated, found = getattr(self.formula, quantity), getattr(self.pytorch, quantity)
        return found if stated is None else stated

    def disagreements(self) -> dict[str, tuple[int, int]]:
        """By quantity what the formula says and what PyTorch counts, where both speak and differ."""
        pairs = {name: (getattr(self.formula, name), getattr(self.pytorch, name)) for name in QUANTITIES}
        return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is counted: self-attention over ``length`` tokens. ``mlp_ratio`` is a block's MLP over ``dim``."""

    length: int
    dim: int
    heads: int
    causal: bool = False
    mlp_ratio: float = 2.0

    @property
    def geometry(self) -> Geometry:
        """As a mechanism sees it."""
        return Geometry(self.heads, self.dim // self.heads, self.length, self.length, self.causal)


def count_level(
    level: Level, attention: str, options: Mapping[str, Any], sizes: Sizes, *, implementation: str = "eager"
) -> Counted:
    """Count a mechanism, a layer around it or a block around that.

    Args:
        implementation: a name on the card; ``auto`` is what a CPU takes.

    FLOPs and parameters are those of the implementation that the card counts, activation bytes those of ``implementation``, which
    have no formula. PyTorch counts on shapes, on the ``meta`` device; fused attention as it is on a CPU. For kernels on CUDA
    tensors it counts no activation bytes.

    Raises:
        UnknownNameError: no such attention, option or implementation.
        UnsupportedError: the mechanism does not claim what is asked, or its options or implementation refuse these sizes.
        ValueError: an option breaks its rule.
    """
    if implementation == "auto":
        chosen = attention_options(card(attention), sizes.geometry, options)
        implementation = choose_implementation(card(attention), sizes.geometry, chosen, torch.device("cpu"))
    with torch.device("meta"):
        asked = _make(level, attention, options, sizes, implementation)  # refuses what cannot be, whatever is counted
        form = card(attention).counted_implementation
        counted = asked if implementation == form else _make(level, attention, options, sizes, form)
        f, parameters = _formula(counted, sizes), sum(p.numel() for p in counted.parameters())
        found = _tally(counted, sizes)
        own = found if counted is asked else _tally(asked, sizes) if implementation in ON_SHAPES else None
    if implementation == "sdpa":
        with as_on_a_cpu(asked):
            own = _tally(asked, sizes)
    kept = None if own is None else own.kept_bytes
    return Counted(
        Counts(f.flops, f.backward_flops, f.parameters, None, f.state_bytes),
        Counts(found.flops, found.backward_flops, parameters, kept)
        if found
        else Counts(parameters=parameters, activation_bytes=kept),
    )


def activation_bytes(entry: AttentionCard, geometry: Geometry, options: Any, implementation: str = "auto") -> int | None:
    """Bytes that autograd keeps of a mechanism from the forward pass of one example for the backward pass, counted on shapes.

    Args:
        implementation: a name on the card; ``auto`` is what a CPU takes.

    Returns:
        Whole storages, each once, without those of inputs, parameters and buffers. None where shapes alone tell nothing, or the
        implementation needs a GPU.
    """
    if implementation == "auto":
        implementation = choose_implementation(entry, geometry, options, torch.device("cpu"))
    if implementation not in (*ON_SHAPES, "sdpa"):
        return None
    with torch.device("meta"):
        mechanism = entry.build(geometry, options, implementation).eval()
    with as_on_a_cpu(mechanism) if implementation == "sdpa" else torch.device("meta"):
        inputs, call = inputs_and_call(mechanism)
        try:
            _, kept = kept_bytes(call, [*inputs, *mechanism.parameters(), *mechanism.buffers()])
        except (NotImplementedError, RuntimeError):
            return None
    return kept


def _make(level: Level, attention: str, options: Mapping[str, Any], sizes: Sizes, implementation: str) -> nn.Module:
    """Build on the device of the moment."""
    if level == "mechanism":
        return build_attention(attention, sizes.geometry, implementation=implementation, **options).eval()
    layer = MultiHeadAttention(
        sizes.dim,
        sizes.heads,
        attention,
        length=sizes.length,
        causal=sizes.causal,
        implementation=implementation,
        **dict(options),
    )
    return layer.eval() if level == "layer" else Block(sizes.dim, sizes.mlp_ratio, 0.0, layer).eval()


def _formula(module: nn.Module, sizes: Sizes) -> Cost:
    if isinstance(module, Attention):
        return module.card.cost(sizes.geometry, module.options)
    if isinstance(module, Block):
        hidden = module.mlp[0]
        assert isinstance(hidden, nn.Linear)
        return block_cost(module.attention, hidden.out_features)
    assert isinstance(module, MultiHeadAttention)
    return layer_cost(module)


def _tally(module: nn.Module, sizes: Sizes) -> Tally | None:
    """PyTorch's count on the device of the moment; None of an attention of which shapes alone tell nothing."""
    if isinstance(module, Attention):
        inputs, call = inputs_and_call(module)
    else:
        tokens = torch.empty(1, sizes.length, sizes.dim, requires_grad=True)
        rest = (None,) if isinstance(module, Block) else ()  # no padding
        inputs, call = (tokens,), lambda: module(tokens, *rest)
    try:
        return tally(call, [*inputs, *module.parameters(), *module.buffers()])
    except (NotImplementedError, RuntimeError):
        return None


def inputs_and_call(mechanism: Attention, batch: int = 1) -> tuple[tuple[Tensor, ...], Callable[[], Tensor]]:
    """Inputs such as the card asks for, without numbers, and the call with them."""
    entry, g = mechanism.card, mechanism.geometry

    def empty(length: int) -> Tensor:
        return torch.empty(batch, g.heads, length, g.head_dim, requires_grad=True)

    lengths = {"query": g.queries, "key": g.keys, "value": g.keys}
    given = {name: empty(length) for name, length in lengths.items() if name in entry.reads}
    if entry.can.shares_query_key:
        given["key"] = given["query"]
    streams = {}
    for stream in entry.streams(g, mechanism.options):
        length = g.queries if stream.of == "queries" else g.keys
        streams[stream.name] = empty(length if stream.first is None else min(stream.first, length))
    value = given["value"] if "value" in given else empty(g.keys)
    return (*given.values(), *streams.values()), lambda: mechanism(
        given.get("query"), given.get("key"), value, streams=streams or None
    )

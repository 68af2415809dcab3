"""What Linformer and its kin have in common: options, maps along the length, sharing over heads and layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT, INDEX
from attn_zoo.attention.low_rank._dense_maps import LearnedMap, RandomMap
from attn_zoo.attention.low_rank._length_maps import LengthMap, MapShape, Projection
from attn_zoo.attention.low_rank._window_maps import ConvolutionMap, MaxMap, MeanMap
from attn_zoo.contract import Attention, CompressingAttention, Cost, Geometry, UnsupportedError

LENGTH_MAPS: dict[Projection, type[LengthMap]] = {
    Projection.learned: LearnedMap,
    Projection.random: RandomMap,
    Projection.mean: MeanMap,
    Projection.max: MaxMap,
    Projection.convolution: ConvolutionMap,
}


class Sharing(Enum):
    """What has a projection of its own (Wang et al. 2020, Section 4). For 12 layers of 12 heads: 288, 24, 12 or 1 matrices."""

    none = "none"
    """Each head has an E and an F."""
    headwise = "headwise"
    """Each layer has an E and an F."""
    key_value = "key_value"
    """Each layer has an E, which is also its F."""
    layerwise = "layerwise"
    """There is one E for keys and values of all layers, once ``join_layers`` has been called; until then as key_value."""


@dataclass
class LowRankOptions:
    """Options of every attention over projected keys."""

    projected_length: int = 8
    """k, the number of projected keys."""
    projected_lengths: str = ""
    """Uneven k, which takes the place of ``projected_length``: layers separated by ``/``, heads by ``+``: 64/32, 8+4/4+2."""
    sharing: Sharing = Sharing.headwise
    projection: Projection = Projection.learned
    frozen: bool = False
    """Keep E and F as they are while the rest trains."""
    allow_full_rank: bool = False
    """Accept as many projected keys as keys, which costs more than softmax attention; for comparing the two exactly."""

    def __post_init__(self) -> None:
        self.sharing, self.projection = Sharing(self.sharing), Projection(self.projection)
        if self.projected_length < 1:
            raise ValueError(f"projected_length counts projected keys, so it is at least 1; got {self.projected_length}")
        for layer in (layers := self.layers()):
            if len(layer) > 1 and self.sharing is not Sharing.none:
                raise ValueError(
                    f"projected_lengths={self.projected_lengths!r} gives heads different lengths, which they can only have with "
                    f"sharing=none; got sharing={self.sharing.value}"
                )
        if len(layers) > 1 and self.sharing is Sharing.layerwise:
            raise ValueError(f"sharing=layerwise is one projection for all layers, got lengths by layer {self.projected_lengths!r}")

    def layers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer named, or once for all, the lengths of its heads, or one for all."""
        if not self.projected_lengths:
            return ((self.projected_length,),)
        return tuple(tuple(_length(k, self) for k in layer.split("+")) for layer in str(self.projected_lengths).split("/"))

    @property
    def roles(self) -> int:
        """Two where F differs from E."""
        return 2 if self.sharing in (Sharing.none, Sharing.headwise) else 1


def map_shapes(geometry: Geometry, options: LowRankOptions) -> tuple[tuple[tuple[int, ...], MapShape], ...]:
    """Heads that have one projected length, and what their map is made for, from the shortest length to the longest.

    Raises:
        ValueError: ``projected_lengths`` names another number of heads.
    """
    lengths = options.layers()[0]
    if len(lengths) == 1:
        lengths *= geometry.heads
    if len(lengths) != geometry.heads:
        raise ValueError(
            f"projected_lengths={options.projected_lengths!r} names {len(lengths)} heads, the layer has {geometry.heads}; "
            "name each, or give one length for all"
        )
    groups = []
    for k in sorted(set(lengths)):
        heads = tuple(h for h, own in enumerate(lengths) if own == k)
        copies = len(heads) if options.sharing is Sharing.none else 1
        groups.append((heads, MapShape(geometry.keys, k, options.roles, copies, len(heads), geometry.head_dim)))
    return tuple(groups)


Compare = Callable[[int, int, bool], Cost]
"""Cost of comparing the queries of so many heads with so many projected keys, which are kept anyway or not; no parameters."""


def low_rank_cost(geometry: Geometry, options: LowRankOptions, compare: Compare, *, keeps_queries: bool = True) -> Cost:
    """Mapping keys and values along the length, then ``compare``: all heads, group by group of one projected length.

    Kept where there are several groups: the indices that pick their heads, and with ``keeps_queries`` what they pick.
    """
    kind, shapes = LENGTH_MAPS[options.projection], [shape for _, shape in map_shapes(geometry, options)]
    compared = [compare(shape.heads, kind.results(shape), kind.keeps_results) for shape in shapes]
    split = len(shapes) > 1
    picked = split * (4 * INDEX * geometry.heads + FLOAT * keeps_queries * geometry.queries * geometry.inner_dim)

    def kept(implementation: str) -> int:
        how = {"frozen": options.frozen, "copied": split, "kernels": implementation == "triton"}
        mapped = sum(kind.kept_bytes(shape, **how) for shape in shapes)
        return picked + mapped + sum(cost.activation_bytes[implementation] for cost in compared)

    return Cost(
        flops=sum(map(kind.flops, shapes)) + sum(cost.flops for cost in compared),
        parameters=sum(map(kind.parameter_count, shapes)),
        backward_flops=sum(kind.backward_flops(shape, frozen=options.frozen) for shape in shapes)
        + sum(cost.backward_flops or 0 for cost in compared),
        activation_bytes={implementation: kept(implementation) for implementation in compared[0].activation_bytes},
    )


class LowRankAttention(CompressingAttention):
    """An attention that compares queries with keys projected along the length, and so costs n k instead of n².

    Subclasses write ``attend_compressed``. Causality is out of reach: every projected key mixes all positions.
    """

    options: LowRankOptions

    def __init__(self, geometry: Geometry, options: LowRankOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self._owner: tuple[LowRankAttention, ...] = ()  # a tuple, so that the owner's weights are not stored here as well
        self._joined = len(options.layers()) == 1
        self.own_maps = self._make_maps()

    @property
    def maps(self) -> Sequence[LengthMap]:
        """The maps along the length, one for each projected length; those of the first layer where layers share."""
        owner = self._owner[0] if self._owner else self
        return list(owner.own_maps)  # type: ignore[arg-type]  # a ModuleList forgets what it holds

    def _make_maps(self) -> nn.ModuleList:
        groups = map_shapes(self.geometry, self.options)
        self.head_groups = tuple(heads for heads, _ in groups)
        for _, shape in groups:
            self._refuse_full_rank(shape.projected, shape.length)
        kind = LENGTH_MAPS[self.options.projection]
        maps = nn.ModuleList(kind(shape, kernels=self.implementation == "triton") for _, shape in groups)
        return maps.requires_grad_(not self.options.frozen)

    def _refuse_full_rank(self, k: int, n: int) -> None:
        if k >= n and not self.options.allow_full_rank:
            raise UnsupportedError(
                f"{self.card.name}.projected_length={k} is not below the {n} keys, so it would cost more than softmax attention; "
                f"choose at most {n - 1} or use attention=softmax"
            )

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many projected keys as keys, which ``allow_full_rank`` accepts."""
        k, n = max(k for layer in options.layers() for k in layer), geometry.keys
        return (f"projected_length={k} is no fewer than the {n} keys: nothing is compressed",) if k >= n else ()

    def check_stack(self, stack: Sequence[Attention]) -> None:
        """Refuse a stack in which what this layer shares, or has a number in, makes no sense.

        Raises:
            ValueError: ``projected_lengths`` names another number of layers.
            UnsupportedError: layers that share differ in options or shape, or share with others already.
        """
        named, shares = len(self.options.layers()), self.options.sharing is Sharing.layerwise
        if named == 1 and not shares:
            return
        for at, other in enumerate(stack):
            if other.options != self.options or (shares and other.geometry != self.geometry):
                raise UnsupportedError(
                    f"{self.card.name}: layers joined under sharing={self.options.sharing.value}, "
                    f"projected_lengths={self.options.projected_lengths!r} are built alike; layer {at} is {other.options}, "
                    f"{other.geometry}, another {self.options}, {self.geometry}; call join_layers for each stack of its own"
                )
        if named not in (1, len(stack)):
            raise ValueError(
                f"projected_lengths={self.options.projected_lengths!r} names {named} layers, the model has {len(stack)}; "
                "name each, or give one for all"
            )
        if self._owner and (self is stack[0] or self._owner[0] is not stack[0]):
            raise UnsupportedError(
                f"{self.card.name}: a layer shares its projection with another stack already; call join_layers once for each "
                "stack, or build the model anew"
            )

    def join(self, layer: int, stack: Sequence[Attention]) -> None:
        """Take the projected lengths of this layer, and the first layer's E where all layers share it."""
        layers, first = self.options.layers(), stack[0]
        assert isinstance(first, LowRankAttention)
        if len(layers) > 1:
            self.options = replace(self.options, projected_lengths="+".join(map(str, layers[layer])))
            self.own_maps, self._joined = self._make_maps(), True
        if self.options.sharing is Sharing.layerwise and layer > 0:
            self._owner, self.own_maps = (first,), nn.ModuleList()

    def __deepcopy__(self, memo: dict[int, Any]) -> LowRankAttention:
        """A copy of a whole stack shares as the stack does; a layer copied alone takes a copy of the shared E as its own."""
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        alone = bool(self._owner) and id(self._owner[0]) not in memo
        held = {name: value for name, value in self.__dict__.items() if not (alone and name == "_owner")}
        new.__dict__.update(copy.deepcopy(held, memo))
        if alone:
            new._owner = ()
            new.own_maps = copy.deepcopy(self._owner[0].own_maps, memo)
        return new

    def resize_length(self, length: int) -> None:
        """Interpolate E and F to another number of keys, so that a slowly varying sequence is projected to what it was.

        Raises:
            UnsupportedError: a projected length is not below ``length``.
        """
        resized = self.geometry_at(length)
        for map_ in self.maps:
            self._refuse_full_rank(map_.shape.projected, length)
        for map_ in self.maps:
            if map_.shape.length != length:  # another layer may have resized what it shares
                map_.resize(length)
        self.geometry = resized

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Padding is folded in: the contract hands over zeros at padded keys, and E 0 = 0."""
        self._require_ready()
        if len(self.head_groups) == 1:
            return self._attend_group(self.maps[0], query, key, value, key_valid)
        parts = [
            self._attend_group(map_, query[:, heads], key[:, heads], value[:, heads], key_valid)
            for heads, map_ in zip(self.head_groups, self.maps, strict=True)
        ]
        order = torch.tensor([h for heads in self.head_groups for h in heads], device=query.device).argsort()
        return torch.cat(parts, dim=1)[:, order]

    attend_tiled = attend

    def _attend_group(self, map_: LengthMap, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        projected_key, projected_value = map_.project(key, value, key_valid)
        return self.attend_compressed(query, projected_key, projected_value, map_.valid(key_valid))

    def compressed_length(self) -> int | None:
        """k where heads share a projection that is linear and alike in all channels; else None."""
        if len(self.head_groups) > 1:
            return None
        map_ = self.maps[0]
        possible = map_.compression_flops(map_.shape, 1, 1, 1) is not None
        return map_.results(map_.shape) if possible else None

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """Where E is F, tokens that are keys and values at once are compressed once."""
        map_ = self.maps[0]
        flops = map_.compression_flops(map_.shape, length, width, inputs)
        assert flops is not None, "compressed_length() says whether tokens can be compressed"
        return flops

    def compress(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]]:
        """E X and F X."""
        self._require_ready()
        return self.maps[0].compress(tokens, key_valid)

    def compress_and_weigh(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """E X and F X, E 1 and F 1, the ones at real tokens."""
        self._require_ready()
        return self.maps[0].compress_and_weigh(tokens, key_valid)

    def compressed_valid(self, key_valid: Bool[Tensor, "batch keys"] | None) -> Bool[Tensor, "batch r"] | None:
        """Windows that hold a real token; None where every projected key is a mixture of all tokens."""
        return self.maps[0].valid(key_valid)

    def _require_ready(self) -> None:
        if not self._joined:
            raise UnsupportedError(
                f"{self.card.name}.projected_lengths={self.options.projected_lengths!r} names layers, and this one does not know "
                "which it is; call attn_zoo.join_layers(model) after building the model"
            )
        if (held := self.maps[0].shape.length) != self.geometry.keys:
            raise UnsupportedError(
                f"{self.card.name}: the projection that layers share is for {held} keys by now, this layer for "
                f"{self.geometry.keys}; call resize_length on every layer"
            )


def _length(text: str, options: LowRankOptions) -> int:
    if not (text.isascii() and text.strip().isdigit()) or int(text) < 1:
        raise ValueError(
            f"projected_lengths is whole numbers of at least 1, layers separated by '/' and heads by '+', such as 8+4/4+2; "
            f"got {options.projected_lengths!r}"
        )
    return int(text)

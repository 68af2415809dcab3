"""E and F: the projections along the length by which Linformer and its kin make keys and values few, and their sharing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import Attention, CompressingAttention, Cost, Geometry, UnsupportedError, by_length, real_tokens
from attn_zoo.kernels.cpu import projection


class Projection(Enum):
    """How n tokens become few (Wang et al. 2020, Section 4)."""

    learned = "learned"
    """A learned r × n matrix."""
    random = "random"
    """The same matrix as drawn, never trained (Johnson and Lindenstrauss)."""
    mean = "mean"
    """Averages of windows of n / k tokens."""
    max = "max"
    """Maxima of the same windows, channel by channel."""
    convolution = "convolution"
    """A convolution whose kernel and stride are the window, over the channels of a head."""


class Sharing(Enum):
    """Sharing of the projections (Wang et al. 2020, Section 4). For 12 layers of 12 heads: 288, 24, 12 or 1 matrices."""

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

    projected_length: int = by_length("min(256, n/4)", lambda g: max(1, min(256, g.keys // 4)))
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
        layers = [layer.split("+") for layer in str(self.projected_lengths).split("/")]
        if not all(k.isascii() and k.strip().isdigit() and int(k) > 0 for layer in layers for k in layer):
            raise ValueError(
                f"projected_lengths is whole numbers of at least 1, layers separated by '/' and heads by '+', such as 8+4/4+2; "
                f"got {self.projected_lengths!r}"
            )
        return tuple(tuple(map(int, layer)) for layer in layers)


@dataclass(frozen=True, slots=True)
class MapShape:
    """``length`` tokens to ``projected`` or a few less, for ``heads`` heads.

    ``roles`` is 2 where F differs from E, ``copies`` the number of heads that have a map of their own: all, or 1 for all.
    """

    length: int
    projected: int
    roles: int
    copies: int
    heads: int
    head_dim: int

    @property
    def window(self) -> int:
        """Tokens that a windowed map takes together."""
        return math.ceil(self.length / self.projected)


class LengthMap(nn.Module):
    """A map of keys and values along the length, n tokens to r.

    Padded tokens hold zeros when they come here. Fewer tokens than n stand at the front, and the rest counts as padding.
    """

    def __init__(self, shape: MapShape, implementation: str = "eager") -> None:
        super().__init__()
        self.shape, self.implementation = shape, implementation

    def project(
        self,
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads r head_dim"], Float[Tensor, "batch heads r head_dim"]]:
        """E K and F V of all heads. Overridden by every map."""
        raise NotImplementedError(f"{type(self).__name__} has no method project")

    def compress(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]]:
        """E X and F X of tokens that are no keys and values yet, where the map is linear, alike in all channels and heads.

        Overridden where ``compression_flops`` is not None.
        """
        raise UnsupportedError(f"{type(self).__name__} maps keys and values alone; project tokens first")

    def compress_and_weigh(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """``compress``, and what it makes of a one at each real token."""
        return self.compress(tokens, key_valid), self.compress(real_tokens(tokens, key_valid), key_valid)

    def valid(self, key_valid: Bool[Tensor, "batch keys"] | None) -> Bool[Tensor, "batch r"] | None:
        """Which results hold at least one real token; None where all do."""
        return None

    def resize(self, length: int) -> None:
        """Interpolate in place to another length."""
        self.shape = replace(self.shape, length=length)

    @staticmethod
    def results(shape: MapShape) -> int:
        """r, the number of results."""
        return shape.projected

    @staticmethod
    def cost(shape: MapShape) -> tuple[int, int]:
        """FLOPs to project keys and values of all heads of one example, and the number of learned weights."""
        return 0, 0

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        """FLOPs to compress one example, or None where that is impossible."""
        return None

    def extra_repr(self) -> str:
        return f"{self.shape}"


class LearnedMap(LengthMap):
    """E and F as matrices: ``weight[0]`` is E, ``weight[-1]`` is F, each (copies, r, n), drawn from N(0, 1/n)."""

    weight: Float[Tensor, "roles copies r n"]
    learned = True

    def __init__(self, shape: MapShape, implementation: str = "eager") -> None:
        super().__init__(shape, implementation)
        drawn = torch.randn(shape.roles, shape.copies, shape.projected, shape.length) * shape.length**-0.5
        if self.learned:
            self.weight = nn.Parameter(drawn)
        else:
            self.register_buffer("weight", drawn)

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        matrices = self.weight[..., : key.shape[2]].unbind(0)
        return self._project(matrices[0], key, key_valid), self._project(matrices[-1], value, key_valid)

    def _project(self, matrix: Float[Tensor, "copies r keys"], tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        if self._tiled(tokens):
            return projection.project_heads(matrix, tokens)
        if self.implementation == "triton":
            from attn_zoo.kernels.linformer import project_heads

            return project_heads(matrix, tokens, key_valid)
        if len(matrix) == 1:
            return torch.einsum("rn,bhnd->bhrd", matrix[0], tokens)
        return torch.einsum("hrn,bhnd->bhrd", matrix, tokens)

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        matrix = self._stacked(tokens.shape[1])
        if self._tiled(tokens):
            return self._split(projection.mix(matrix, tokens)[0])
        if self.implementation == "triton":
            from attn_zoo.kernels.linformer import project_sequence

            return self._split(project_sequence(matrix, tokens, key_valid))
        return self._split(torch.einsum("rn,bnd->brd", matrix, tokens))

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        matrix = self._stacked(tokens.shape[1])
        if self._tiled(tokens):
            both, masses = projection.mix(matrix, tokens, key_valid, weigh=True)
            return self._split(both), self._split(masses[..., None])
        return self.compress(tokens, key_valid), self._split(projection.masses_of(matrix, key_valid)[..., None])

    def _tiled(self, tokens: Tensor) -> bool:
        return self.implementation in ("tiled", "sdpa") and tokens.device.type in ("cpu", "meta")

    def _stacked(self, keys: int) -> Float[Tensor, "rows keys"]:
        """E and F one below the other, so that tokens are read once; a view, so that the gradient is not copied."""
        stacked = self.weight.flatten(0, 2)
        return stacked[:, :keys] if keys < self.shape.length else stacked

    def _split(self, both: Float[Tensor, "*batch rows width"]) -> tuple[Tensor, Tensor]:
        """The rows of E and those of F."""
        return both[..., : self.shape.projected, :], both[..., -self.shape.projected :, :]

    @torch.no_grad()
    def resize(self, length: int) -> None:
        weight = resample(self.weight.flatten(0, 2), length).unflatten(0, self.weight.shape[:3])
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad) if self.learned else weight
        super().resize(length)

    @classmethod
    def cost(cls, shape: MapShape) -> tuple[int, int]:
        flops = 4 * shape.projected * shape.length * shape.heads * shape.head_dim
        return flops, cls.learned * shape.roles * shape.copies * shape.projected * shape.length

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        return 2 * max(shape.roles, inputs) * shape.projected * length * width if shape.copies == 1 else None


class RandomMap(LearnedMap):
    """The same matrices as a buffer: part of the state, never trained."""

    learned = False


class WindowMap(LengthMap):
    """Maps every window of n / k tokens, rounded up, to one result; a window of padding alone is left out of the softmax."""

    def windows(self, tokens: Float[Tensor, "*front keys width"], fill: float = 0.0) -> Float[Tensor, "*front r window width"]:
        """Cut into windows, the last one filled up."""
        return F.pad(tokens, (0, 0, 0, -tokens.shape[-2] % self.shape.window), value=fill).unflatten(-2, (-1, self.shape.window))

    def valid(self, key_valid: Tensor | None) -> Tensor | None:
        return None if key_valid is None else self.windows(key_valid[..., None]).any(dim=-2)[..., 0]

    @staticmethod
    def results(shape: MapShape) -> int:
        return math.ceil(shape.length / shape.window)


class MeanMap(WindowMap):
    """Averages over the real tokens of a window."""

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        share = self._share(key, key_valid)[:, None]
        return (self.windows(key) * share).sum(dim=-2), (self.windows(value) * share).sum(dim=-2)

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = (self.windows(tokens) * self._share(tokens, key_valid)).sum(dim=-2)
        return mean, mean

    def _share(self, tokens: Tensor, key_valid: Tensor | None) -> Float[Tensor, "batch r 1 1"]:
        """Weight of a real token in its window's mean; multiplied before summing, so that half precision does not overflow."""
        real = tokens.new_ones(1, tokens.shape[-2], 1) if key_valid is None else key_valid[..., None].to(tokens.dtype)
        return self.windows(real).sum(dim=-2, keepdim=True).clamp(min=1).reciprocal()

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        return 0 if shape.copies == 1 else None


class MaxMap(WindowMap):
    """Maxima over the real tokens of a window. Not linear, so tokens cannot be compressed before they are keys."""

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._highest(key, key_valid), self._highest(value, key_valid)

    def _highest(self, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is not None:
            tokens = tokens.masked_fill(~key_valid[:, None, :, None], -math.inf)
        highest = self.windows(tokens, fill=-math.inf).amax(dim=-2)
        valid = self.valid(key_valid)
        return highest if valid is None else highest.masked_fill(~valid[:, None, :, None], 0)


class ConvolutionMap(WindowMap):
    """A convolution with kernel and stride n / k over the channels of a head, without bias.

    ``weight[role, copy]`` is (window · d, d), drawn from N(0, 1 / (window · d)), which keeps the scale.
    """

    weight: Float[Tensor, "roles copies taps head_dim"]

    def __init__(self, shape: MapShape, implementation: str = "eager") -> None:
        super().__init__(shape, implementation)
        taps = shape.window * shape.head_dim
        self.weight = nn.Parameter(torch.randn(shape.roles, shape.copies, taps, shape.head_dim) * taps**-0.5)

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        kernels = self.weight.unbind(0)
        return self._convolve(kernels[0], key), self._convolve(kernels[-1], value)

    def _convolve(self, weight: Float[Tensor, "copies taps head_dim"], tokens: Tensor) -> Tensor:
        windows = self.windows(tokens).flatten(3)
        return windows @ weight[0] if len(weight) == 1 else torch.einsum("bhrt,htd->bhrd", windows, weight)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        before = self.weight
        super().resize(length)
        taps = before.unflatten(2, (-1, self.shape.head_dim)).movedim(2, -1)
        taps = resample(taps.flatten(0, 3), self.shape.window).unflatten(0, taps.shape[:-1])
        self.weight = nn.Parameter(taps.movedim(-1, 2).flatten(2, 3), requires_grad=before.requires_grad)

    @staticmethod
    def cost(shape: MapShape) -> tuple[int, int]:
        taps, d = shape.window * shape.head_dim, shape.head_dim
        return 4 * WindowMap.results(shape) * taps * d * shape.heads, shape.roles * shape.copies * taps * d


LENGTH_MAPS: dict[Projection, type[LengthMap]] = {
    Projection.learned: LearnedMap,
    Projection.random: RandomMap,
    Projection.mean: MeanMap,
    Projection.max: MaxMap,
    Projection.convolution: ConvolutionMap,
}


def resample(rows: Float[Tensor, "rows n"], length: int) -> Float[Tensor, "rows length"]:
    """Rows as functions of the relative position, read at another number of positions: linear upward, averages downward.

    Weights are divided by as much as positions multiply, and each row keeps its sum, so that a slowly varying sequence is
    mapped to what it was.
    """
    before = rows.shape[-1]
    if length >= before:
        finer = F.interpolate(rows[:, None], size=length, mode="linear", align_corners=False)[:, 0]
    else:
        finer = F.interpolate(rows[:, None], size=length, mode="area")[:, 0]
    finer = finer * (before / length)
    return finer + (rows.sum(dim=-1, keepdim=True) - finer.sum(dim=-1, keepdim=True)) / length


def map_shapes(geometry: Geometry, options: LowRankOptions) -> tuple[tuple[tuple[int, ...], MapShape], ...]:
    """Heads that have one projected length, and the shape of their map, from the shortest length to the longest.

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
    roles = 2 if options.sharing in (Sharing.none, Sharing.headwise) else 1
    groups = []
    for k in sorted(set(lengths)):
        heads = tuple(h for h, own in enumerate(lengths) if own == k)
        copies = len(heads) if options.sharing is Sharing.none else 1
        groups.append((heads, MapShape(geometry.keys, k, roles, copies, len(heads), geometry.head_dim)))
    return tuple(groups)


def low_rank_cost(geometry: Geometry, options: LowRankOptions, compare: Callable[[int, int], tuple[int, int]]) -> Cost:
    """E K and F V, and then ``compare(heads, r)``, the FLOPs, forward and backward, of so many heads with r projected keys."""
    kind, flops, backward, parameters = LENGTH_MAPS[options.projection], 0, 0, 0
    for _, shape in map_shapes(geometry, options):
        projected, weights = kind.cost(shape)
        compared, compared_backward = compare(shape.heads, kind.results(shape))
        flops, parameters = flops + projected + compared, parameters + weights
        backward += projected * (2 if weights and not options.frozen else 1) + compared_backward
    return Cost(flops, parameters, backward_flops=backward)


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
        maps = nn.ModuleList(kind(shape, self.implementation) for _, shape in groups)
        return maps.requires_grad_(not self.options.frozen)

    def _refuse_full_rank(self, k: int, n: int) -> None:
        if k >= n and not self.options.allow_full_rank:
            raise UnsupportedError(
                f"{self.card.name}.projected_length={k} is not below the {n} keys, so it would cost more than softmax attention; "
                f"choose at most {n - 1} or use attention=softmax"
            )

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Warn where projected keys are no fewer than keys, which ``allow_full_rank`` accepts."""
        k, n = max(k for layer in options.layers() for k in layer), geometry.keys
        return (f"projected_length={k} is no fewer than the {n} keys: nothing is compressed",) if k >= n else ()

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """E K and F V, then ``attend_compressed``. Padded keys and values are zeros when they come here, and E 0 = 0."""
        groups = self.projected_groups(query, key, value, key_valid)
        return self.in_order([self.attend_compressed(q, k, v, valid) for (q, _, _), k, v, valid in groups])

    def attend_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``attend`` with maps and ``attend_compressed`` in tiles, as ``implementation`` tells them."""
        return self.attend(query, key, value, key_valid)

    def projected_groups(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor, Tensor | None]]:
        """Queries, keys and values of the heads of one projected length, E K, F V, and which of these hold a token."""
        self._require_ready()
        for heads, map_ in zip(self.head_groups, self.maps, strict=True):
            alone = len(self.head_groups) == 1
            rows = (query, key, value) if alone else (query[:, heads], key[:, heads], value[:, heads])
            yield rows, *map_.project(rows[1], rows[2], key_valid), map_.valid(key_valid)

    def in_order(self, parts: Sequence[Float[Tensor, "batch some queries head_dim"]]) -> Tensor:
        """The outputs of all groups, each head at its place."""
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([head for heads in self.head_groups for head in heads], device=parts[0].device).argsort()
        return torch.cat(list(parts), dim=1)[:, order]

    def projected_heads(
        self, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> list[tuple[Float[Tensor, "batch r d"], Float[Tensor, "batch r d"], Bool[Tensor, "batch 1 r"] | None]]:
        """E K, F V and the results that hold a token, head by head, for definitions."""
        found = {}
        for heads, map_ in zip(self.head_groups, self.maps, strict=True):
            short_key, short_value = map_.project(key[:, heads], value[:, heads], key_valid)
            valid = map_.valid(key_valid)
            for at, head in enumerate(heads):
                found[head] = short_key[:, at], short_value[:, at], None if valid is None else valid[:, None]
        return [found[head] for head in range(len(found))]

    def compressed_length(self) -> int | None:
        """k where heads share a projection that is linear and alike in all channels; else None."""
        map_ = self.maps[0]
        if len(self.head_groups) > 1 or map_.compression_flops(map_.shape, 1, 1, 1) is None:
            return None
        return map_.results(map_.shape)

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """Where E is F, tokens that are keys and values at once are compressed once."""
        flops = self.maps[0].compression_flops(self.maps[0].shape, length, width, inputs)
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
            like = next(iter(self.own_maps.state_dict().values()), torch.empty(0))
            self.own_maps, self._joined = self._make_maps().to(like.device, like.dtype), True
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

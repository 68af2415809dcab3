"""Projections E and F along the length, which compress n keys and values to k, and how heads and layers share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import TypeVar

from attn_zoo.contract import Cost, Geometry, LengthMap, LengthMappedAttention, UnsupportedError, added_later, share_of_length
from attn_zoo.contract.length_maps import Pair, equal_bounds, mapped_cost, segment_means
from attn_zoo.contract.stack import read_by_layer
from attn_zoo.kernels import along_length
from attn_zoo.shapes import Compressed, Keys, KeyValid


class Projection(Enum):
    """Kind of projection along the length, from n tokens to k (Wang et al. 2020, Section 4)."""

    learned = "learned"
    """A learned matrix that maps n tokens to k."""
    random = "random"
    """A random matrix that maps n tokens to k, and is never trained (Johnson and Lindenstrauss)."""
    mean = "mean"
    """Means over windows of tokens; n tokens give at most k means."""
    max = "max"
    """Maxima over windows of tokens, separately for each channel; n tokens give at most k maxima."""
    convolution = "convolution"
    """A convolution along the length, which mixes the channels of a head; n tokens give at most k results."""


class Sharing(Enum):
    """How heads and layers share the projections E and F (Wang et al. 2020, Section 4).

    For 12 layers of 12 heads, ``sharing=none`` needs 288 matrices, ``headwise`` 24, ``key_value`` 12 and ``layerwise`` 1.
    """

    none = "none"
    """Each head has its own E and its own F."""
    headwise = "headwise"
    """Each layer has one E and one F for all heads."""
    key_value = "key_value"
    """Each layer has one matrix for all heads, which is both E and F."""
    layerwise = "layerwise"
    """One matrix is both E and F of all layers, once ``join_layers`` has been called. Until then, each layer has a matrix of its
    own.
    """


@dataclass
class LowRankOptions:
    """Options of all mechanisms that attend to keys projected along the length."""

    projected_length: int = share_of_length(4, most=256)
    """k, the number of projected keys."""
    projected_lengths: str = ""
    """Different k for layers or heads, in place of ``projected_length``. ``/`` separates layers and ``+`` separates heads: 64/32 is
    for two layers, and 8+4/4+2 for two layers of two heads.
    """
    sharing: Sharing = Sharing.headwise
    projection: Projection = Projection.learned
    init: str = added_later("random")
    """Initialisation of the learned k × n projections E and F. ``random`` draws their elements from N(0, 1/n), and ``average`` from
    N(1/n, 1/n). With ``pooling``, the keys are cut into k equal segments, and each projected key is the mean of one segment.
    """
    equalised: bool = added_later(False)
    """If true, the projections E and F of n tokens are stored times √n, so a step of Adam changes E and F by at most the learning
    rate over √n. This needs ``projection=learned``.
    """
    frozen: bool = False
    """If true, E and F keep their initial values, while the other weights are trained."""
    allow_full_rank: bool = False
    """If true, projected keys need not be fewer than keys. This costs more than softmax, but allows an exact comparison with
    softmax.
    """

    def __post_init__(self) -> None:
        self.sharing, self.projection = Sharing(self.sharing), Projection(self.projection)
        learned = self.projection is Projection.learned
        if self.init not in ("random", "average", "pooling"):
            raise ValueError(f"init must be 'random', 'average' or 'pooling'; got {self.init!r}")
        if self.init != "random" and not learned:
            raise ValueError(
                f"init must be random unless projection=learned; got init={self.init} with projection={self.projection.value}. "
                "Use init=random"
            )
        if self.equalised and not learned:
            raise ValueError(
                f"equalised must be false unless projection=learned; got equalised=true with projection={self.projection.value}. "
                "Use equalised=false"
            )
        given, layers = f"projected_lengths={self.projected_lengths!r}", self.layers()
        if max(map(len, layers)) > 1 and self.sharing is not Sharing.none:
            raise ValueError(
                f"sharing must be none, because {given} gives heads different lengths; got sharing={self.sharing.value}. Use "
                "sharing=none"
            )
        if len(layers) > 1 and self.sharing is Sharing.layerwise:
            raise ValueError(
                f"sharing must not be layerwise, because {given} gives layers different lengths. Use another sharing, or one "
                "length for all layers"
            )

    def layers(self) -> list[list[int]]:
        """Return a list of projected lengths for each layer, or a single list for all layers. Each list holds one number per head,
        or a single number for all heads.
        """
        return read_by_layer("projected_lengths", self.projected_lengths) if self.projected_lengths else [[self.projected_length]]

    def matrices(self, heads: int) -> tuple[int, int]:
        """Return the number of matrices that a head uses (2 if E and F differ, else 1), and the number of sets of matrices
        (``heads`` if each head has its own set, else 1).
        """
        return 2 if self.sharing in (Sharing.none, Sharing.headwise) else 1, heads if self.sharing is Sharing.none else 1


L = TypeVar("L", bound=LowRankOptions, default=LowRankOptions)


class MatrixMap(LengthMap):
    """Map that multiplies keys by E (``matrix[0]``) and values by F (``matrix[-1]``). If there is one matrix, it is both E and F.
    Each head has its own k × n matrices, or all heads share them.
    """

    weight: Float[Tensor, "roles copies k n"]

    def __init__(self, geometry: Geometry, options: LowRankOptions, k: int, heads: Sequence[int], implementation: str) -> None:
        super().__init__(geometry.keys, k, heads)
        self.implementation, n = implementation, geometry.keys
        self.equalised = options.equalised
        own = options.matrices(len(heads))
        if options.init == "pooling":
            weight = segment_means(equal_bounds(n, k)).to(torch.get_default_dtype()).repeat(*own, 1, 1)
        else:
            weight = torch.randn(*own, k, n) * n**-0.5 + (1 / n if options.init == "average" else 0)
        if options.projection is Projection.learned:
            self.weight = nn.Parameter(weight / self.scale)
        else:
            self.register_buffer("weight", weight)

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Return the projected keys E K and values F V."""
        matrices = self.matrix[..., : key.shape[2]].unbind(0)
        return self._product(matrices[0], key, key_valid), self._product(matrices[-1], value, key_valid)

    def _product(self, e: Float[Tensor, "copies k keys"], x: Keys, key_valid: KeyValid) -> Compressed:
        if self.implementation not in ("eager", "definition"):
            return along_length.project_heads(self.implementation, e, x, key_valid)
        return torch.einsum("kn,bhnd->bhkd", e[0], x) if len(e) == 1 else torch.einsum("hkn,bhnd->bhkd", e, x)

    def project_flops(self, head_dim: int) -> int:
        """Return the FLOPs of E K and of F V, each 2 k n head_dim per head."""
        return 4 * self.results * self.length * len(self.heads) * head_dim

    def compress(self, tokens: Tensor, key_valid: KeyValid) -> Pair:
        """Return the projections E X and F X of the tokens X."""
        return along_length.compress(self.implementation, self.matrix, tokens, key_valid)

    def compress_and_weigh(self, tokens: Tensor, key_valid: KeyValid) -> tuple[Pair, Pair]:
        """Return two pairs for the tokens X: (E X, F X), and (E m, F m), where the column m is 1 at real tokens and 0 at
        padding.
        """
        return along_length.compress_and_weigh(self.implementation, self.matrix, tokens, key_valid)

    def compression_flops(self, length: int, width: int, inputs: int) -> int | None:
        """Return the FLOPs of E X for keys and F X for values. If E is F, and keys and values come from the same tokens (``inputs``
        is 1), only one product counts. Return None if heads have their own matrices.
        """
        roles, copies, k, _ = self.weight.shape
        return 2 * max(roles, inputs) * k * length * width if copies == 1 else None


LENGTH_MAPS: dict[Projection, Callable[..., LengthMap]] = {Projection.learned: MatrixMap, Projection.random: MatrixMap}
"""Class that computes each kind of projection."""


def length_maps(geometry: Geometry, options: LowRankOptions, implementation: str = "eager") -> nn.ModuleList:
    """Return one map (projection along the length) for each projected length k, smallest first. Each map serves the heads that have
    this k.

    Raises:
        ValueError: ``projected_lengths`` gives several numbers, but not one for each head of the layer.
    """
    lengths, kind = options.layers()[0], LENGTH_MAPS[options.projection]
    lengths = lengths * geometry.heads if len(lengths) == 1 else lengths
    if len(lengths) != geometry.heads:
        raise ValueError(
            f"projected_lengths must give one length for each of the {geometry.heads} heads of the layer, or one for all; got "
            f"{len(lengths)} lengths in {options.projected_lengths!r}"
        )
    groups = {k: [head for head, own in enumerate(lengths) if own == k] for k in sorted(set(lengths))}
    maps = nn.ModuleList(kind(geometry, options, k, heads, implementation) for k, heads in groups.items())
    return maps.requires_grad_(not options.frozen)


def low_rank_cost(geometry: Geometry, options: LowRankOptions, compare: Callable[[int, int], tuple[int, int]]) -> Cost:
    """Return the cost of E K and F V, and of attention to the projected keys. ``compare(heads, r)`` returns the forward and
    backward FLOPs of attention to r projected keys.
    """
    with torch.device("meta"):
        return mapped_cost(length_maps(geometry, options), geometry.head_dim, compare)


class LowRankAttention(LengthMappedAttention[L]):
    """Attention to keys and values that are projected along the length. Its cost grows with n k instead of n².

    Subclasses implement ``attend_compressed``. There is no causal form, because every projected key mixes all positions.

    Raises:
        UnsupportedError: projected_length is not below the number of keys, and ``allow_full_rank`` is false.
    """

    make_maps = staticmethod(length_maps)

    @property
    def shares_maps(self) -> bool:
        """True if all layers share one matrix (``sharing=layerwise``)."""
        return self.options.sharing is Sharing.layerwise

    def by_layer(self) -> list[LowRankOptions]:
        """Return a list with the options of each layer, or with one item if ``projected_lengths`` does not distinguish layers."""
        lengths = ["+".join(map(str, layer)) for layer in self.options.layers()]
        return [replace(self.options, projected_lengths=k) for k in lengths] if len(lengths) > 1 else [self.options]

    def check_keys(self, keys: int) -> None:
        """Raise an error if a projected length is not below the number of keys, unless ``allow_full_rank`` is set."""
        k = max(map(max, self.options.layers()))
        if k >= keys and not self.options.allow_full_rank:
            fewer = f"Choose less than n/2 = {keys / 2:g} to save cost, use" if keys > 2 else "Use"
            raise UnsupportedError(
                f"{self.card.name}.projected_length must be less than the {keys} keys, because otherwise it costs more than "
                f"softmax attention; got {k}. {fewer} attention=softmax, or set allow_full_rank=true"
            )

    @classmethod
    def warnings(cls, geometry: Geometry, options: LowRankOptions) -> tuple[str, ...]:
        """Return a warning if a projected length is not below the number of keys. Such a length is possible only with
        ``allow_full_rank``.
        """
        k, n = max(map(max, options.layers())), geometry.keys
        found = super().warnings(geometry, options)
        return (f"projected_length={k} is at least the number of keys ({n}), so nothing is compressed", *found) if k >= n else found

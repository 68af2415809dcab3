"""Maps that compress keys and values along the length, from n tokens to r, and attention to the compressed tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import TypeVar

from attn_zoo.contract.attention import OptionsT
from attn_zoo.contract.claims import Cost, Geometry
from attn_zoo.contract.compressing import CompressingAttention, real_tokens
from attn_zoo.contract.errors import UnsupportedError
from attn_zoo.contract.stack import StackedAttention
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid, Queries

Pair = tuple[Float[Tensor, "*batch r width"], Float[Tensor, "*batch r width"]]
"""Two tensors of compressed tokens: one for keys and one for values."""


class LengthMap(nn.Module):
    """Map that compresses the keys and values of some heads along the length, from n tokens to r.

    Padded tokens must hold zeros. An input shorter than n counts as padded at its end.
    """

    weight: Tensor
    """Weights of the map, with one column per position. Only some maps have weights."""
    equalised = False
    """True if the map has an equalised learning rate: a step of Adam then changes its matrix by at most the learning rate over √n
    (Karras et al. 2018, arXiv:1710.10196, Section 4.1).
    """

    def __init__(self, length: int, results: int, heads: Sequence[int]) -> None:
        super().__init__()
        self.length, self.results, self.heads = length, results, tuple(heads)

    @property
    def scale(self) -> float:
        """Factor by which ``weight`` is multiplied to get the matrix of the map: 1/√n for an equalised learning rate, else 1."""
        return self.length**-0.5 if self.equalised else 1.0

    @property
    def matrix(self) -> Tensor:
        """Matrix of the map, ``weight`` times ``scale``. Only some maps have a matrix."""
        return self.weight if self.scale == 1 else self.weight * self.scale

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Return ``key`` and ``value``, each compressed from n tokens to r. Every map overrides this method."""
        raise NotImplementedError(f"{type(self).__name__} must have a method project, and has none. Define it")

    def project_flops(self, head_dim: int) -> int:
        """Return the FLOPs of ``project`` for one example."""
        return 0

    def compress(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> Pair:
        """Return two tensors of shape (batch, r, dim): the tokens compressed for keys, and the tokens compressed for values. The
        layer projects them afterwards.

        A map that is linear, and the same for all channels and heads, overrides this method and ``compression_flops``.
        """
        raise UnsupportedError(
            f"{type(self).__name__} cannot be applied to tokens before their projection to keys and values. Project the tokens "
            "first"
        )

    def compress_and_weigh(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> tuple[Pair, Pair]:
        """Return two pairs, each (for keys, for values). The first pair holds the compressed tokens. The second pair holds the
        mask of real tokens, compressed in the same way.
        """
        return self.compress(tokens, key_valid), self.compress(real_tokens(tokens, key_valid), key_valid)

    def compression_flops(self, length: int, width: int, inputs: int) -> int | None:
        """Return the FLOPs to compress one example of ``length`` tokens with ``width`` channels. Return None if the map cannot
        compress tokens before they are projected.

        ``inputs`` is 1 if keys and values come from the same tokens, else 2.
        """
        return None

    def valid(self, key_valid: KeyValid) -> CompressedValid:
        """Return a mask that is True for those of the r compressed positions that contain a real token, or None if all r do."""
        return None

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Change the number of positions of the map to ``length``, in place, and resample ``weight``. Maps without a matrix
        ``weight`` override this method.
        """
        resampled, self.length = resample(self.matrix, length), length
        resampled = resampled / self.scale
        learned = isinstance(self.weight, nn.Parameter)
        self.weight = nn.Parameter(resampled, self.weight.requires_grad) if learned else resampled


class LengthMappedAttention(StackedAttention[OptionsT], CompressingAttention[OptionsT]):
    """Attention to keys and values that ``LengthMap`` objects compress along the length. Each map serves one group of heads.

    Subclasses implement ``make_maps`` and ``attend_compressed``. A subclass whose queries also see uncompressed keys overrides
    ``attend``, too.
    """

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.check_keys(geometry.keys)
        self.own_maps = self.make_maps(geometry, options, implementation)

    def check_keys(self, keys: int) -> None:
        """Raise an UnsupportedError if the mechanism does not support this number of keys. Mechanisms with a limit override
        this method.
        """

    @property
    def maps(self) -> list[LengthMap]:
        """Maps that compress keys and values along the length, one per group of heads. If layers share maps, these are the maps
        of the first layer.
        """
        return list(self.owner.own_maps)  # type: ignore[arg-type]  # a ModuleList is not generic

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of attention to the compressed keys and values. Padded keys and values must hold zeros."""
        return self.by_compressed(self.attend_compressed, query, key, value, key_valid)

    def by_compressed(self, attend: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Call ``attend(query, key, value, valid)`` once for each map, and return the outputs of all heads. Each call gets the
        queries of the heads that the map serves, and their keys and values, compressed by the map.
        """

        def to_few(map_: LengthMap, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, *map_.project(key, value, key_valid), map_.valid(key_valid))

        return self.by_map(to_few, query, key, value)

    def by_map(self, attend: Callable[..., Tensor], query: Queries, key: Keys, value: Keys) -> Queries:
        """Call ``attend(map, query, key, value)`` once for each map, with the heads that the map serves. Return the outputs in
        the order of the heads.
        """
        self.check_joined()
        if len(self.maps) == 1:
            return attend(self.maps[0], query, key, value)
        parts = [attend(map_, query[:, map_.heads], key[:, map_.heads], value[:, map_.heads]) for map_ in self.maps]
        return torch.cat(parts, dim=1)[:, self.order_of_heads(query.device)]

    def order_of_heads(self, device: torch.device) -> Tensor:
        """Return the indices that sort the concatenated outputs of all maps by the number of the head."""
        return torch.tensor([head for map_ in self.maps for head in map_.heads], device=device).argsort()

    def compressed_length(self) -> int | None:
        """Return r, the number of compressed keys, if a single map serves all heads and can compress tokens; else None."""
        return self.maps[0].results if len(self.maps) == 1 and self.maps[0].compression_flops(1, 1, 1) is not None else None

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """Return the FLOPs to compress one example of ``length`` tokens with ``width`` channels by the single map of all heads."""
        flops = self.maps[0].compression_flops(length, width, inputs)
        assert flops is not None, "compressed_length() says whether tokens can be compressed"
        return flops

    def compress(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> Pair:
        """Return two tensors, computed by the single map of all heads: the tokens compressed for keys, and those compressed for
        values.
        """
        self.check_joined()
        return self.maps[0].compress(tokens, key_valid)

    def compress_and_weigh(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> tuple[Pair, Pair]:
        """Return two pairs, each (for keys, for values). The first pair holds the compressed tokens, the second the compressed
        masks of real tokens.
        """
        self.check_joined()
        return self.maps[0].compress_and_weigh(tokens, key_valid)

    def compressed_valid(self, key_valid: KeyValid) -> CompressedValid:
        """Return a mask that is True for each compressed position that contains a real token, or None if all do."""
        return self.maps[0].valid(key_valid)

    def resize_length(self, length: int) -> None:
        """Change the number of keys to ``length``, in place. Maps are resized, too, unless another layer that shares them has
        already resized them.
        """
        resized = self.geometry_at(length)
        self.check_keys(length)
        for map_ in self.maps:
            if map_.length != length:
                map_.resize(length)
        self.geometry = resized


def mapped_cost(maps: nn.ModuleList, head_dim: int, compare: Callable[[int, int], tuple[int, int]]) -> Cost:
    """Return the cost of compressing keys and values by maps along the length, plus the cost of attention to the compressed keys.

    Args:
        maps: the maps, one per group of heads.
        head_dim: number of channels per head.
        compare: function that takes the numbers of heads and of compressed keys. It returns the FLOPs of attention to these
            keys, forward and backward.
    """
    flops = backward = parameters = 0
    for map_ in maps:
        assert isinstance(map_, LengthMap)
        weights, projected = list(map_.parameters()), map_.project_flops(head_dim)
        forward, back = compare(len(map_.heads), map_.results)
        flops, parameters = flops + projected + forward, parameters + sum(weight.numel() for weight in weights)
        backward += projected * (1 + any(weight.requires_grad for weight in weights)) + back
    return Cost(flops, parameters, backward_flops=backward)


def equal_bounds(n: int, k: int) -> list[int]:
    """Return the k + 1 bounds that divide n positions into k nearly equal segments. If k > n, some segments are empty."""
    return [round(at * n / k) for at in range(k + 1)]


def segment_means(bounds: Sequence[int]) -> Float[Tensor, "k n"]:
    """Return a matrix whose row i computes the mean over segment i, which runs from bound i to bound i + 1. The row of an empty
    segment is zero.
    """
    rows = torch.zeros(len(bounds) - 1, bounds[-1], dtype=torch.float64)
    for at, (low, high) in enumerate(pairwise(bounds)):
        rows[at, low:high] = 1 / max(1, high - low)
    return rows


def resample(rows: Float[Tensor, "*front n"], length: int) -> Float[Tensor, "*front length"]:
    """Return the rows of weights resampled to ``length`` positions: interpolated linearly if ``length`` is larger than before,
    averaged if it is smaller.

    Each row keeps its sum, so a slowly varying sequence is mapped to the same values as before.
    """
    before, flat = rows.shape[-1], rows.reshape(-1, 1, rows.shape[-1])
    if length >= before:
        finer = F.interpolate(flat, size=length, mode="linear", align_corners=False)
    else:
        finer = F.interpolate(flat, size=length, mode="area")
    finer = finer * (before / length)
    finer = finer + (flat.sum(dim=-1, keepdim=True) - finer.sum(dim=-1, keepdim=True)) / length
    return finer.view(*rows.shape[:-1], length)


Mapped = TypeVar("Mapped", bound=LengthMappedAttention)


def with_identity(built: Mapped) -> Mapped:
    """Set the first map of a mechanism to the identity matrix, and return the mechanism. The map must compress n keys to n. It
    then changes nothing, so Linformer equals softmax attention.
    """
    built.maps[0].get_parameter("weight").data.copy_(torch.eye(built.geometry.keys))
    return built

"""Maps along the length from n tokens to r, and attention to keys and values that such maps compress."""

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
"""Compressed tokens for keys, and for values."""


class LengthMap(nn.Module):
    """Map of keys and values of some heads along the length, from n tokens to r.

    Padded tokens must hold zeros. An input shorter than n counts as padded at its end.
    """

    weight: Tensor
    """Weights with a column for each position, of a map that has some."""
    scale = 1.0
    """Factor from ``weight`` to the matrix of a map that has one; 1/√n for an equalised learning rate, so that a step of Adam
    changes the matrix by at most the learning rate over √n (Karras et al. 2018, arXiv:1710.10196, Section 4.1)."""

    def __init__(self, length: int, results: int, heads: Sequence[int]) -> None:
        super().__init__()
        self.length, self.results, self.heads = length, results, tuple(heads)

    @property
    def matrix(self) -> Tensor:
        """Matrix of the map: ``weight`` times ``scale``. Only some maps have one."""
        return self.weight if self.scale == 1 else self.weight * self.scale

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Compress keys and values of these heads to r each. Every map overrides this method."""
        raise NotImplementedError(f"{type(self).__name__} has no method project")

    def project_flops(self, head_dim: int) -> int:
        """Return the FLOPs of ``project`` for one example."""
        return 0

    def compress(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> Pair:
        """Compress tokens before they are projected, once for keys and once for values. Both results have shape (batch, r, dim).

        Maps that are linear and the same for all channels and heads override this method and ``compression_flops``.
        """
        raise UnsupportedError(f"{type(self).__name__} maps keys and values only, not tokens; project the tokens first")

    def compress_and_weigh(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> tuple[Pair, Pair]:
        """Compress tokens and the mask of real tokens, which is 1 at a real token and 0 at padding."""
        return self.compress(tokens, key_valid), self.compress(real_tokens(tokens, key_valid), key_valid)

    def compression_flops(self, length: int, width: int, inputs: int) -> int | None:
        """Return the FLOPs to compress one example, or None if tokens cannot be compressed before they are projected."""
        return None

    def valid(self, key_valid: KeyValid) -> CompressedValid:
        """Return the mask of the r compressed positions that contain a real token, or None if all do."""
        return None

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Interpolate ``weight``, which has one column per position, to another length. Other kinds of maps override this
        method.
        """
        resampled, self.length = resample(self.matrix, length), length
        self.scale = 1.0 if self.scale == 1 else length**-0.5
        resampled = resampled / self.scale
        learned = isinstance(self.weight, nn.Parameter)
        self.weight = nn.Parameter(resampled, self.weight.requires_grad) if learned else resampled


class LengthMappedAttention(StackedAttention[OptionsT], CompressingAttention[OptionsT]):
    """Attention to keys and values that maps compress along the length, with one map per group of heads.

    Subclasses implement ``make_maps`` and ``attend_compressed``; one whose queries also see other keys overrides ``attend``, too.
    """

    def __init__(self, geometry: Geometry, options: OptionsT, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.check_keys(geometry.keys)
        self.own_maps = self.make_maps(geometry, options, implementation)

    def check_keys(self, keys: int) -> None:
        """Raise an error if the mechanism cannot have this number of keys. Mechanisms with such a limit override this method.

        Raises:
            UnsupportedError: the message names the limit and a remedy.
        """

    @property
    def maps(self) -> list[LengthMap]:
        """Maps along the length. If layers share maps, these are the maps of the first layer."""
        return list(self.owner.own_maps)  # type: ignore[arg-type]  # a ModuleList is not generic

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Attend to the keys and values after the maps have compressed them. Padded ones must hold zeros."""
        return self.by_compressed(self.attend_compressed, query, key, value, key_valid)

    def by_compressed(self, attend: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Call ``attend(query, key, value, valid)`` for the heads of each map, with compressed keys and values."""

        def to_few(map_: LengthMap, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, *map_.project(key, value, key_valid), map_.valid(key_valid))

        return self.by_map(to_few, query, key, value)

    def by_map(self, attend: Callable[..., Tensor], query: Queries, key: Keys, value: Keys) -> Queries:
        """Call ``attend(map, query, key, value)`` for each length map with the heads that share it.

        Returns:
            Outputs in the order of the heads.
        """
        self.check_joined()
        if len(self.maps) == 1:
            return attend(self.maps[0], query, key, value)
        parts = [attend(map_, query[:, map_.heads], key[:, map_.heads], value[:, map_.heads]) for map_ in self.maps]
        return torch.cat(parts, dim=1)[:, self.order_of_heads(query.device)]

    def order_of_heads(self, device: torch.device) -> Tensor:
        """Return the indices that sort the concatenated outputs of all maps by head."""
        return torch.tensor([head for map_ in self.maps for head in map_.heads], device=device).argsort()

    def compressed_length(self) -> int | None:
        """Return the number of compressed keys r if one map serves all heads and can compress tokens; else None."""
        return self.maps[0].results if len(self.maps) == 1 and self.maps[0].compression_flops(1, 1, 1) is not None else None

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """Return the FLOPs to compress one example by the map."""
        flops = self.maps[0].compression_flops(length, width, inputs)
        assert flops is not None, "compressed_length() says whether tokens can be compressed"
        return flops

    def compress(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> Pair:
        """Compress tokens by the map."""
        self.check_joined()
        return self.maps[0].compress(tokens, key_valid)

    def compress_and_weigh(self, tokens: Float[Tensor, "batch keys dim"], key_valid: KeyValid) -> tuple[Pair, Pair]:
        """Compress tokens and the mask of real tokens with the map."""
        self.check_joined()
        return self.maps[0].compress_and_weigh(tokens, key_valid)

    def compressed_valid(self, key_valid: KeyValid) -> CompressedValid:
        """Return the mask of the compressed positions that contain a real token."""
        return self.maps[0].valid(key_valid)

    def resize_length(self, length: int) -> None:
        """Change the number of keys in place, and resize the maps unless another layer that shares them did so already."""
        resized = self.geometry_at(length)
        self.check_keys(length)
        for map_ in self.maps:
            if map_.length != length:
                map_.resize(length)
        self.geometry = resized


def mapped_cost(maps: nn.ModuleList, head_dim: int, compare: Callable[[int, int], tuple[int, int]]) -> Cost:
    """Return the cost of the maps plus that of attention to their results. ``compare(heads, r)`` gives forward and backward FLOPs
    of the latter.
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
    """Return the bounds of k segments of n positions with nearly equal lengths. If k > n, some segments are empty."""
    return [round(at * n / k) for at in range(k + 1)]


def segment_means(bounds: Sequence[int]) -> Float[Tensor, "k n"]:
    """Return a matrix whose rows average over segments, which run from one bound to the next. Rows of empty segments are zero."""
    rows = torch.zeros(len(bounds) - 1, bounds[-1], dtype=torch.float64)
    for at, (low, high) in enumerate(pairwise(bounds)):
        rows[at, low:high] = 1 / max(1, high - low)
    return rows


def resample(rows: Float[Tensor, "*front n"], length: int) -> Float[Tensor, "*front length"]:
    """Resample rows of weights to another number of positions: by linear interpolation to more, by averages to fewer.

    Weights are scaled by the old length over the new, and each row keeps its sum, so that a slowly varying sequence is
    mapped to the same values.
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
    """Set a map that has as many results as keys to the identity matrix. Linformer then equals softmax attention."""
    built.maps[0].get_parameter("weight").data.copy_(torch.eye(built.geometry.keys))
    return built

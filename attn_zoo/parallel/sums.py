"""Contributions of each process to the projected keys and values, packed into one tensor for one all-reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention.low_rank._projections import LowRankAttention
from attn_zoo.attention.low_rank._window_maps import MeanMap, WindowMap

Parts = dict[str, Tensor]
"""Sums by name, (batch, ...). ``any`` is positive if any token of a sequence is real, ``windows i`` if any token of a window is."""


@dataclass(frozen=True)
class Sums:
    """Layout of the sums over processes for one mechanism, whose tokens have width ``dim`` and begin at position ``start``.

    With ``compressed``, tokens are compressed before they are projected: ``key`` and ``value`` are E X and F X, (r, dim), or only
    ``key`` if E = F, and ``mass of key`` is E 1. Otherwise ``key i`` and ``value i`` are E K and F V for the heads of map i,
    (heads, r, head_dim).
    """

    mechanism: LowRankAttention
    dim: int
    start: int
    compressed: bool

    @property
    def windowed(self) -> bool:
        """True if projected keys are windows of tokens, each on one process, and not mixtures of all tokens."""
        return isinstance(self.mechanism.maps[0], WindowMap)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles with separate sums; keys and values have one in common if E = F, as for means."""
        first = self.mechanism.maps[0]
        return ("key",) if self.mechanism.options.matrices(1)[0] == 1 or isinstance(first, MeanMap) else ("key", "value")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the sums of one sequence, by name."""
        maps, d = self.mechanism.maps, self.mechanism.geometry.head_dim
        shapes: dict[str, tuple[int, ...]] = {"any": (1,)}
        if self.compressed:
            for role in self.roles:
                shapes |= {role: (r := maps[0].results, self.dim), f"mass of {role}": (r, 1)}
        else:
            for at, map_ in enumerate(maps):
                shapes |= {f"{role} {at}": (len(map_.heads), map_.results, d) for role in ("key", "value")}
        if self.windowed:
            shapes |= {f"windows {at}": (map_.results,) for at, map_ in enumerate(maps)}
        return shapes

    def numbers(self) -> int:
        """Number of numbers that are summed for one sequence."""
        return sum(map(math.prod, self.shapes().values()))

    def of_tokens(self, tokens: Float[Tensor, "batch slice dim"], real: Bool[Tensor, "batch slice"]) -> Tensor:
        """Packed contribution of this process to E X, F X, E 1 and F 1. Padded tokens must be zero."""
        (key, value), (mass_k, mass_v) = self.mechanism.compress_and_weigh(tokens, real)
        computed = {"key": key, "value": value, "mass of key": mass_k, "mass of value": mass_v}
        return self._packed(computed, real)

    def of_heads(
        self,
        key: Float[Tensor, "batch heads slice head_dim"],
        value: Float[Tensor, "batch heads slice head_dim"],
        real: Bool[Tensor, "batch slice"],
    ) -> Tensor:
        """Packed contribution of this process to E K and F V of each head; padding, to which a bias was added, is set to zero."""
        key, value = (x.masked_fill(~real[:, None, :, None], 0) for x in (key, value))
        computed: Parts = {}
        for at, map_ in enumerate(self.mechanism.maps):
            computed[f"key {at}"], computed[f"value {at}"] = map_.project(key[:, map_.heads], value[:, map_.heads], real)
        return self._packed(computed, real)

    def unpacked(self, packed: Float[Tensor, "batch numbers"]) -> Parts:
        """Sums by name, from the packed tensor."""
        shapes = self.shapes()
        pieces = packed.split([math.prod(shape) for shape in shapes.values()], dim=1)
        return {name: piece.unflatten(1, shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

    def _packed(self, computed: Mapping[str, Tensor], real: Tensor) -> Float[Tensor, "batch numbers"]:
        shapes, parts = self.shapes(), dict(computed)
        if self.windowed:
            parts |= {f"windows {at}": self._valid(at, real) for at in range(len(self.mechanism.maps))}
            parts = {name: self._placed(parts[name], shape) for name, shape in shapes.items() if name in parts}
        parts["any"] = real.any(dim=1, keepdim=True)
        dtype = next(iter(computed.values())).dtype
        return torch.cat([parts[name].to(dtype).expand(len(real), *shape).flatten(1) for name, shape in shapes.items()], dim=1)

    def _valid(self, at: int, real: Tensor) -> Tensor:
        valid = self.mechanism.maps[at].valid(real)
        assert valid is not None, "windows may be of padding alone"
        return valid

    def _placed(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Windows of this slice at their position among all windows, with zeros elsewhere."""
        last = (0, 0) if len(shape) > 1 else ()
        axis = -2 if len(shape) > 1 else -1
        first = self.mechanism.maps[0]
        assert isinstance(first, WindowMap)
        before = self.start // first.window
        filled: Tensor = F.pad(part, (*last, before, shape[axis] - before - part.shape[axis]))
        return filled

"""Linformer: Y = softmax(Q (E K)ᵀ / √d) F V, with E and F of size k × n learned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention.blocks import row_blocks
from attn_zoo.attention.masks import check_dropout
from attn_zoo.contract import Capabilities, CompressingAttention, Cost, Geometry, UnsupportedError
from attn_zoo.registry import register_attention


class Sharing(Enum):
    """Which heads share a projection."""

    per_head = "per_head"
    """Each head has its own E and F."""
    headwise = "headwise"
    """All heads of a layer share one E and one F."""


@dataclass
class Options:
    """Options of Linformer."""

    projected_length: int = 8
    """k, the number of projected keys."""
    sharing: Sharing = Sharing.headwise
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""
    allow_full_rank: bool = False
    """Accept projected_length >= keys, which costs more than softmax attention; for comparing the two exactly."""

    def __post_init__(self) -> None:
        if isinstance(self.sharing, str):
            self.sharing = Sharing(self.sharing)
        if self.projected_length < 1:
            raise ValueError(f"linformer.projected_length counts projected keys, so it is at least 1; got {self.projected_length}")
        check_dropout("linformer", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """E K and F V (n k d a head each), then Q K'ᵀ and P V' (n k d a head each)."""
    k = options.projected_length
    matrices = 2 * (geometry.heads if options.sharing is Sharing.per_head else 1)
    project = 4 * k * geometry.keys * geometry.inner_dim
    compare = 4 * k * geometry.queries * geometry.inner_dim
    return Cost(flops=project + compare, parameters=matrices * k * geometry.keys)


def identity_linformer(geometry: Geometry) -> Linformer:
    """projected_length = keys and E = F = identity: Eq. 7 is then softmax attention."""
    built = Linformer(geometry, Options(projected_length=geometry.keys, allow_full_rank=True))
    nn.init.eye_(built.key_projection)
    nn.init.eye_(built.value_projection)
    return built


@register_attention(
    "linformer",
    title="Linformer",
    paper="Wang et al. 2020, arXiv:2006.04768",
    equation="Eq. 7",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=False),
    time="n k d",
    memory="n k",
    cost=cost,
    implementations=("eager", "sdpa"),
    softmax_limit=identity_linformer,
    variants={"per_head": {"sharing": "per_head"}, "narrow": {"projected_length": 3}},
)
class Linformer(CompressingAttention):
    """Softmax attention over keys and values projected along the length.

    Paper: Wang et al. 2020, Eq. 7; sharing as in its Section 4.
    Symbols: E → key_projection, F → value_projection, k → projected_length, n → keys.
    Differs: padded keys and values are zero before they are projected (the paper has no padding);
        E and F start from N(0, 1/n), which keeps the scale of keys and values, where the paper's
        theorems use N(0, 1/k); sharing across keys and values and across layers is not offered.

    Raises:
        UnsupportedError: projected_length is not below the number of keys.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        k, n = options.projected_length, geometry.keys
        if k >= n and not options.allow_full_rank:
            raise UnsupportedError(
                f"linformer.projected_length={k} is not below the {n} keys, so it would cost more than softmax attention; "
                f"choose at most {n - 1} or use attention=softmax"
            )
        shape = (geometry.heads, k, n) if options.sharing is Sharing.per_head else (k, n)
        self.key_projection = nn.Parameter(torch.randn(shape) * n**-0.5)
        self.value_projection = nn.Parameter(torch.randn(shape) * n**-0.5)

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Padding is folded in: the contract hands over zeros at padded keys, and E 0 = 0."""
        return self.attend_compressed(query, self._project(self.key_projection, key), self._project(self.value_projection, value))

    attend_sdpa = attend

    def compressed_length(self) -> int | None:
        """k where heads share a projection; None where each has its own."""
        return self.options.projected_length if self.options.sharing is Sharing.headwise else None

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        """E and F differ, so there are two products whether or not keys and values come from the same tokens."""
        return 4 * self.options.projected_length * length * width

    def compress(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]]:
        """E X and F X."""
        return self.key_projection @ tokens, self.value_projection @ tokens

    def attend_compressed(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads r head_dim"],
        value: Float[Tensor, "batch heads r head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """softmax(Q K'ᵀ / √d) V', in blocks of queries so that no temporary outgrows the allocator's cheap range."""
        dropout = self.options.dropout if self.training else 0.0
        if self.implementation == "sdpa":
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        scaled = (key * query.shape[-1] ** -0.5).mT
        blocks = row_blocks(query, columns=key.shape[2])
        return torch.cat([F.dropout((rows @ scaled).softmax(dim=-1), dropout) @ value for rows in blocks], dim=2)

    def _project(
        self, projection: Float[Tensor, "*heads r keys"], tokens: Float[Tensor, "batch heads keys head_dim"]
    ) -> Float[Tensor, "batch heads r head_dim"]:
        """Apply E or F along the length, without a copy of the projection for each example."""
        batch, heads, keys, head_dim = tokens.shape
        if projection.dim() == 2:
            side_by_side = tokens.transpose(1, 2).reshape(batch, keys, heads * head_dim)
            return (projection @ side_by_side).unflatten(-1, (heads, head_dim)).transpose(1, 2)
        by_head = tokens.permute(1, 2, 0, 3).reshape(heads, keys, batch * head_dim)
        return torch.bmm(projection, by_head).unflatten(-1, (batch, head_dim)).permute(2, 0, 1, 3)

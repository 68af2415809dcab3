"""MEGA: Y = softmax(Q Kᵀ / √d) V within chunks, Q = κ_q ∘ Z + μ_q and K = κ_k ∘ Z, Z = silu(EMA(X)).

EMA is a damped moving average of each channel, h times over: sₜ = α ∘ β xₜ + (1 - α ∘ δ) ∘ sₜ₋₁, read as η·sₜ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention._masks import check_dropout
from attn_zoo.attention.recurrent._moving_average import moving_average, moving_average_flops
from attn_zoo.attention.sparse._block_masks import Pattern
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of MEGA."""

    chunk: int = 24
    """c, positions that see each other in the softmax. The paper's is 128 on most tasks; as many as there are tokens: full."""
    expansion: int = 16
    """h, averages of a channel."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        for name in ("chunk", "expansion"):
            if getattr(self, name) < 1:
                raise ValueError(f"mega.{name} counts something, so it is at least 1; got {getattr(self, name)}")
        check_dropout("mega", self.dropout)


def directions(geometry: Geometry) -> int:
    """Averages run from the front, and without causality from the back as well."""
    return 1 if geometry.causal else 2


def cost(geometry: Geometry, options: Options) -> Cost:
    """The averages, which are made anew backward, and each chunk against itself.

    State: the averages' numbers, and keys and values of a chunk.
    """
    n, inner, ways = geometry.keys, geometry.inner_dim, directions(geometry)
    chunks = Pattern(options.chunk, 0, causal=geometry.causal).cost(geometry)
    averages = moving_average_flops(geometry, ways, options.expansion)
    held = options.expansion + 2 * min(n, options.chunk)
    return Cost(
        flops=averages + chunks.flops,
        parameters=inner * (4 * ways * options.expansion + 3),
        backward_flops=3 * averages + (chunks.backward_flops or 0),
        state_bytes=FLOAT * inner * held if geometry.causal else None,
    )


@register_attention(
    "mega",
    title="MEGA (chunks)",
    paper="Ma et al. 2022, arXiv:2209.10655",
    equation="Multi-dimensional damped EMA; queries and keys of it; MEGA-chunk",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, shares_query_key=True),
    time="n c d + n h d",
    memory="n c + n h d",
    cost=cost,
    implementations=("eager", "tiled"),
    reads=("query", "value"),
    variants={"small": {"chunk": 6, "expansion": 2}},
)
class Mega(Attention):
    """Softmax attention within chunks, whose queries and keys are made of moving averages that reach across them.

    Paper: Ma et al. 2022: multi-dimensional damped EMA, queries and keys of one representation, MEGA-chunk.
    Symbols: α, δ → decay_in and decay_out before their sigmoid; β → spread, η → gather, κ and μ → gain and offset; X → the layer's
        query projection; h → expansion, c → chunk.
    Differs: averages are of a head's projected channels, where the paper projects what was averaged; silu follows at once.
        Attention has several heads, and values are projected without silu. Left out are the gates of update and output, which
        belong to the layer around, the bias of relative positions, which averages bring in, the offset of keys, which softmax
        cancels, and the laplace function. Queries and keys start as Z, with κ = 1 and μ = 0; η from N(0, 1/h).
        Without causality a second average runs from the back, and both are added. Padded tokens enter as zeros and
        keep their place: what lies beyond them is as much weaker as they are many. The gradient can be taken once.
    """

    options: Options

    def __init__(self, geometry: Geometry, options: Any, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        heads, d, h = geometry.heads, geometry.head_dim, options.expansion
        shape = (directions(geometry), heads, d, h)
        self.decay_in = nn.Parameter(0.2 * torch.randn(shape))
        self.decay_out = nn.Parameter(0.2 * torch.randn(shape))
        signs = 1.0 - 2 * (torch.arange(h) % 2)  # as the published code starts, which found it more stable
        self.spread = nn.Parameter(0.02 * torch.randn(shape) + signs)
        self.gather = nn.Parameter(torch.randn(shape) * h**-0.5)
        self.gain = nn.Parameter(torch.ones(2, heads, 1, d))
        self.offset = nn.Parameter(torch.zeros(heads, 1, d))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A chunk as long as the input."""
        if options.chunk < geometry.keys:
            return ()
        return (f"chunk={options.chunk} is no shorter than the {geometry.keys} tokens: every token sees all",)

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Tensor,
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Queries and keys of the averages, then each chunk by itself; see ``Pattern.attend``."""
        weights = (self.decay_in, self.decay_out, self.spread, self.gather, self.gain, self.offset)
        asks, answers = _MadeAnew.apply(_queries_and_keys, query, *weights)
        pattern = Pattern(self.options.chunk, 0, causal=self.geometry.causal)
        return pattern.attend_tiled(asks, answers, value, key_valid, dropout=self.options.dropout if self.training else 0.0)

    attend_tiled = attend


def _queries_and_keys(
    x: Float[Tensor, "batch heads n d"],
    decay_in: Tensor,
    decay_out: Tensor,
    spread: Tensor,
    gather: Tensor,
    gain: Tensor,
    offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """Long sums need float32, so autocast is left meanwhile."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x.device):
        enter, leave = decay_in.to(dtype).sigmoid(), decay_out.to(dtype).sigmoid()
        averages = moving_average(x.to(dtype), 1 - enter * leave, enter * spread, gather.to(dtype))
        shared = F.silu(averages).contiguous()
        return (shared * gain[0] + offset).to(x.dtype), (shared * gain[1]).to(x.dtype)


class _MadeAnew(torch.autograd.Function):
    """Keeps the inputs only, and computes anew for the gradient."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.compute = compute
        ctx.save_for_backward(*tensors)
        return compute(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            results = ctx.compute(*leaves)
        return None, *torch.autograd.grad(results, leaves, gradients)

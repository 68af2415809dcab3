"""Performer (FAVOR+): Y = D⁻¹ φ(Q) (φ(K)ᵀ V), where φ are random features of the softmax kernel and D = diag(φ(Q) φ(K)ᵀ 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._feature_maps import FEATURES, draw_directions, feature_count, log_positive_features
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, RedrawnAttention
from attn_zoo.contract.masks import allowed_pairs, weighted_mean
from attn_zoo.contract.options import REDRAW, bounded, by_length
from attn_zoo.kernels import fla
from attn_zoo.kernels.cpu.favor import HIDDEN, ReluFeatures, average_over_features
from attn_zoo.kernels.running import sums_before
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

CHUNK = 128
"""Number of positions in a chunk, if causal. Weights are computed within a chunk only, and earlier chunks are read from a sum."""
RELU_FLOOR = 1e-3
"""Constant added to ReLU features, so that no denominator is zero. This is the paper's kernel epsilon."""


class Kernel(Enum):
    """Function of a query and a key. The product of their features approximates this function."""

    softmax = "softmax"
    """exp(q·k / √d), estimated without bias by positive random features."""
    relu = "relu"
    """The paper's generalised attention with f = ReLU. It does not approximate softmax."""


@dataclass
class Options:
    """Options of Performer."""

    features: int = by_length(FEATURES, feature_count)
    """m, the number of random features. Multiples of 8 run up to twice as fast on CPUs."""
    kernel: Kernel = Kernel.softmax
    orthogonal: bool = True
    """If true, the random directions are orthogonal in blocks of head_dim, which lowers the variance."""
    redraw: int = bounded(0, REDRAW)
    """Number of training calls after which the features are drawn again. 0 means never."""

    def __post_init__(self) -> None:
        self.kernel = Kernel(self.kernel)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the features of queries and keys, of φ(K)ᵀ V, and of φ(Q) times this product. If causal, the weights
    within chunks and the sums of weights are counted, too.

    The backward pass has two products for each product of the forward pass, but only one for each random projection. If
    bidirectional, the projections that ``tiled`` computes again are counted, too. The state holds Σ φ(k) vᵀ, Σ φ(k), and the
    maximum log feature, relative to which both sums are stored.
    """
    h, m, d, keys = geometry.heads, options.features, geometry.head_dim, geometry.keys
    draws = 2 * (geometry.queries + keys) * m * d  # random projections, whose weights have no gradient
    if not geometry.causal:
        return Cost(2 * h * draws, 0, backward_flops=4 * h * draws)
    chunk = min(CHUNK, keys)
    n = math.ceil(keys / chunk) * chunk
    compare, sums, read = 2 * n * chunk * (m + d), 2 * n * m * d, 2 * n * m * (d + 1)
    backward = draws + 2 * compare + (2 * (sums + read) if n > chunk else read)  # the state before a single chunk is constant
    return Cost(h * (draws + compare + sums + read), 0, backward_flops=h * backward, state_bytes=FLOAT * h * (m * d + m + 1))


@register_attention(
    "performer",
    title="Performer (FAVOR+)",
    paper="Choromanski et al. 2021, arXiv:2009.14794",
    equation="Eq. 4 and 5, Lemma 1, Section 2.4",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True, random_at_build=True),
    time="n m d",
    memory="n m + n d",
    cost=cost,
    implementations=("eager", "tiled", "fla"),
    variants={"relu": {"kernel": "relu"}, "independent": {"orthogonal": False, "features": 24}, "redrawn": {"redraw": 1}},
)
class Performer(RedrawnAttention[Options]):
    """Linear attention with positive orthogonal random features, whose products approximate the weights of softmax.

    Paper: Choromanski et al. 2021: Eq. 4 and 5 for the map, Lemma 1 for the positive features, Section 2.4 for orthogonality,
        Appendix B.1 for prefix sums (causal).
    Symbols: ω → directions; m → features; d → head_dim; M → CHUNK.
    Differs: no epsilon is added to the features. The published code adds an epsilon, which is larger than the features if inputs
        have unit variance. If bidirectional, two softmaxes give the weighted mean of values: over the keys for each feature, and
        over the features for each query. They neither overflow nor underflow, at any scale of the inputs. If causal, maxima
        over past keys are subtracted from exponents, and cancel exactly. If a query's sum of weights underflows, its output tends
        to zero. All heads share one draw of directions. Features are computed in float32 or more, also under autocast. The
        ReLU variant scales its inputs by head_dim^-1/4, like the softmax variant. It adds its constant after the division by √m, so
        the constant weighs √m times as much as in the published code. Features of padded keys are zero.
    """

    directions: Float[Tensor, "features head_dim"]
    saturates = (("features", "is at least the number of keys ({n}), so each query has at least as many features as weights"),)
    drawn = "directions"

    def draw(self) -> Tensor:
        """Return random directions ω, which all heads share."""
        return draw_directions(self.options.features, self.geometry.head_dim, orthogonal=self.options.orthogonal)

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Options) -> str | None:
        """Return why the implementation cannot run, or None if it can. ``fla`` has a kernel for causal attention only."""
        return fla.without_causality("performer") if implementation == "fla" and not geometry.causal else None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the n × n weights φ(qᵢ)·φ(kⱼ), divided by their sum over the keys."""
        weights = self._log_features(query, is_key=False).exp() @ self._log_features(key, is_key=True).exp().mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs. In training, new directions may be drawn first (see the option ``redraw``)."""
        self.redraw_in_training()
        past = self._past_fla if self.implementation == "fla" else self._past
        everything = self._all_tiled if self.implementation == "tiled" else self._all
        attend = past if self.geometry.causal else everything
        dtype = torch.promote_types(query.dtype, torch.float32)  # exponentials of long sums need range and precision
        with without_autocast(query.device):
            return attend(query.to(dtype), key.to(dtype), value.to(dtype), key_valid).to(query.dtype)

    attend_tiled = attend_fla = attend

    def _all(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 5, computed by two softmaxes. For each feature, the first gives a mean of V over the keys. For
        each query, the second gives a mean of these means over the features.

        With zₘ = log Σⱼ φₘ(kⱼ), Σⱼ φₘ(kⱼ) vⱼ is exp(zₘ) times the mean for feature m. So the second softmax has the weights φₘ(qᵢ)
        exp(zₘ), divided by their sum.
        """
        logs = self._log_features(key, is_key=True)
        if key_valid is not None:
            logs = logs.masked_fill(~key_valid[:, None, :, None], HIDDEN)
        means = logs.softmax(dim=2).mT @ value
        return (self._log_features(query, is_key=False) + logs.logsumexp(dim=2, keepdim=True)).softmax(dim=-1) @ means

    def _all_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``_all``, computed without any n × m tensor."""
        log_map = None if self.options.kernel is Kernel.softmax else ReluFeatures(self.options.features, RELU_FLOOR)
        return average_over_features(log_map, self.directions.to(query.dtype), query, key, value, key_valid)

    def _past(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the causal outputs. Weights are computed within a chunk only, and earlier chunks are read from a running sum.

        Features of a key are stored relative to the key's own maximum, and then rescaled to the highest maximum up to the query. So
        no position depends on a later key, not even through rounding.
        """
        n, chunk, lowest = query.shape[2], min(CHUNK, query.shape[2]), torch.finfo(query.dtype).min
        phi_query = self._log_features(query, is_key=False)
        phi_query = (phi_query - phi_query.detach().amax(dim=-1, keepdim=True)).exp()
        logs = self._log_features(key, is_key=True)
        own = logs.detach().amax(dim=-1)
        phi_key = (logs - own[..., None]).exp()
        if key_valid is not None:
            phi_key, own = phi_key.masked_fill(~key_valid[:, None, :, None], 0), own.masked_fill(~key_valid[:, None, :], lowest)

        pad = -n % chunk  # the last chunk is padded with keys without features and queries whose outputs are cut off
        value = value.contiguous()  # as the compiler takes it to be after padding, which may pad nothing
        phi_query, phi_key, value = (F.pad(t, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for t in (phi_query, phi_key, value))
        own = F.pad(own, (0, pad), value=lowest)
        own, highest = (t.unflatten(2, (-1, chunk)) for t in (own, own.cummax(dim=-1).values))

        weights = (phi_query @ phi_key.mT * _relative(own[..., None, :], highest[..., :, None])).tril()
        ends = highest[..., -1]
        before = F.pad(ends, (1, 0), value=lowest)[..., :-1]
        scaled_keys = phi_key * _relative(own, ends[..., None])[..., None]
        sums = torch.cat([scaled_keys.mT @ value, scaled_keys.sum(dim=-2)[..., None]], dim=-1)  # [S z] of each chunk
        earlier = sums_before(sums, _relative(before, ends)[..., None, None])  # relative to the highest maximum before a chunk
        carried = phi_query * _relative(before[..., None], highest)[..., None]
        top = weights @ value + carried @ earlier[..., :-1]
        bottom = weights.sum(dim=-1, keepdim=True) + carried @ earlier[..., -1:]
        return weighted_mean(top, bottom).flatten(2, 3)[:, :, :n]

    def _past_fla(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the causal outputs of flash-linear-attention's kernel. A column of ones beside V gives the sums of weights."""
        logs = self._log_features(query, is_key=False), self._log_features(key, is_key=True)
        return weighted_mean(fla.sums_of_past(*logs, F.pad(value, (0, 1), value=1.0), key_valid))

    def _log_features(self, x: Keys, *, is_key: bool) -> Float[Tensor, "batch heads keys m"]:
        """Return log φ(x). For the kernel ``softmax``, the factors that cancel in the division are left out: 1/√m and, for queries,
        exp(−|x|²/2).
        """
        if self.options.kernel is Kernel.softmax:
            return log_positive_features(x, self.directions, is_key=is_key)
        projected = (x * x.shape[-1] ** -0.25) @ self.directions.to(x.dtype).T
        return (projected.relu() * self.options.features**-0.5 + RELU_FLOOR).log()


def _relative(low: Tensor, high: Tensor) -> Tensor:
    """Return the factor exp(low - high), at most one. It is zero if ``low`` is the lowest finite number, which stands for the
    maximum over no keys.
    """
    return (low - high).clamp(max=0).exp()

"""Performer (FAVOR+): Y = D⁻¹ φ(Q) (φ(K)ᵀ V), with φ random features of the softmax kernel and D = diag(φ(Q) φ(K)ᵀ 1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._masks import allowed_pairs
from attn_zoo.attention.linear import _fla
from attn_zoo.attention.linear._feature_maps import FEATURES, divide_features, draw_directions, feature_count, log_positive_features
from attn_zoo.attention.linear._recurrence import weighted_mean
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, by_length
from attn_zoo.kernels.cpu.favor import HIDDEN, ReluFeatures, average_over_features
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention

CHUNK = 128
"""Positions that the causal form compares directly; earlier ones reach it through a running sum of size m × d."""
RELU_FLOOR = 1e-3
"""Added to ReLU features, so that no denominator vanishes; the paper's kernel epsilon."""
LOWEST_GATE = -87.0
"""Of the log gates of ``fla``: exp(-87) is about the smallest float32, and beside lower ones their sums would lose the others."""


class Kernel(Enum):
    """Which kernel the features stand for."""

    softmax = "softmax"
    """exp(q·k / √d), by positive features; an unbiased estimate."""
    relu = "relu"
    """The paper's generalised attention with f = ReLU, which estimates no softmax."""


@dataclass
class Options:
    """Options of Performer."""

    features: int = by_length(FEATURES, feature_count)
    """m, the number of random features. Multiples of 8 run up to twice as fast on CPUs."""
    kernel: Kernel = Kernel.softmax
    orthogonal: bool = True
    """Directions of the features orthogonal in blocks of head_dim, which lowers the variance."""
    redraw: int = 0
    """Training calls between new draws of the features; 0 keeps the first draw."""

    def __post_init__(self) -> None:
        if isinstance(self.kernel, str):
            self.kernel = Kernel(self.kernel)
        if self.features < 1:
            raise ValueError(f"performer.features counts random features, so it is at least 1; got {self.features}")
        if self.redraw < 0:
            raise ValueError(f"performer.redraw counts training calls, 0 for never; got {self.redraw}")


def cost(geometry: Geometry, options: Options) -> Cost:
    """Features of queries and keys, φ(K)ᵀ V and φ(Q) times that; causal adds the denominator and chunk × chunk comparisons.

    Backward, tiles recompute the projections, and three products each. State: for each head the sum of φ(k) vᵀ, that of φ(k) and
    the maximum that both are relative to.
    """
    h, m, d = geometry.heads, options.features, geometry.head_dim
    if not geometry.causal:
        forward = 4 * (geometry.queries + geometry.keys) * m * geometry.inner_dim
        return Cost(forward, 0, backward_flops=2 * forward)
    draws = 2 * (geometry.queries + geometry.keys) * m * d  # random projections, which have no gradient of their own
    chunk = min(CHUNK, geometry.keys)
    chunks = math.ceil(geometry.keys / chunk)
    n = chunks * chunk
    compare, sums, read = 2 * n * chunk * (m + d), 2 * n * m * d, 2 * n * m * (d + 1)
    backward = draws + 2 * compare + (2 * (sums + read) if chunks > 1 else read)  # a single chunk carries constants over
    return Cost(
        flops=h * (draws + compare + sums + read),
        parameters=0,
        backward_flops=h * backward,
        state_bytes=FLOAT * h * (m * d + m + 1),
    )


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
class Performer(Attention):
    """Attention through positive orthogonal random features, linear in the length.

    Paper: Choromanski et al. 2021: Eq. 4 and 5 for the map, Lemma 1 for the positive features,
        Section 2.4 for orthogonality, Appendix B.1 for prefix sums (causal).
    Symbols: ω → directions, m → features, d → head_dim, M → CHUNK.
    Differs: no epsilon is added to the features (the published code's outweighs them at unit scale).
        Without causality the quotient is computed as two softmaxes, by feature over the keys and by
        query over the features, which is the same number whatever the scale of the inputs; causally,
        stabilisers are maxima over past keys, which cancel exactly, and a row whose denominator would
        underflow tends to zero. One draw of directions serves all heads. Redrawing is off unless asked
        for. Features are computed in float32 at least, also under autocast. The ReLU variant scales its
        inputs by head_dim^-1/4 like the softmax variant, and adds its floor after the division by √m, so that it
        weighs √m times what it does in the published code. Padded keys have no features at all.
    """

    directions: Float[Tensor, "features head_dim"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("directions", draw_directions(options.features, geometry.head_dim, orthogonal=options.orthogonal))
        self._training_calls = 0

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Warn where features are no fewer than keys."""
        m, n = options.features, geometry.keys
        words = f"features={m} are no fewer than the {n} keys: a query's features are as many as the weights they stand for"
        return (words,) if m >= n else ()

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Averages over all keys by flash-linear-attention, which has no kernel for them."""
        return _fla.causal_only("performer", geometry) if implementation == "fla" else None

    @torch.no_grad()
    def redraw_features(self) -> None:
        """Draw new directions from torch's global generator."""
        m, d = self.directions.shape
        self.directions.copy_(draw_directions(m, d, orthogonal=self.options.orthogonal))

    def definition(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Eq. 4 with its n × n weights φ(qᵢ)·φ(kⱼ)."""
        weights = self._log_features(query, is_key=False).exp() @ self._log_features(key, is_key=True).exp().mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return divide_features(weights @ value, weights.sum(dim=-1, keepdim=True))

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Float32 at least, also under autocast: exponentials of long sums need its range and precision."""
        return self._attend(self._causal if self.geometry.causal else self._over_features, query, key, value, key_valid)

    def attend_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``attend``; without causality in tiles, so that no n × m tensor is made."""
        return self._attend(self._causal if self.geometry.causal else self._over_features_tiled, query, key, value, key_valid)

    def attend_fla(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Causal sums by flash-linear-attention's kernel, which multiplies in bfloat16 and adds up in float32.

        Raises:
            UnsupportedError: inputs are of another type, and autocast does not change it.
        """
        _fla.check_dtype(self.card, value)
        return self._attend(self._causal_fla, query, key, value, key_valid)

    def _attend(self, form: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.training and self.options.redraw:
            if self._training_calls % self.options.redraw == 0:
                self.redraw_features()
            self._training_calls += 1
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            return form(query.to(dtype), key.to(dtype), value.to(dtype), key_valid).to(query.dtype)

    def _over_features(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        """Eq. 5 as two softmaxes: mean of V for each feature by its weights over the keys, mean of these for each query.

        With zₘ = log Σⱼ φₘ(kⱼ), Σⱼ φₘ(kⱼ) vⱼ is exp(zₘ) times the mean for feature m, so that φₘ(qᵢ) exp(zₘ) are the weights
        of a softmax over the features.
        """
        logs = self._log_features(key, is_key=True)
        if key_valid is not None:
            logs = logs.masked_fill(~key_valid[:, None, :, None], HIDDEN)
        means = logs.softmax(dim=2).mT @ value
        return (self._log_features(query, is_key=False) + logs.logsumexp(dim=2, keepdim=True)).softmax(dim=-1) @ means

    def _over_features_tiled(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        log_map = None if self.options.kernel is Kernel.softmax else ReluFeatures(self.options.features, RELU_FLOOR)
        return average_over_features(log_map, self.directions.to(query.dtype), query, key, value, key_valid)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        """Within a chunk compare directly; what came before a chunk arrives as a running sum.

        Each key's features are relative to its own maximum; scalars put them in relation to the highest maximum up
        to the query. So no position feels a later key, not even through rounding.
        """
        n, chunk = query.shape[2], min(CHUNK, query.shape[2])
        query_features = self._log_features(query, is_key=False)
        query_features = (query_features - query_features.detach().amax(dim=-1, keepdim=True)).exp()
        logs = self._log_features(key, is_key=True)
        own = logs.detach().amax(dim=-1)
        key_features = (logs - own[..., None]).exp()
        if key_valid is not None:
            key_features = key_features.masked_fill(~key_valid[:, None, :, None], 0)
            own = own.masked_fill(~key_valid[:, None, :], torch.finfo(own.dtype).min)
        highest = own.cummax(dim=-1).values

        pad = -n % chunk  # the last chunk is filled up with keys of no features and queries nobody reads
        query_features, key_features, value = (
            F.pad(t, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for t in (query_features, key_features, value)
        )
        own, highest = (F.pad(t, (0, pad), value=torch.finfo(t.dtype).min).unflatten(2, (-1, chunk)) for t in (own, highest))
        highest = highest.flatten(2).cummax(dim=-1).values.unflatten(2, (-1, chunk))

        weights = query_features @ key_features.mT * _relative(own[..., None, :], highest[..., :, None])
        weights = weights.tril()
        ends = highest[..., -1]
        before = F.pad(ends[..., :-1], (1, 0), value=torch.finfo(ends.dtype).min)
        scaled_keys = key_features * _relative(own, ends[..., None])[..., None]
        states, masses = self._prefixes(scaled_keys.mT @ value, scaled_keys.sum(dim=-2), _relative(before, ends))
        carried = query_features * _relative(before[..., None], highest)[..., None]
        top = weights @ value + carried @ states
        bottom = weights.sum(dim=-1, keepdim=True) + carried @ masses[..., None]
        return divide_features(top, bottom).flatten(2, 3)[:, :, :n]

    def _causal_fla(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        """Sums relative to the highest maximum so far, as gated linear attention: where that rises, a gate shrinks all features."""
        phi_query = self._log_features(query, is_key=False)
        phi_query = (phi_query - phi_query.detach().amax(dim=-1, keepdim=True)).exp()
        logs, valid = self._log_features(key, is_key=True), None if key_valid is None else key_valid[:, None, :, None]
        logs = logs if valid is None else logs.masked_fill(~valid, HIDDEN)
        highest = logs.detach().amax(dim=-1, keepdim=True).cummax(dim=2).values
        phi_key = (logs - highest).exp()
        phi_key = phi_key if valid is None else phi_key * valid
        gate = F.pad(highest[:, :, :-1] - highest[:, :, 1:], (0, 0, 1, 0)).clamp(min=LOWEST_GATE).expand_as(phi_key)
        return weighted_mean(_fla.answers("gla", phi_query, phi_key, F.pad(value, (0, 1), value=1.0), gate, scale=1.0))

    @staticmethod
    def _prefixes(
        sums: Float[Tensor, "batch heads chunks m d"],
        masses: Float[Tensor, "batch heads chunks m"],
        shrink: Float[Tensor, "batch heads chunks"],
    ) -> tuple[Float[Tensor, "batch heads chunks m d"], Float[Tensor, "batch heads chunks m"]]:
        """For each chunk the sums of all earlier chunks, relative to the highest maximum before it."""
        state, mass = torch.zeros_like(sums[:, :, 0]), torch.zeros_like(masses[:, :, 0])
        states, all_masses = [], []
        for c in range(sums.shape[2]):
            states.append(state)
            all_masses.append(mass)
            state = state * shrink[:, :, c, None, None] + sums[:, :, c]
            mass = mass * shrink[:, :, c, None] + masses[:, :, c]
        return torch.stack(states, dim=2), torch.stack(all_masses, dim=2)

    def _log_features(self, x: Float[Tensor, "batch heads n head_dim"], *, is_key: bool) -> Float[Tensor, "batch heads n m"]:
        """log φ(x), up to constants that the division cancels: 1/√m, and for queries |x|²/2."""
        if self.options.kernel is Kernel.softmax:
            return log_positive_features(x, self.directions, is_key=is_key)
        projected = (x * x.shape[-1] ** -0.25) @ self.directions.to(x.dtype).T
        return (projected.relu() * self.options.features**-0.5 + RELU_FLOOR).log()


def _relative(low: Tensor, high: Tensor) -> Tensor:
    """exp(low - high), at most one: zero where ``low`` is the lowest number, which stands for nothing yet."""
    return (low - high).clamp(max=0).exp()

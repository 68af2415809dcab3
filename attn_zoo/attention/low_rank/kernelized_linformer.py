"""Kernelized Linformer: Y = D⁻¹ φ(Q) (φ(E K)ᵀ F V) with D = diag(φ(Q) φ(E K)ᵀ 1). It is linear attention to projected keys and
values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._feature_maps import FEATURES, draw_directions, feature_count, log_positive_features
from attn_zoo.attention.low_rank._projections import LowRankAttention, LowRankOptions, low_rank_cost
from attn_zoo.contract import Capabilities, Cost, Geometry, by_length
from attn_zoo.contract.masks import weighted_mean
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid, Queries


class FeatureMap(Enum):
    """Feature map φ of queries and projected keys. Products of features replace the weights of the softmax."""

    elu = "elu"
    """elu(x) + 1, with head_dim features."""
    favor = "favor"
    """Positive orthogonal random features, an unbiased estimate of Linformer's softmax kernel."""


@dataclass
class Options(LowRankOptions):
    """Options of the kernelized Linformer."""

    feature_map: FeatureMap = FeatureMap.elu
    features: int = by_length(FEATURES, feature_count)
    """m, the number of random features of ``favor``. ``elu`` always has head_dim features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.feature_map = FeatureMap(self.feature_map)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of the projections E K and F V, the sums over projected keys, and the products of these sums
    with φ(Q). The feature map ``favor`` adds its random projections.
    """
    n, d = geometry.queries, geometry.head_dim
    favor = options.feature_map is FeatureMap.favor
    m = options.features if favor else d

    def compare(heads: int, k: int) -> tuple[int, int]:
        draws = 2 * (n + k) * m * d if favor else 0  # random projections, whose weights have no gradient
        sums = 2 * k * m * d + 2 * n * m * (d + 1)
        return heads * (draws + sums), heads * (draws + 2 * sums)

    return low_rank_cost(geometry, options, compare)


@register_attention(
    "kernelized_linformer",
    title="Kernelized Linformer",
    paper="Wang et al. 2020, arXiv:2006.04768, with Katharopoulos et al. 2020, arXiv:2006.16236",
    equation="Eq. 7 with the softmax replaced by Eq. 4 of Katharopoulos et al. or Eq. 5 of Choromanski et al.",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=False, shorter=True, random_at_build=True),
    time="n k d + n d^2",
    memory="n k + n d",
    cost=cost,
    variants={
        "favor": {"feature_map": "favor", "features": 24},
        "no_sharing": {"sharing": "none"},
        "mean": {"projection": "mean", "sharing": "key_value"},
    },
)
class KernelizedLinformer(LowRankAttention[Options]):
    """Linear attention to keys and values that are projected along the length. The n × k weights are never computed.

    Papers: Wang et al. 2020, Eq. 7 for the projection; Katharopoulos et al. 2020, Eq. 4 and 7, for elu + 1; Choromanski et al.
        2021, Lemma 1, for the random features.
    Symbols: E, F → ``matrix`` of a MatrixMap; k → projected_length, φ → feature_map, m → features.
    Differs: none of the papers combines projections with linear attention. Padding, shorter inputs and initialisation are treated
        as in ``linformer``. All heads share one draw of random features, which are computed in float32 or more.
    """

    directions: Float[Tensor, "features head_dim"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        if options.feature_map is FeatureMap.favor:
            self.register_buffer("directions", draw_directions(options.features, geometry.head_dim, orthogonal=True))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the n × k weights φ(qᵢ)·φ(k̄ⱼ), divided by their sum over j. The projected keys k̄ⱼ are the rows
        of E K.
        """

        def naive(q: Queries, ek: Compressed, fv: Compressed, valid: CompressedValid) -> Queries:
            if self.options.feature_map is FeatureMap.elu:
                weights = (F.elu(q) + 1) @ (F.elu(ek) + 1).mT
            else:
                log_query, log_key = (log_positive_features(x, self.directions, is_key=x is ek) for x in (q, ek))
                weights = log_query.exp() @ log_key.exp().mT
            weights = weights if valid is None else weights * valid[:, None, None]
            return weighted_mean(weights @ fv, weights.sum(dim=-1, keepdim=True))

        return self.by_compressed(naive, query, key, value, key_valid)

    def attend_compressed(self, query: Queries, key: Compressed, value: Compressed, valid: CompressedValid = None) -> Queries:
        """Return the outputs φ(Q) (φ(K̄)ᵀ V̄) / φ(Q) (φ(K̄)ᵀ 1), given the projected keys K̄ = E K and values V̄ = F V."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            key_features, top = self._key_features(key.to(dtype), valid)
            summed, mass = key_features.mT @ value.to(dtype), key_features.sum(dim=2).unsqueeze(-1)
            features = self._query_features(query.to(dtype), top)
            return weighted_mean(features @ summed, features @ mass).to(query.dtype)

    def _key_features(self, key: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the features φ(K̄), which are zero at invalid keys. With ``favor``, each feature is divided by its maximum, and the
        logarithms of the maxima are returned, too, for φ(Q).
        """
        hidden = None if valid is None else ~valid[:, None, :, None]
        if self.options.feature_map is FeatureMap.elu:
            features, top = F.elu(key) + 1, None
        else:
            logs = log_positive_features(key, self.directions, is_key=True)
            seen = logs if hidden is None else logs.masked_fill(hidden, torch.finfo(logs.dtype).min)
            top = seen.detach().amax(dim=2, keepdim=True)
            features = (seen - top).exp()
        return (features if hidden is None else features.masked_fill(hidden, 0)), top

    def _query_features(self, query: Tensor, top: Tensor | None) -> Tensor:
        if top is None:
            return F.elu(query) + 1
        logs = log_positive_features(query, self.directions, is_key=False) + top
        return (logs - logs.detach().amax(dim=-1, keepdim=True)).exp()

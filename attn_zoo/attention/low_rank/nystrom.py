"""Nyströmformer: Y = softmax(Q K̃ᵀ / √d) A⁺ softmax(Q̃ Kᵀ / √d) V with A = softmax(Q̃ K̃ᵀ / √d).

Q̃ and K̃ are a few landmarks, the mean queries and mean keys of consecutive tokens. A⁺ is the pseudo-inverse of A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import Attention, Bound, Capabilities, Cost, Geometry, bounded, share_of_length, softmax_over_valid
from attn_zoo.kernels.sdpa import sdpa_over_valid
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

KERNEL = Bound(
    lambda width: width == 0 or (width > 0 and width % 2 == 1),
    "must be odd, because it reaches equally far on both sides, or 0 (no convolution)",
    lambda _: "Use 33, as in the paper",
)


@dataclass
class Options:
    """Options of Nyströmformer."""

    landmarks: int = share_of_length(4, most=64)
    """m, the number of landmarks. If an input has fewer than m tokens, each token is a landmark."""
    iterations: int = bounded(6)
    """Number of iterations that approximate the pseudo-inverse."""
    convolution: int = bounded(0, KERNEL)
    """Width, in positions, of a depthwise convolution of the values. Its result is added to the output. The width must be odd, or 0
    for no convolution. The paper uses 33.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of four products: Q K̃ᵀ, Q̃ Kᵀ, and those of their softmax weights with values. For m
    landmarks (Q̃, K̃), each takes n m d multiply-adds per head. Smaller products are added: Q̃ K̃ᵀ, the pseudo-inverse A⁺ times m
    values, and four m × m products per iteration for A⁺.

    A convolution of width w adds w multiply-adds per position and channel.
    """
    n, h, d, m = geometry.keys, geometry.heads, geometry.head_dim, min(options.landmarks, geometry.keys)
    products = h * (8 * n * m * d + 4 * m * m * d + 8 * options.iterations * m**3)
    convolved = 2 * h * options.convolution * n * d
    flops = products + convolved
    return Cost(flops, parameters=h * options.convolution, backward_flops=2 * flops)


@register_attention(
    "nystrom",
    title="Nyströmformer (convolution optional)",
    paper="Xiong et al. 2021, arXiv:2102.03902",
    equation="Eq. 13 to 15",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n m d + m^3",
    memory="n m + n d",
    cost=cost,
    implementations=("eager", "sdpa"),
    # A landmark for each token, and enough iterations to find A⁺, as A A⁺ A = A.
    softmax_limit=lambda geometry: Nystrom(geometry, Options(landmarks=geometry.keys, iterations=60)),
    variants={"convolution": {"convolution": 5}, "few": {"landmarks": 3, "iterations": 2}, "many": {"landmarks": 48}},
)
class Nystrom(Attention):
    """Softmax attention through m landmarks. It approximates the n × n weights of softmax by a matrix of rank m.

    Paper: Xiong et al. 2021: Eq. 13 (three kernels), Eq. 14 and 15 (pseudo-inverse), Section 3.2 (segment means), Figure 2
        (convolution of the values).
    Symbols: m → landmarks, Z → inverse, F̃, Ã, B̃ → the three softmax kernels.
    Differs: the convolution is left out by default; the paper's convolution spans 33 positions. Landmarks are means of valid
        tokens. If the number n of valid tokens is not a multiple of m, the first n mod m segments hold one token more than the
        others. The iteration for the pseudo-inverse starts from Ãᵀ, divided by the 1-norm and the ∞-norm of Ã. Norms are computed
        for each head and example; the paper's code takes maxima over the batch. The convolution has one kernel per head, and padded
        positions count as zeros. Everything is computed in float32 or more.
    """

    saturates = (("landmarks", "is at least the number of tokens ({n}), so each token is a landmark and nothing is saved"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        if options.convolution:
            bound = options.convolution**-0.5
            self.kernel = nn.Parameter(torch.empty(geometry.heads, 1, options.convolution, 1).uniform_(-bound, bound))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 13 to 15, computed example by example from the valid tokens. The tokens are cut into m
        consecutive parts, and the mean of each part is a landmark.
        """
        out, scale = [], query.shape[-1] ** -0.5
        for example, q in enumerate(query):
            real = slice(None) if key_valid is None or not key_valid[example].any() else key_valid[example]
            k, v = key[example, :, real], value[example, :, real]
            m = min(self.options.landmarks, k.shape[1])
            few_q, few_k = means_of_parts(q[:, real], m), means_of_parts(k, m)
            f, b = (q @ few_k.mT * scale).softmax(dim=-1), (few_q @ k.mT * scale).softmax(dim=-1)
            out.append(f @ self._inverse(few_q @ few_k.mT * scale, None) @ b @ v)
        return torch.stack(out) + self._convolved(value)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs F̃ Z (B̃ V): landmarks attend to the tokens, the pseudo-inverse Z mixes the results, and queries
        attend to the landmarks.
        """
        return self._attend(softmax_attention, query, key, value, key_valid)

    def attend_sdpa(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``attend``, with both attentions computed by PyTorch's fused kernels."""
        return self._attend(sdpa_over_valid, query, key, value, key_valid)

    def _attend(self, softmax: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            q, k, v = query.to(dtype), key.to(dtype), value.to(dtype)
            return (self.mixed(softmax, q, k, v, key_valid) + self._convolved(v)).to(value.dtype)

    def mixed(self, softmax: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs before the convolution. ``softmax`` is a function of (query, key, value, valid) that computes softmax
        attention.
        """
        (few_query, few_key), few = landmarks(self.options.landmarks, key_valid, query, key)
        inverse = self._inverse(few_query @ few_key.mT * query.shape[-1] ** -0.5, few)
        return softmax(query, few_key, inverse @ softmax(few_query, key, value, key_valid), few)

    def _convolved(self, value: Float[Tensor, "batch heads n head_dim"]) -> Tensor | float:
        """Return the depthwise convolution of the values along the length, or 0 if there is none."""
        if not self.options.convolution:
            return 0.0
        reach = self.options.convolution // 2
        return F.conv2d(value, self.kernel.to(value.dtype), padding=(reach, 0), groups=value.shape[1])

    def _inverse(
        self, scores: Float[Tensor, "batch heads m m"], few: Bool[Tensor, "batch m"] | None
    ) -> Float[Tensor, "batch heads m m"]:
        """Approximate the pseudo-inverse of softmax(scores) by iterations Z ← Z (13 - A Z (15 - A Z (7 - A Z))) / 4.

        Rows and columns of empty landmarks are zero in A, and so in each Z.
        """
        kernel = softmax_over_valid(scores, None if few is None else few[:, None, None])
        if few is not None:
            kernel = kernel.masked_fill(~few[:, None, :, None], 0)
        # The ∞-norm is one, as rows sum to one; the 1-norm is the largest column sum. Both are norms of this matrix alone.
        columns = kernel.sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True)
        inverse = kernel.mT / (columns if few is None else columns + (columns == 0))
        one = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
        for _ in range(self.options.iterations):
            product = kernel @ inverse
            inverse = inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
        return inverse


def softmax_attention(query: Queries, key: Keys, value: Keys, valid: KeyValid) -> Queries:
    """Return softmax(Q Kᵀ / √d) V over the valid keys."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return softmax_over_valid(scores, None if valid is None else valid[:, None, None]) @ value


def means_of_parts(tokens: Float[Tensor, "heads n d"], m: int) -> Float[Tensor, "heads m d"]:
    """Cut the tokens of one example into m consecutive parts, and return the mean of each part."""
    return torch.stack([part.mean(dim=1) for part in tokens.tensor_split(m, dim=1)], dim=1)


def landmarks(
    most: int, valid: KeyValid, *tokens: Keys
) -> tuple[list[Float[Tensor, "batch heads m d"]], Bool[Tensor, "batch m"] | None]:
    """Cut the valid tokens of each tensor into m consecutive parts, and return a list of the means, called landmarks. m is ``most``
    or, if smaller, the length. Also return a mask that is True for parts with a valid token, or None if ``valid`` is None.
    """
    m = min(most, tokens[0].shape[2])
    if valid is None:
        return [segment_means(x, m) for x in tokens], None
    (means, few), padding = means_of_valid(valid, m, tokens[0].dtype), ~valid[:, None, :, None]
    # Padded queries may hold NaN, which a weight of zero does not remove.
    return [torch.einsum("bmn,bhnd->bhmd", means, x.masked_fill(padding, 0)) for x in tokens], few


def segment_means(tokens: Keys, m: int) -> Float[Tensor, "batch heads m d"]:
    """Cut n tokens into m consecutive parts, and return the mean of each part. The first n mod m parts hold one token more than the
    others.
    """
    each, longer = tokens.shape[2] // m, tokens.shape[2] % m
    if torch.compiler.is_compiling():
        return _gathered_means(tokens, m, each, longer)
    cut = longer * (each + 1)
    parts = [tokens[:, :, :cut].unflatten(2, (-1, each + 1)).mean(dim=3)] if longer else []
    return torch.cat([*parts, tokens[:, :, cut:].unflatten(2, (-1, each)).mean(dim=3)], dim=2)


def _gathered_means(tokens: Keys, m: int, each: int, longer: int) -> Float[Tensor, "batch heads m d"]:
    """Compute ``segment_means`` with shapes that fit every length, so that the compiler makes one graph for all lengths."""
    part, step = torch.arange(m, device=tokens.device), torch.arange(each + 1, device=tokens.device)
    size, first = each + (part < longer).long(), part * each + part.clamp(max=longer)
    places = (first[:, None] + step).clamp(max=tokens.shape[2] - 1)
    gathered = tokens.index_select(2, places.flatten()).unflatten(2, (m, each + 1))
    return gathered.masked_fill((step >= size[:, None])[..., None], 0).sum(dim=3) / size[:, None]


def means_of_valid(
    valid: Bool[Tensor, "batch n"], m: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "batch m n"], Bool[Tensor, "batch m"]]:
    """Return the matrix that averages the valid tokens of m consecutive parts, and a mask that is True for parts with a valid
    token.

    If the number of valid tokens is not a multiple of m, the first parts hold one token more than the others. If fewer than m
    tokens are valid, each valid token is a part.
    """
    count = valid.sum(dim=-1, keepdim=True)
    parts = count.clamp(min=1, max=m)
    each, longer = count // parts, count % parts
    rank, cut = valid.cumsum(dim=-1) - 1, longer * (each + 1)
    part = torch.where(rank < cut, rank // (each + 1), longer + (rank - cut) // each.clamp(min=1))
    holds = (part[:, None] == torch.arange(m, device=valid.device)[:, None]) & valid[:, None]
    size = holds.sum(dim=-1, keepdim=True)
    return holds / size.clamp(min=1).to(dtype), size[..., 0] > 0

"""Who is compared with whom: our mechanism with its options, public layers of the same kind, and what differs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from attn_zoo.cost.peers import layers
from attn_zoo.layer import MultiHeadAttention

OURS = "ours"
"""The side of a rival that is not a peer's."""

YARDSTICK = "softmax"
"""Full attention in PyTorch's fused kernel, beside all of them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A public layer."""

    package: str
    """As pip calls it."""
    module: str
    """What it installs."""
    what: str
    """The class or function that is measured."""
    build: Callable[[int, int, int, int], nn.Module]
    """(dim, heads, size, length) -> a whole layer."""
    differs: str
    """From ours, beside the code."""

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        try:
            there = importlib.util.find_spec(self.module) is not None
        except ValueError:
            there = False
        return None if there else f"{self.package} is not installed"

    def version(self) -> str:
        """Of the installed package."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return "of unknown version"


@dataclass(frozen=True, slots=True)
class Rival:
    """One of our mechanisms and its peers."""

    attention: str
    options: Callable[[int], Mapping[str, Any]]
    """Of ours, for a size."""
    peers: Mapping[str, Peer]
    size: int = 0
    """The hyperparameter that both sides share; 0 where there is none."""
    dial: str = ""
    """Its name."""
    implementation: str = "auto"
    causal: bool = False
    longest: int | None = None
    """Beyond this length it is left out."""
    reason: str = ""
    """Why."""
    largest_batch: int | None = None

    def build(self, dim: int, heads: int, size: int, length: int) -> MultiHeadAttention:
        """Our layer."""
        options = {"implementation": self.implementation, "causal": self.causal, **self.options(size)}
        return MultiHeadAttention(dim, heads, self.attention, length=length, **options)


_HF = "transformers"

_SOFTMAX_LINEAR = Peer(
    "linear-attention-transformer",
    "linear_attention_transformer",
    "SelfAttention",
    layers.linear,
    "queries are normalised over features and keys over positions: no divisor is left, and no map of ours is the same",
)

RIVALS: dict[str, Rival] = {
    "linformer": Rival(
        "linformer",
        lambda size: {"projected_length": size, "sharing": "headwise"},
        {
            "linformer": Peer(
                "linformer", "linformer", "LinformerSelfAttention", layers.linformer, "the same map on the same weights"
            )
        },
        256,
        "projected keys",
    ),
    "performer": Rival(
        "performer",
        lambda size: {"features": size},
        {
            "performer-pytorch": Peer(
                "performer-pytorch",
                "performer_pytorch",
                "SelfAttention",
                layers.performer,
                "adds 1e-4 to every feature, where our stabilisers cancel exactly",
            )
        },
        256,
        "features",
    ),
    "window": Rival(
        "longformer",
        lambda size: {"window": 2 * size + 1, "global_tokens": 0},
        {
            "local-attention": Peer(
                "local-attention",
                "local_attention",
                "LocalMHA",
                layers.local_attention,
                "the same map on the same weights (exact_windowsize, no rotary positions)",
            ),
            "Longformer": Peer(
                _HF,
                "transformers",
                "LongformerSelfAttention",
                layers.longformer,
                "the same map on the same weights; three more projections, for global tokens, lie idle",
            ),
        },
        256,
        "keys on either side",
    ),
    "reformer": Rival(
        "reformer",
        lambda size: {"chunk": size, "rounds": layers.HASHES, "duplicates": "counted"},
        {
            "reformer-pytorch": Peer(
                "reformer-pytorch",
                "reformer_pytorch",
                "LSHSelfAttention",
                layers.reformer,
                "the chunk before may be of another bucket; one chunk a bucket on average, ours two; hashes drawn at each call",
            ),
            "LSHSelfAttention": Peer(
                _HF,
                "transformers",
                "LSHSelfAttention",
                layers.lsh_of_transformers,
                "the chunk before may be of another bucket; half a chunk a bucket on average, ours two; hashes drawn at each call",
            ),
        },
        64,
        f"tokens a chunk, {layers.HASHES} hashes",
    ),
    "nystrom": Rival(
        "nystrom",
        lambda size: {"landmarks": size},
        {
            "nystrom-attention": Peer(
                "nystrom-attention",
                "nystrom_attention",
                "NystromAttention",
                layers.nystrom,
                "the pseudo-inverse starts from maxima over the whole batch, not from each head's own",
            )
        },
        64,
        "landmarks",
    ),
    "linear": Rival(
        "linear",
        lambda size: {},
        {"linear-attention-transformer": _SOFTMAX_LINEAR},
    ),
    "linear_softmax": Rival(
        "linear",
        lambda size: {"feature_map": "softmax"},
        {"linear-attention-transformer": _SOFTMAX_LINEAR},
    ),
    "linear_causal": Rival(
        "linear",
        lambda size: {},
        {
            "flash-linear-attention": Peer(
                "fla-core",
                "fla",
                "naive_chunk_linear_attn",
                layers.linear_causal,
                "the same map on the same weights; its kernels need a GPU, this is its plain PyTorch form between our projections",
            )
        },
        causal=True,
    ),
    "bigbird": Rival(
        "bigbird",
        lambda size: {"block": size, "random_blocks": layers.RANDOM_BLOCKS, "window_blocks": 3, "global_blocks": 2},
        {
            "BigBird": Peer(
                _HF,
                "transformers",
                "BigBirdBlockSparseAttention",
                layers.bigbird,
                "always makes all n × n weights as well; draws random blocks among the first ones of the sequence only, and in "
                "evaluation takes the first block for each of them",
            )
        },
        64,
        f"tokens a block, {layers.RANDOM_BLOCKS} random blocks",
    ),
    "entmax": Rival(
        "entmax",
        lambda size: {"alpha": 1.5},
        {
            "entmax": Peer(
                "entmax", "entmax", "entmax15", layers.entmax, "the same map on the same weights, between our projections"
            )
        },
        longest=4096,
        reason="the package sorts all n × n scores at once, 4 GiB of them with 8 GiB of indices by count; not tried",
        largest_batch=1,
    ),
}
"""By the name that ``mechanisms`` takes."""


def builder(rival: str, side: str, dim: int, heads: int, size: int) -> Callable[[int], nn.Module]:
    """What builds a side's layer for a length; picklable. ``rival`` may be ``YARDSTICK``, with ``causal`` as its other side."""
    return partial(_build, rival, side, dim, heads, size)


def _build(rival: str, side: str, dim: int, heads: int, size: int, length: int) -> nn.Module:
    if rival == YARDSTICK:
        return MultiHeadAttention(dim, heads, "softmax", length=length, implementation="sdpa", causal=side == "causal")
    known = RIVALS[rival]
    return (known.build if side == OURS else known.peers[side].build)(dim, heads, size, length)

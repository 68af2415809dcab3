"""Comparisons of mechanisms of the zoo with layers of public packages: which layers, and how they differ."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import peer_layers as layers
import torch
from torch import Tensor, nn

from attn_zoo.contract import UnknownNameError
from attn_zoo.count.costs import stated_cost
from attn_zoo.count.subjects import Subject, build_module, random_inputs
from attn_zoo.rows import RowName, read_rows, typed

OURS = "ours"
"""Name of the zoo's layer as a side of a comparison."""

BASELINE = "softmax"
"""Name under which PyTorch's fused softmax attention is timed."""

BASELINES = {"full": (False, "layer"), "causal": (True, "layer"), "causal mechanism": (True, "mechanism")}
"""Sides of the baseline: whether it is causal, and its scope, as in ``Comparison.level``."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Layer of a public package that is compared with a mechanism of the zoo."""

    package: str
    """Name that pip knows."""
    what: str
    """Class or function that is measured."""
    differs: str
    """Differences from the zoo's layer."""
    build: Callable[[int, int, int, int], nn.Module]
    """(dim, heads, value of the hyperparameter, length) -> the module, which is a layer or a mechanism (``Comparison.level``)."""

    def missing(self) -> str | None:
        """Return why the package of this layer cannot be used, or None if it can."""
        module = "fla" if self.package == "fla-core" else self.package.replace("-", "_")
        try:
            there = importlib.util.find_spec(module) is not None
        except ValueError:
            there = False
        return None if there else f"{self.package} is not installed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mechanism of the zoo, and the layers of public packages that are compared with it."""

    attention: str
    peers: Mapping[str, Peer]
    hyperparameter: str = ""
    """Name of the option that both sides share; empty if there is none."""
    value: int = 0
    """Default value of the hyperparameter."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the zoo's layer."""
    causal: bool = False
    level: str = "layer"
    """Scope that is measured on both sides: ``layer``, or ``mechanism`` without the projections."""
    longest: int | None = None
    """Greatest length that is measured."""
    reason: str = ""
    """Reason for the limit ``longest``."""
    largest_batch: int | None = None

    @property
    def baseline(self) -> str:
        """Side of the baseline with which both sides are compared."""
        return next(name for name, scope in BASELINES.items() if scope == (self.causal, self.level))

    def row(self, given: RowName) -> RowName:
        """Return the name of our layer in this comparison: its mechanism, options and implementation. The implementation is that
        of ``given``. The option that our layer shares with those of public packages has the value in ``given``, or its default.
        """
        options = {self.hyperparameter: self.value} if self.hyperparameter else {}
        return typed(RowName(self.attention, options | dict(given.options) | dict(self.options), given.implementation))

    def shared(self, row: RowName) -> int:
        """Return the value of the option that our layer and those of public packages share, such as a window, or 0 if they share
        none."""
        return int(row.options[self.hyperparameter]) if self.hyperparameter else 0


_SAME = "the same map on the same weights"
_LINEAR = "linear_attention_transformer"
_SOFTMAX_LINEAR = Peer(
    "linear-attention-transformer",
    "SelfAttention",
    "queries are normalised over features and keys over positions, without a divisor; none of our feature maps does this",
    lambda dim, heads, value, length: import_module(f"{_LINEAR}.{_LINEAR}").SelfAttention(dim, heads),
)
_LINFORMER = Peer(
    "linformer",
    "LinformerSelfAttention",
    _SAME,
    lambda dim, heads, value, length: import_module("linformer").LinformerSelfAttention(dim, length, k=value, heads=heads),
)
_PERFORMER = Peer(
    "performer-pytorch",
    "SelfAttention",
    "adds 1e-4 to every feature; our stabilisers cancel exactly",
    lambda dim, heads, value, length: import_module("performer_pytorch").SelfAttention(
        dim, heads=heads, dim_head=dim // heads, nb_features=value
    ),
)
_LOCAL = Peer(
    "local-attention",
    "LocalMHA",
    f"{_SAME} (exact_windowsize, no rotary positions)",
    lambda dim, heads, value, length: import_module("local_attention").LocalMHA(
        dim=dim, heads=heads, dim_head=dim // heads, window_size=value // 2, exact_windowsize=True, use_rotary_pos_emb=False
    ),
)
_LONGFORMER = Peer(
    "transformers",
    "LongformerSelfAttention",
    f"{_SAME}; its three projections for global tokens are not used",
    layers.longformer,
)
_REFORMER = Peer(
    "reformer-pytorch",
    "LSHSelfAttention",
    "the chunk before may be of another bucket; one chunk per bucket on average, two in ours; hashes are drawn at each call",
    lambda dim, heads, value, length: import_module("reformer_pytorch").LSHSelfAttention(
        dim, heads=heads, bucket_size=value, n_hashes=layers.HASHES
    ),
)
_LSH = Peer(
    "transformers",
    "LSHSelfAttention",
    "the chunk before may be of another bucket; half a chunk per bucket on average, two in ours; hashes are drawn at each call",
    layers.lsh,
)
_NYSTROM = Peer(
    "nystrom-attention",
    "NystromAttention",
    "the pseudo-inverse starts from maxima over the whole batch, not from each head's own",
    lambda dim, heads, value, length: import_module("nystrom_attention").NystromAttention(
        dim, dim_head=dim // heads, heads=heads, num_landmarks=value, residual=False
    ),
)
_FLA = Peer(
    "fla-core",
    "naive_chunk_linear_attn",
    f"{_SAME}; its kernels need a GPU, so this is its plain PyTorch form between our projections",
    layers.linear_causal,
)


def _recurrence(name: str, package: str, module: str, function: str) -> Peer:
    differs = "the same map: its recurrence in plain PyTorch, in chunks of 64, in our mechanism"
    return Peer(
        package, function, differs, partial(layers.recurrence, name=name, package=package, module=module, function=function)
    )


_BIGBIRD = Peer(
    "transformers",
    "BigBirdBlockSparseAttention",
    "always makes all n × n weights as well; draws random blocks among the first ones of the sequence only, and in evaluation "
    "takes the first block for each of them",
    layers.bigbird,
)
_ENTMAX = Peer("entmax", "entmax15", f"{_SAME}, between our projections", layers.entmax)

COMPARISONS: Mapping[str, Comparison] = {
    "linformer": Comparison("linformer", {"linformer": _LINFORMER}, "projected_length", 256, {"sharing": "headwise"}),
    "performer": Comparison("performer", {"performer-pytorch": _PERFORMER}, "features", 256),
    "window": Comparison("longformer", {"local-attention": _LOCAL, "Longformer": _LONGFORMER}, "window", 513, {"global_tokens": 0}),
    "reformer": Comparison(
        "reformer",
        {"reformer-pytorch": _REFORMER, "LSHSelfAttention": _LSH},
        "chunk",
        64,
        {"rounds": layers.HASHES, "duplicates": "counted"},
    ),
    "nystrom": Comparison("nystrom", {"nystrom-attention": _NYSTROM}, "landmarks", 64),
    "linear": Comparison("linear", {"linear-attention-transformer": _SOFTMAX_LINEAR}),
    "linear_softmax": Comparison("linear", {"linear-attention-transformer": _SOFTMAX_LINEAR}, options={"feature_map": "softmax"}),
    "linear_causal": Comparison("linear", {"flash-linear-attention": _FLA}, causal=True),
    "gated_delta_rule": Comparison(
        "gated_delta_rule",
        {
            "flash-linear-attention": _recurrence(
                "gated_delta_rule", "fla-core", "gated_delta_rule", "naive_chunk_gated_delta_rule"
            ),
            "Qwen3-Next": _recurrence("gated_delta_rule", "transformers", "qwen3_next", "torch_chunk_gated_delta_rule"),
        },
        causal=True,
        level="mechanism",
    ),
    "kda": Comparison(
        "kda",
        {
            "flash-linear-attention": _recurrence("kda", "fla-core", "kda", "naive_chunk_kda"),
            "KimiLinear": _recurrence("kda", "transformers", "kimi_linear", "chunk_kimi_delta_attention"),
        },
        causal=True,
        level="mechanism",
    ),
    "bigbird": Comparison(
        "bigbird",
        {"BigBird": _BIGBIRD},
        "block",
        64,
        {"random_blocks": layers.RANDOM_BLOCKS, "window_blocks": 3, "global_blocks": 2},
    ),
    "entmax": Comparison(
        "entmax",
        {"entmax": _ENTMAX},
        options={"alpha": 1.5},
        longest=4096,
        reason="the package sorts all n × n scores at once, which would take 4 GiB for scores and 8 GiB for indices",
        largest_batch=1,
    ),
}


def compared_rows(texts: Sequence[str]) -> dict[str, RowName]:
    """Return the row names (mechanism, options and implementation) of our layers, by the name of the comparison.

    Args:
        texts: names of comparisons, with a value of the shared option if needed, such as ``linformer[projected_length=128]``.

    Raises:
        UnknownNameError: a comparison is unknown, or an option is not the one that both sides of the comparison share.
        ValueError: a text is not a row, none is named, one is named twice, or a value breaks the mechanism's rule.
    """
    found: dict[str, RowName] = {}
    for given in (row for text in texts for row in read_rows(text)):
        name = given.attention
        if name not in COMPARISONS:
            raise UnknownNameError("mechanism of peers", name, COMPARISONS)
        shared = [COMPARISONS[name].hyperparameter] if COMPARISONS[name].hyperparameter else []
        if unknown := [option for option in given.options if option not in shared]:
            raise UnknownNameError(f"hyperparameter of the comparison {name}", unknown[0], shared)
        if name in found:
            raise ValueError(f"mechanisms must name each comparison once; got {name} twice")
        if not all(str(value).isdecimal() for value in given.options.values()):
            raise ValueError(f"{shared[0]} of the comparison {name} must be an integer; got {given}")
        found[name] = COMPARISONS[name].row(given)
    if not found:
        raise ValueError(f"mechanisms must name at least one of {', '.join(COMPARISONS)}; got none")
    return found


def side_inputs(name: str, side: str, dim: int, heads: int, row: RowName | None) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function from batch, length and dtype to random inputs of one side of a comparison. All sides have equal inputs; see
    ``build_side`` for the arguments."""
    return partial(random_inputs, *_subject(name, side, row), dim, heads)


def build_side(name: str, side: str, dim: int, heads: int, row: RowName | None, length: int) -> nn.Module:
    """Return the module of one side of a comparison.

    Args:
        name: name of the comparison, or ``BASELINE`` for softmax attention.
        side: ``OURS`` or the name of a peer; for the baseline, one of ``BASELINES``.
        row: mechanism, options and implementation of our side; None for the baseline.
    """
    if row is None or side == OURS:
        return build_module(*_subject(name, side, row), dim, heads, length)
    known = COMPARISONS[name]
    return known.peers[side].build(dim, heads, known.shared(row), length)


def _subject(name: str, side: str, row: RowName | None) -> tuple[str, Subject]:
    """Return the scope of a comparison, and the mechanism of our side."""
    if row is None:
        causal, level = BASELINES[side]
        return level, Subject("softmax", {}, "sdpa", causal=causal)
    known = COMPARISONS[name]
    return known.level, Subject(known.attention, row.options, row.implementation, causal=known.causal)


def require_peers(mechanisms: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the versions of the installed packages, and a list of reasons why other packages are left out.

    Args:
        mechanisms: names of the comparisons.

    Raises:
        ValueError: none of the packages is installed.
    """
    peers = [peer for name in mechanisms for peer in COMPARISONS[name].peers.values()]
    missing = list(dict.fromkeys(reason for peer in peers if (reason := peer.missing())))
    versions = {peer.package: version(peer.package) for peer in peers if peer.missing() is None}
    if not versions:
        raise ValueError(
            f"at least one public package to compare with must be installed, and none is: {'; '.join(missing)}. Install them "
            "with: pip install 'attn-zoo[peers]'"
        )
    return versions, missing


def floor_flops(name: str, dim: int, heads: int, row: RowName, length: int) -> dict[str, int]:
    """Return the FLOPs of the arithmetic floor of our layer for one sequence, by direction (``forward``, ``training``).

    The floor counts the matrix products that the card states and, for layers, the projections around them. In the backward pass, at
    most two products are counted for each forward product, one for the gradient of each factor, so products that are computed again
    do not count. Softmax, biases and memory traffic are free. The floor in seconds is these FLOPs at the rate of one large fp32
    matrix product, so no fp32 code that computes the products is faster.
    """
    with torch.device("meta"):
        cost = stated_cost(build_side(name, OURS, dim, heads, row, length))
    assert cost.backward_flops is not None, "every card states it"
    return {"forward": cost.flops, "training": cost.flops + min(cost.backward_flops, 2 * cost.flops)}

"""Requirements that a user has for an attention layer, and the mechanisms that meet them, with their counted costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_zoo.checks import check_whole
from attn_zoo.contract import Cost, Geometry, UnknownNameError, choose_implementation
from attn_zoo.count import activation_bytes
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.recommend.needs import ACCEPT, NEEDS
from attn_zoo.recommend.verdicts import Judgement
from attn_zoo.registry import attention_options, attentions, card
from attn_zoo.rows import RowName
from attn_zoo.terminal import byte_count

CUDA_DTYPE = torch.bfloat16
"""Data type for which ``auto`` chooses an implementation on CUDA."""
_NEEDS = {need.name: need for need in NEEDS}
_EXCLUSIVE = (
    ("--cross", {"--causal", "--decode"}, "its keys come from another sequence"),
    ("--decode", {"--direction training"}, "generation has no backward pass"),
    ("--trained", {"--causal", "--cross", "--decode"}, "attn-zoo transplant supports bidirectional encoders only"),
    ("--trained", {"--for", "--task"}, "each of them chooses the deciding tasks"),
    ("--task", {"--for"}, "each of them chooses the deciding tasks"),
)
"""Options that exclude others, with the reason."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements on an attention layer that is used at one length.

    Error messages name the options of ``attn-zoo recommend``, such as ``--width``.

    Raises:
        UnknownNameError: the use case is unknown.
        ValueError: a size is out of its range, or two requirements exclude each other.
    """

    length: int
    width: int = 256
    heads: int = 4
    device: str = "cpu"
    """Type of device, ``cpu`` or ``cuda``."""
    direction: str = "forward"
    """Passes whose cost is counted: ``forward``, or ``training`` for a forward and backward pass."""
    causal: bool = False
    padding: bool = False
    cross: bool = False
    """True for cross-attention, whose keys come from another sequence of the same length."""
    decode: bool = False
    """True for generation token by token from a state smaller than softmax's keys and values."""
    trained: bool = False
    """True for a model that was trained with softmax and gets the mechanism afterwards."""
    memory: int | None = None
    """Limit in bytes, for one layer and sequence, on the tensors that training saves for the backward pass or, with ``decode``, on
    the recurrent state."""
    use: str | None = None
    """Name of the use case (one of ``NEEDS``) on whose tasks the recommendation is based. None for all recorded tasks of the
    required direction."""
    task: str | None = None
    """Name of the only task on which the recommendation is based; None for several."""
    accept: float = ACCEPT
    """Largest acceptable loss against softmax, in points for percentage metrics, else in per cent of softmax's score."""

    def __post_init__(self) -> None:
        for name in ("length", "width", "heads"):
            check_whole(f"--{name}", getattr(self, name))
        if self.width % self.heads:
            raise ValueError(f"--width must be divisible by --heads; got --width {self.width} --heads {self.heads}")
        if not 0 <= self.accept < 100:
            raise ValueError(f"--accept must be a loss of at least 0 and less than 100 points; got {self.accept:g}")
        if self.memory is not None and not (self.decode or self.direction == "training"):
            raise ValueError(
                "--memory must go with --direction training or --decode, because it limits the memory of training or of "
                "generation. Add one of the two"
            )
        given = {f"--{name}" for name in ("causal", "cross", "decode", "task", "trained") if getattr(self, name)}
        given |= {"--for"} if self.use else set()
        given |= {"--direction training"} if self.direction == "training" else set()
        for one, others, why in _EXCLUSIVE:
            if one in given and (other := given & others):
                raise ValueError(f"{one} cannot be combined with {min(other)}, because {why}. Leave one of them out")
        if self.use is not None:
            self._check_use(self.use)

    def _check_use(self, use: str) -> None:
        if use not in _NEEDS:
            raise UnknownNameError("use case", use, _NEEDS)
        if _NEEDS[use].small_state and not self.decode:
            raise ValueError(
                f"--for {use} must go with --decode, because its mechanisms are compared by the size of their recurrent state. "
                "Add --decode"
            )
        if self.reads_past not in _NEEDS[use].directions:
            raise ValueError(f"the tasks of --for {use} are bidirectional. Leave out {'--decode' if self.decode else '--causal'}")

    @property
    def reads_past(self) -> bool:
        """True if the layer must be causal. Generation (``decode``) is always causal."""
        return self.causal or self.decode

    @property
    def geometry(self) -> Geometry:
        """Sizes and direction for which the mechanism of the layer is built."""
        return Geometry(self.heads, self.width // self.heads, self.length, self.length, self.reads_past)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Mechanism that meets the requirements: its options, its implementation, its cost in one layer, and its verdicts."""

    attention: str
    options: Mapping[str, Any]
    """Given options. All others have their defaults, which may depend on the required length."""
    requested: str
    """Name of the implementation that the user asked for, or ``auto``."""
    implementation: str
    """Requested implementation or, for ``auto``, the implementation that is chosen for the device."""
    flops: int | None
    """FLOPs of the mechanism for one sequence, in a forward pass or in training as required; None if not counted."""
    share: float
    """FLOPs of the mechanism divided by softmax's, or infinity if they are not counted."""
    states: tuple[int, int] | None
    """Bytes of the recurrent state and of softmax's keys and values; None if the size of the state is not known."""
    warnings: tuple[str, ...]
    judged: Mapping[str, Judgement] = field(default_factory=dict)
    """Verdicts by the name of the recorded task or, for a trained encoder, of the quality."""
    scored: str = ""
    """Name under which the mechanism was scored: the mechanism's or, for a trained encoder, that of its best student."""

    @property
    def label(self) -> str:
        """Row name with the implementation, such as ``linformer[projected_length=64] (sdpa)``."""
        return f"{RowName(self.attention, self.options)} ({self.implementation})"

    @property
    def percent(self) -> str:
        """Share of softmax's FLOPs as text, such as ``1.6 %``, or ``-`` if it is not known."""
        return "-" if self.share == float("inf") else f"{percentage(self.share)} %"

    @property
    def smaller(self) -> bool:
        """True if the recurrent state has a known size and is smaller than softmax's keys and values."""
        return self.states is not None and self.states[0] < self.states[1]


def percentage(share: float) -> str:
    """Return a share in per cent, with two digits if it is below 10 %."""
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:,.0f}"


def candidates(required: Requirements, rows: Sequence[RowName] = ()) -> tuple[list[Candidate], dict[str, str]]:
    """Return the mechanisms that meet the requirements, the cheapest first, and why each of the others does not, by its row name.

    Args:
        rows: mechanisms with options to choose among; by default all mechanisms except controls. Softmax is always added.

    Raises:
        ValueError: the cost of softmax cannot be counted for these requirements.
    """
    asked = list(rows) or [RowName(name) for name in attentions() if not card(name).control]
    if not any(row.attention == BASELINE for row in asked):
        asked.append(RowName(BASELINE))
    softmax = card(BASELINE).cost(required.geometry, attention_options(card(BASELINE), required.geometry, {}))
    found, refused = [], dict[str, str]()
    for row in asked:
        try:
            found.append(_candidate(required, row, softmax, named=bool(rows)))
        except (ValueError, UnknownNameError) as error:
            refused[str(row)] = str(error)
    return sorted(found, key=lambda each: (each.share, each.label)), refused


def _candidate(required: Requirements, row: RowName, softmax: Cost, named: bool) -> Candidate:
    """Check a row against the requirements and return it as a candidate.

    Raises:
        ValueError, UnknownNameError: the row does not meet the requirements; the message says why.
    """
    entry, geometry = card(row.attention), required.geometry
    recurrent = entry.can.stepwise or row.attention == BASELINE
    missing = {
        "has no causal form": required.reads_past and not entry.can.causal,
        "has no recurrent form, so each token would be computed from the whole sequence": required.decode and not recurrent,
        "cannot mask padded keys": required.padding and not entry.can.key_padding,
        "supports self-attention only": required.cross and not entry.can.cross,
    }
    if reasons := [reason for reason, holds in missing.items() if holds]:
        raise ValueError(f"{row.attention} {reasons[0]}")
    if named:  # building takes a second, and without options only fails for mechanisms that cost more than softmax
        _build(required, row)
    options = attention_options(entry, geometry, row.options)
    counts, implementation = entry.cost(geometry, options), row.implementation
    if implementation == "auto":
        dtype = CUDA_DTYPE if required.device == "cuda" else None
        implementation = choose_implementation(entry, geometry, options, torch.device(required.device), dtype)
    if required.memory is not None:
        kept = counts.state_bytes if required.decode else activation_bytes(entry, geometry, options, row.implementation)
        if kept is not None and kept > required.memory:
            raise ValueError(
                f"{row.attention} needs {byte_count(kept)} (counted, not measured); the limit is {byte_count(required.memory)}"
            )
    own, its = _flops(required, counts), _flops(required, softmax)
    states = (counts.state_bytes, softmax.state_bytes)
    return Candidate(
        row.attention,
        row.options,
        row.implementation,
        implementation,
        own,
        own / its if own and its else float("inf"),  # a count of 0 is unknown: only matrix products are counted
        None if states[0] is None or states[1] is None else (states[0], states[1]),
        entry.build.warnings(geometry, options),
        scored=row.attention,
    )


def _flops(required: Requirements, counts: Cost) -> int | None:
    if required.direction == "forward":
        return counts.flops
    return None if counts.backward_flops is None else counts.flops + counts.backward_flops


def _build(required: Requirements, row: RowName) -> None:
    """Build an attention layer without memory, which raises an error if it does not support the row's options."""
    with torch.device("meta"):
        MultiHeadAttention(
            required.width,
            required.heads,
            row.attention,
            length=required.length,
            context_length=required.length if required.cross else None,
            causal=required.reads_past,
            implementation=row.implementation,
            **row.options,
        )

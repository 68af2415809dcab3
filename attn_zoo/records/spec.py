"""What is run: everything that decides a result, and nothing else. Plain data, no tensor library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

PROTOCOL = "2.0"
"""Version of the training and timing rules. Results share a table only if it is equal.

2.0: runs take ``implementation=auto``, and times are compared among what it takes on one device; the token encoder starts with
positions a tenth as large as tokens. 1.0: both started equally large, and runs took ``eager``, which
was CPU tiles where a mechanism had them.
"""
OLD_PROTOCOLS = ("1.0",)
"""Earlier versions, whose records load and stand in tables of their own."""

_YOUNGER = "younger"


def _younger(default: Any) -> Any:
    """Field that is younger than the first records. A spec does not mention it at its default, so that older ids hold."""
    return field(default=default, metadata={_YOUNGER: True})


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The network around the attention, identical for every row of a table."""

    dim: int = 64
    depth: int = 2
    heads: int = 4
    mlp_ratio: float = 2.0
    dropout: float = 0.0
    """Dropout after embedding, attention output and MLP; the weights' own dropout is the mechanism's option."""
    backbone: str = ""
    """timm's name of a VisionTransformer, for tasks on patches; the sizes above are then its own. Empty is the plain one."""
    shared_weights: bool = _younger(False)
    """One block, applied ``depth`` times (Universal Transformer, without halting)."""
    reuse_keys: bool = _younger(False)
    """Keys and values of the first application serve all; needs ``shared_weights`` and a task on tokens."""
    short_convolution: int = _younger(0)
    """Tokens that a depthwise convolution takes together before every attention; 0 is none, 4 the usual number."""
    positions: str = _younger("learned")
    """``learned``, one vector for each absolute position, or ``none`` (NoPE), for tasks on tokens: a causal network can tell the
    order without them, and one that is tested on longer sequences than it was trained on meets no untrained vector."""

    def __post_init__(self) -> None:
        for name in ("dim", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} counts something, so it is at least 1; got {getattr(self, name)}")
        if self.dim % self.heads:
            raise ValueError(f"model.dim must be divisible by model.heads; got dim={self.dim} and heads={self.heads}")
        if self.mlp_ratio <= 0:
            raise ValueError(f"model.mlp_ratio is the width of the MLP over dim, so it is above 0; got {self.mlp_ratio}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"model.dropout is a share, so it lies in [0, 1); got {self.dropout}")
        if self.short_convolution < 0:
            raise ValueError(
                "model.short_convolution counts tokens taken together, and 0 is none, so it cannot be negative; "
                f"got {self.short_convolution}"
            )
        if self.positions not in ("learned", "none"):
            raise ValueError(f"model.positions is learned or none; got {self.positions!r}")
        if self.reuse_keys and not self.shared_weights:
            raise ValueError("model.reuse_keys keeps the keys of one block for all; add model.shared_weights=true")


@dataclass(frozen=True, slots=True)
class Budget:
    """How long and how a model is trained, identical for every row of a table."""

    steps: int = 400
    """Steps of training; with ``seconds`` the most that are done."""
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup_steps: int = 40
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    evaluate_every: int = 100
    """Steps between looks at the validation split; the best look chooses the weights that are tested."""
    max_seconds: float = 0.0
    """A run that trains longer ends as ``timed_out``; 0 sets no limit."""
    seconds: float = _younger(0.0)
    """Time of training, evaluation not counted, after which the run ends as ``done``; 0 leaves the end to ``steps``."""
    pretrain_steps: int = _younger(0)
    """Steps before those, in which the encoder learns to tell masked tokens of the task's training inputs (Amos et al. 2023)."""
    schedule: str = _younger("cosine")
    """Learning rate after the warm-up: ``cosine`` falls to zero along the share of ``steps`` or, where that is larger, of
    ``seconds``; ``constant`` stays, so that a run cut short anywhere is a run of that length."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"budget.{name} counts something, so it is at least 1; got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"budget.{name} must be above 0; got {getattr(self, name)}")
        for name in ("weight_decay", "warmup_steps", "max_seconds", "seconds", "pretrain_steps"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"budget.{name} cannot be negative; got {getattr(self, name)}")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"budget.schedule is cosine or constant; got {self.schedule!r}")
        if self.seconds and self.max_seconds:
            raise ValueError(
                "budget.seconds ends a run as done, and budget.max_seconds would end it as timed_out before that or never; give "
                f"one of them; got seconds={self.seconds:g} and max_seconds={self.max_seconds:g}"
            )


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One cell of one table for one seed: all that a run depends on, resolved and serialisable."""

    attention: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the attention, defaults included."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the task, defaults included."""
    implementation: str = "auto"
    """As asked for: a name on the card, or ``auto``. The record names what ran."""
    model: ModelSpec = field(default_factory=ModelSpec)
    budget: Budget = field(default_factory=Budget)
    seed: int = 1
    device: str = "cpu"
    """Type of device, ``cpu`` or ``cuda``."""
    precision: str = "fp32"
    """``fp32``, or ``bf16`` / ``fp16`` for autocast."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data. A field younger than the first records is left out at its default, as it is there."""
        data = asdict(self)
        for name, part in (("model", self.model), ("budget", self.budget)):
            for option in fields(part):
                if _YOUNGER in option.metadata and data[name][option.name] == option.default:
                    del data[name][option.name]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """The inverse of ``to_dict``."""
        return cls(**{**data, "model": ModelSpec(**data["model"]), "budget": Budget(**data["budget"])})

    def run_id(self, task_version: str, protocol: str = PROTOCOL) -> str:
        """Digest of the spec, the protocol and the task's version: equal ids mean the same experiment."""
        data = self.to_dict()
        if not data["model"]["backbone"]:  # younger than the first records, whose ids hold
            del data["model"]["backbone"]
        canonical = json.dumps([protocol, task_version, data], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

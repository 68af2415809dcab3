"""Spec of a run: all settings on which its result depends, and their digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from attn_zoo.checks import check_number, check_shared_heads, check_text, check_types, check_whole

PROTOCOL = "3.0"
"""Version of the training and timing rules of runs until a criterion (``Budget.until``). Results of different versions never share
a table.

3.0: training ends at a criterion or a maximum number of steps. The learning rate is constant. The last weights are tested. The seed
of a run is also the seed of generated data.
"""
FIXED = "2.0"
"""Version of the rules of runs with a fixed number of steps or seconds. The weights with the best validation score are tested.

2.0: ``implementation=auto`` is the default, and times are compared among the implementations that ``auto`` chooses on one device.
The token encoder initialises the embeddings of positions a tenth as large as those of tokens.
1.0: the token encoder initialised both embeddings equally large. The default was ``implementation=eager``, which then included
computation in tiles on the CPU.
"""
PROTOCOLS = (FIXED, PROTOCOL)
"""Versions of the rules by which this code trains and tests runs."""
OLD_PROTOCOLS = ("1.0",)
"""Versions of the rules of earlier code. Their records can still be read, and have tables of their own."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_ADDED = "younger"
_LONGEST_WORDS = 120
"""Maximum number of characters before the run id in a file name."""


def _added_later(default: Any) -> Any:
    """Return a field that was added after the first records. Plain data leave it out at its default, so older records keep their
    ids.
    """
    return field(default=default, metadata={_ADDED: True})


@dataclass(frozen=True, slots=True)
class _Part:
    """Spec or a part of it, which has plain data."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. Fields that were added after the first records are left out at their defaults."""
        return {  # asdict takes several times as long
            own.name: value.to_dict() if isinstance(value, _Part) else dict(value) if isinstance(value, dict) else value
            for own in fields(self)
            if (value := getattr(self, own.name)) != own.default or _ADDED not in own.metadata
        }


@dataclass(frozen=True, slots=True)
class ModelSpec(_Part):
    """Settings of the network around the mechanism, which are the same for all rows of a table."""

    dim: int = 64
    depth: int = 2
    heads: int = 4
    mlp_ratio: float = 2.0
    dropout: float = 0.0
    """Dropout after embedding, attention output and MLP; dropout of attention weights is an option of the mechanism."""
    backbone: str = ""
    """Name of a VisionTransformer in timm, for tasks on patches. Its sizes replace ``dim``, ``depth``, ``heads`` and ``mlp_ratio``.
    Empty for a plain encoder with these four sizes."""
    shared_weights: bool = _added_later(False)
    """True for one block that is applied ``depth`` times (Universal Transformer, without halting)."""
    reuse_keys: bool = _added_later(False)
    """True to compute keys and values in the first application of the block only; needs ``shared_weights`` and a task on tokens."""
    short_convolution: int = _added_later(0)
    """Kernel size in tokens of a depthwise convolution before every attention; 0 for none, 4 is usual."""
    output_gate: str = _added_later("none")
    """Gate over the output of every attention, before its out projection: ``none``, ``elementwise`` or ``headwise``."""
    key_value_heads: int = _added_later(0)
    """Number of heads of keys and values in every attention, each shared by equally many heads of queries; 0 means ``heads``."""
    latent_dim: int = _added_later(0)
    """Width of the latent vector of a token, from which every attention computes the keys and values of the token; 0 for none."""
    positions: str = _added_later("learned")
    """Position embedding for tasks on tokens: ``learned`` (one vector for each absolute position) or ``none`` (NoPE). With
    ``none``, a causal network can still infer the order. Without position vectors, test sequences can be longer than those of
    training."""

    def __post_init__(self) -> None:
        check_types("model", self)
        for name in ("dim", "depth", "heads"):
            check_whole(f"model.{name}", getattr(self, name))
        if self.dim % self.heads:
            raise ValueError(f"model.dim must be a multiple of model.heads; got dim={self.dim} and heads={self.heads}")
        check_number("model.mlp_ratio", self.mlp_ratio, above=0)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"model.dropout must be at least 0 and less than 1; got {self.dropout}")
        for name in ("short_convolution", "latent_dim"):
            check_whole(f"model.{name}", getattr(self, name), 0)
        check_text("model.output_gate", self.output_gate, ("none", "elementwise", "headwise"))
        check_shared_heads("model", self.key_value_heads, self.heads)
        check_text("model.positions", self.positions, ("learned", "none"))
        if self.reuse_keys and not self.shared_weights:
            raise ValueError(
                "model.reuse_keys=true must go with model.shared_weights=true, because all blocks use the keys of one block. "
                "Set model.shared_weights=true"
            )


@dataclass(frozen=True, slots=True)
class Budget(_Part):
    """Training budget and settings of the optimiser, which are the same for all rows of a table."""

    steps: int = 400
    """Number of training steps; the maximum if ``seconds`` is set or training ends at the criterion."""
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup_steps: int = 40
    clip_norm: float = 1.0
    """Maximum gradient norm; larger gradients are clipped to it."""
    evaluate_every: int = 100
    """Steps between validations."""
    max_seconds: float = 0.0
    """Time limit in seconds, beyond which a run ends as ``timed_out``; 0 for none."""
    seconds: float = _added_later(0.0)
    """Training time in seconds, without evaluation, after which the run ends as ``done``; 0 to end after ``steps``."""
    pretrain_steps: int = _added_later(0)
    """Number of self-pretraining steps before training, on masked tokens of the task's training inputs (Amos et al. 2023)."""
    schedule: str = _added_later("cosine")
    """Learning-rate schedule after the warm-up. ``cosine`` decays to zero at the end of ``steps`` or ``seconds``, whichever is
    earlier. ``constant`` does not decay, so a run that is stopped at step n equals a run of n steps."""

    until: str = _added_later("steps")
    """End of training. ``steps``: after ``steps`` or ``seconds``; the weights with the best validation score are tested.
    ``criterion``: after three validations in a row at 99 % of ``ceiling``, or after ``steps``; the last weights are tested."""
    ceiling: float = _added_later(0.0)
    """Highest validation score that the task allows at this size, for ``until=criterion``; 0 if there is none, as for the metric
    perplexity."""

    def __post_init__(self) -> None:
        check_types("budget", self)
        for name in ("steps", "batch_size", "evaluate_every"):
            check_whole(f"budget.{name}", getattr(self, name))
        for name in ("warmup_steps", "pretrain_steps"):
            check_whole(f"budget.{name}", getattr(self, name), 0)
        for name in ("learning_rate", "clip_norm"):
            check_number(f"budget.{name}", getattr(self, name), above=0)
        for name in ("weight_decay", "max_seconds", "seconds"):
            check_number(f"budget.{name}", getattr(self, name), 0)
        check_text("budget.schedule", self.schedule, ("cosine", "constant"))
        check_text("budget.until", self.until, ("steps", "criterion"))
        check_number("budget.ceiling", self.ceiling, 0)
        if self.until == "steps" and self.ceiling:
            raise ValueError(f"budget.ceiling must be left out unless budget.until=criterion; got {self.ceiling:g}")
        if self.until == "criterion" and (self.schedule != "constant" or self.seconds):
            raise ValueError(
                "budget.until=criterion must go with budget.schedule=constant and without budget.seconds, so that the learning "
                f"rate does not depend on when a run ends; got schedule={self.schedule} and seconds={self.seconds:g}"
            )
        if self.seconds and self.max_seconds:
            raise ValueError(
                f"budget.seconds and budget.max_seconds cannot be given together; got {self.seconds:g} and "
                f"{self.max_seconds:g}. Give budget.seconds to end runs as done, or budget.max_seconds to end them as "
                "timed_out"
            )


@dataclass(frozen=True, slots=True)
class RunSpec(_Part):
    """All settings on which one run depends: the mechanism, the task, the network, the budget and one seed."""

    attention: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the mechanism, including defaults."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the task, including defaults."""
    implementation: str = "auto"
    """Requested implementation: a name on the card, or ``auto``. The record names the one that ran."""
    model: ModelSpec = field(default_factory=ModelSpec)
    budget: Budget = field(default_factory=Budget)
    seed: int = 1
    device: str = "cpu"
    """Type of device, ``cpu`` or ``cuda``."""
    precision: str = "fp32"
    """Precision: ``fp32``, or ``bf16`` or ``fp16`` for autocast."""
    attention_version: int = _added_later(1)
    """Version on the mechanism's card. For a hybrid (layers with different mechanisms), it is 1 plus the sum of (version - 1) over
    these mechanisms."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """Return the spec that ``to_dict`` turned into ``data``.

        Raises:
            ValueError: a field is missing, or a value breaks its rule.
            TypeError: a field is unknown.
        """
        required = ("attention", "task", "model", "budget")
        if not isinstance(data, Mapping) or any(name not in data for name in required):
            raise ValueError(
                f"a spec must be the mapping that RunSpec.to_dict writes, with the keys {', '.join(required)}; got {data!r:.80}"
            )
        return cls(**{**data, "model": ModelSpec(**data["model"]), "budget": Budget(**data["budget"])})

    @property
    def protocol(self) -> str:
        """Version of the rules by which this run is trained and tested."""
        return PROTOCOL if self.budget.until == "criterion" else FIXED

    @property
    def network(self) -> dict[str, Any]:
        """Arguments of ``build_model`` that this spec determines. The task and the implementation are not among them."""
        return {"attention": self.attention, "options": self.options, **asdict(self.model)}

    def run_id(self, task_version: str, protocol: str | None = None) -> str:
        """Return the id of the run: a digest of the spec, the protocol and the task's version. Equal ids mean equal experiments.

        Args:
            protocol: version of the rules of training and testing; None means the property ``protocol``.
        """
        data = self.to_dict()
        if not data["model"]["backbone"]:  # added after the first records, whose ids must not change
            del data["model"]["backbone"]
        return digest_of([protocol or self.protocol, task_version, data])[:16]


def file_stem(spec: RunSpec, run_id: str) -> str:
    """Return the beginning of the names of a run's files.

    The result has only letters, digits, dots, dashes and underscores, so it is valid in any file system.
    """
    return f"{_words(f'{spec.attention}-{spec.task}-s{spec.seed}')}-{run_id}"


def file_pattern(attention: str | None, task: str | None) -> str:
    """Return a pattern that matches the names of record files.

    Args:
        attention: mechanism whose files match; None for all. If it is given, ``task`` must be given too.
        task: task whose files match; None for all.
    """
    if task is None:
        return "*.json"
    return f"*-{_words(task)}-s*.json" if attention is None else f"{_words(f'{attention}-{task}-s')}*.json"


def _words(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:_LONGEST_WORDS]


def digest_of(data: Any) -> str:
    """Return the SHA-256 digest of plain data, written as JSON with sorted keys and without white space."""
    canonical = _CANONICAL.encode(data)
    if "\\ud" in canonical:  # perhaps half of a surrogate pair, which is written as an escape
        canonical = json.dumps(writable(json.loads(canonical)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def writable(value: Any) -> Any:
    """Return a value that can be written as UTF-8, with an escape in place of each surrogate (half of a surrogate pair).

    Python uses surrogates for the bytes of a path that are not valid UTF-8.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return [writable(item) for item in value] if isinstance(value, list) else value

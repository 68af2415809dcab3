"""Settings of a transplant. They are checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from attn_zoo.analysis.starts import Start
from attn_zoo.rows import option

SHORTEST = 8
"""Minimum number of tokens of a shortened passage, including special tokens."""
_LEAST = {
    **{"length": SHORTEST, "passages": 2, "tests": 4, "pair_count": 2, "batch": 1, "distil_steps": 0, "tune_steps": 0},
    **{"classify_steps": 1, "classify_batch": 1, "classify_train": 2, "classify_tests": 2},
}
"""Least values of settings that are counts."""


class Trains(Enum):
    """Parameters that distillation trains."""

    mechanism = "mechanism"
    """Only the parameters of the mechanism."""
    attention = "attention"
    """The parameters of the mechanism, and the projections of queries, keys and values."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Mechanism with one set of options. It replaces the attention of student models."""

    attention: str
    options: Mapping[str, Any]
    dial: str | None
    """Option in which this candidate differs from other candidates with the same mechanism. None if there are no others."""
    label: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a transplant, without the candidates and the data.

    Raises:
        ValueError: a number is out of its range.
    """

    model: str = option("minilm", "minilm, or a folder with a text encoder of transformers")
    length: int = option(256, "number of tokens per passage, including special tokens")
    passages: int = option(384, "number of training passages")
    tests: int = option(128, "number of test passages, in consecutive pairs")
    pair_count: int = option(256, "number of sentence pairs for the test")
    short: float = option(0.25, "share of the training passages that are shortened and padded")
    trains: Trains = option(
        Trains.attention, "parameters that distillation trains: attention (mechanism and projections) or mechanism"
    )
    distil_steps: int = option(120, "number of distillation steps for each layer")
    tune_steps: int = option(48, "number of fine-tuning steps of the whole student")
    batch: int = option(8, "number of passages per training step")
    distil_rate: float = option(1e-3, "peak learning rate of distillation")
    tune_rate: float = option(3e-5, "peak learning rate of fine-tuning")
    mechanism_factor: float = option(5.0, "factor by which learning rates are multiplied for parameters of the mechanism")
    classify_steps: int = option(100, "number of fine-tuning steps on each task in classify")
    classify_batch: int = option(16, "number of examples per fine-tuning step on a task in classify")
    classify_rate: float = option(1e-4, "peak learning rate of fine-tuning on a task in classify")
    classify_train: int = option(4096, "maximum number of training examples of a task in classify")
    classify_tests: int = option(1000, "maximum number of test examples of a task in classify")

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.tests % 2:
            raise ValueError(f"tests must be even, because the passages come in pairs; got {self.tests}")
        if not 0.0 <= self.short <= 1.0:
            raise ValueError(f"short must be from 0 to 1, because it is the share of passages that are cut short; got {self.short}")
        for name in ("distil_rate", "tune_rate", "mechanism_factor", "classify_rate"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a positive number; got {getattr(self, name)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary for JSON. If ``model`` is a folder, only the name of the folder is kept."""
        model = Path(self.model).name if Path(self.model).is_dir() else self.model
        return {**asdict(self), "model": model, "trains": self.trains.value}


@dataclass(frozen=True, slots=True)
class Trial:
    """Plan for one student: a candidate, an initialisation and a seed. The initialisation is that of the matrices E and F, which
    project keys and values along the length."""

    candidate: Candidate
    start: Start | None
    """Initialisation of the matrices E and F. None if the mechanism has no such matrices."""
    seed: int

    @property
    def key(self) -> tuple[str, str | None, int]:
        """Label, initialisation and seed, which identify the trial within one setting."""
        return self.candidate.label, self.init, self.seed

    @property
    def init(self) -> str | None:
        """Name of the initialisation of the matrices E and F. None if the mechanism has no such matrices."""
        return None if self.start is None else self.start.value

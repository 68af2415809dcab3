"""What every task in the zoo promises: labelled examples in three disjoint splits, described on a card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Inputs are integers below ``vocabulary``; 0 is padding."""

    vocabulary: int


@dataclass(frozen=True, slots=True)
class Patches:
    """Inputs are images, cut by the model into squares of ``patch`` pixels a side."""

    channels: int
    height: int
    width: int
    patch: int


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What a model needs to know to be built for a task.

    ``length`` counts tokens or patches; the class token that a model puts before them is not counted.
    """

    inputs: Tokens | Patches
    length: int
    classes: int


class Batch(NamedTuple):
    """Some examples. ``valid`` is True for a real token and None where nothing is ever padded."""

    inputs: Int[Tensor, "batch length"] | Float[Tensor, "batch channels height width"]
    valid: Bool[Tensor, "batch length"] | None
    labels: Int[Tensor, " batch"]


class Examples(ABC):
    """An indexed collection handed out in batches, so that a loop never collates example by example.

    The order carries no information about the labels: who takes the first so many takes a fair sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """The examples at these indices, in this order."""

    @abstractmethod
    def labels(self) -> Int[Tensor, " examples"]:
        """All labels, in order."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the content: inputs and labels, in order. Equal on every machine."""


@dataclass(frozen=True, slots=True)
class Level:
    """A size of experiment that a task proposes: fields of the model and of the training budget."""

    model: Mapping[str, Any]
    budget: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskCard:
    """All the zoo knows of a task without building it."""

    name: str
    title: str
    version: str
    """Changes whenever the examples do; results of different versions never share a table."""
    summary: str
    source: str
    licence: str
    options: type
    """Plain dataclass with defaults, like an attention's."""
    build: type[Task]
    levels: Mapping[str, Level] = field(default_factory=dict)
    """Proposed sizes by name, such as ``quick``; what a level leaves out keeps the runner's default."""
    locations: tuple[str, ...] = ()
    """Options that say where data lie and not what they are; they are no part of a result's identity."""
    metric: str = "accuracy"
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option sets besides the defaults that the conformance kit proves as well."""

    @property
    def origin(self) -> str:
        """Dotted path of the class, to find its source."""
        return f"{self.build.__module__}:{self.build.__qualname__}"


class Task(ABC):
    """A classification problem. Same options, same bytes, on every run and machine."""

    card: ClassVar[TaskCard]

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """Shape of the problem under these options."""

    @abstractmethod
    def examples(self, split: Split) -> Examples:
        """All examples of a split.

        Raises:
            FileNotFoundError: data that cannot be generated is missing; the message says what to put where.
        """

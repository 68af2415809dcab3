"""What every task in the zoo promises: labelled examples in three disjoint splits, described on a card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from attn_zoo.contract.dataset import DataSet

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

UNASKED = -100
"""Label of a position of which nothing is asked; PyTorch's losses ignore it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Inputs are integers below ``vocabulary``; 0 is padding."""

    vocabulary: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Inputs are two sequences of integers below ``vocabulary``, which one network reads apart; 0 is padding."""

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

    Raises:
        ValueError: labels by position of anything but one token sequence, or a causal task without them.
    """

    inputs: Tokens | Pairs | Patches
    length: int
    classes: int
    labels: Literal["example", "position"] = "example"
    """One label an example, read off a class token; or one a position, read where it is asked (``UNASKED`` elsewhere)."""
    causal: bool = False
    """Position i may see positions up to i only."""

    def __post_init__(self) -> None:
        if self.labels == "position" and not isinstance(self.inputs, Tokens):
            raise ValueError(f"labels by position are of one token sequence; got inputs {type(self.inputs).__name__}")
        if self.causal and self.labels == "example":
            raise ValueError("a causal task labels positions: its first token, where a class is read, would see nothing")

    @property
    def positions(self) -> int:
        """Tokens that attention sees: the class token counts where there is one."""
        return self.length + (self.labels == "example")


class Batch(NamedTuple):
    """Some examples. ``valid`` is True for a real token and None where nothing is ever padded."""

    inputs: Int[Tensor, "batch length"] | Int[Tensor, "batch 2 length"] | Float[Tensor, "batch channels height width"]
    valid: Bool[Tensor, "batch length"] | Bool[Tensor, "batch 2 length"] | None
    labels: Int[Tensor, " batch"] | Int[Tensor, "batch length"]


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
    def labels(self) -> Int[Tensor, " examples"] | Int[Tensor, "examples length"]:
        """All labels, in order."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the content: inputs and labels, in order. Equal on every machine."""


@dataclass(frozen=True, slots=True)
class Level:
    """A size of experiment that a task proposes: options of the task, fields of the model and of the training budget.

    The zoo's own tasks know ``smoke`` (seconds: does it run), ``quick`` (minutes for a whole table), ``cpu`` (an hour for a
    table of five on two cores) and ``lra`` (model sizes and steps as published, for a GPU).
    """

    model: Mapping[str, Any]
    budget: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    """How this differs from the published set-up, beside what the task's own docstring says."""


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
    """Proposed sizes by name, the one taken unless another is named first; what a level leaves out keeps the default."""
    locations: tuple[str, ...] = ()
    """Options that say where data lie and not what they are; they are no part of a result's identity."""
    metric: str = "accuracy"
    """``accuracy`` (of examples, or of the positions asked), ``f1`` (of class 1, of two) or ``perplexity`` (lower is better)."""
    datasets: tuple[DataSet[Any], ...] = ()
    """Published data that the task can read."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option sets besides the defaults that the conformance kit proves as well."""

    @property
    def origin(self) -> str:
        """Dotted path of the class, to find its source."""
        return f"{self.build.__module__}:{self.build.__qualname__}"


class Task(ABC):
    """A classification problem. Same options, same bytes, on every run and machine.

    The constructor reads no data: a task can be asked for its ``spec`` where its data are missing.
    """

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
            ValueError: a file of the data is damaged, or not what its name says; the message says which.
        """

    @property
    def data_title(self) -> str:
        """Which data these options stand for, as tables name them; ``generated`` unless the card names data sets."""
        return " and ".join(dataset.title for dataset in self.card.datasets) or "generated"

    def slices(self, split: Split) -> Mapping[str, Bool[Tensor, " examples"] | Bool[Tensor, "examples length"]]:
        """Parts of a split whose scores are recorded apart, such as depths; none unless a task says otherwise.

        By a name that is a heading of a table: True for an example that belongs to the part. Where labels are by position, a part
        can be of positions too: True for one that is asked and belongs to it.
        """
        return {}

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """What training makes of a batch; nothing unless a task says otherwise.

        Args:
            generator: the only source of chance, seeded by the run: every attention sees the same.
        """
        return batch

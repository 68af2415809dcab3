"""Base class and card of tasks. A task gives labelled examples in three separate splits: training, validation and test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from attn_zoo.checks import check_flag, check_text, check_whole
from attn_zoo.contract.dataset import DataSet
from attn_zoo.contract.errors import UnknownNameError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

UNASKED = -100
"""Label of a position that is not scored. PyTorch's losses ignore this label. If labels are floating-point numbers, NaN takes its
place.
"""

Problem = Literal["classification", "multi_label", "regression"]
PROBLEMS: tuple[Problem, ...] = ("classification", "multi_label", "regression")
METRICS: Mapping[Problem, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "perplexity"),
    "multi_label": ("f1_micro", "f1_macro"),
    "regression": ("r2", "mse"),
}
"""Metrics that are allowed for each kind of problem."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Inputs that are sequences of integers below ``vocabulary``. 0 means padding."""

    vocabulary: int

    def __post_init__(self) -> None:
        check_whole("vocabulary", self.vocabulary)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Inputs that are two sequences of integers below ``vocabulary``. One network encodes the two sequences separately. 0 means
    padding.
    """

    vocabulary: int

    def __post_init__(self) -> None:
        check_whole("vocabulary", self.vocabulary)


@dataclass(frozen=True, slots=True)
class Frames:
    """Inputs that are sequences of vectors with ``channels`` numbers, such as readings of a sensor or bands of a sound. Padding is
    0.
    """

    channels: int

    def __post_init__(self) -> None:
        check_whole("frames.channels", self.channels)


@dataclass(frozen=True, slots=True)
class Patches:
    """Inputs that are images. The model cuts them into squares with sides of ``patch`` pixels."""

    channels: int
    height: int
    width: int
    patch: int

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "patch"):
            check_whole(f"patches.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Inputs, labels and length of a task. A model is built for them.

    ``length`` counts tokens, frames or patches. It does not count the class token that a model puts before them.

    Raises:
        ValueError: a field has the wrong type, a count is below 1, labels are by position but inputs are pairs or patches, or a
            causal task has labels by example.
    """

    inputs: Tokens | Pairs | Frames | Patches
    length: int
    classes: int
    """Number of classes or, in regression, number of values to predict."""
    labels: Literal["example", "position"] = "example"
    """``example`` for one label per example, predicted from a class token. ``position`` for one label per position; positions that
    are not scored have ``UNASKED`` or NaN.
    """
    causal: bool = False
    """True if position i may see positions up to i only."""
    problem: Problem = "classification"
    """Kind of label: one class (``classification``), any number of classes (``multi_label``) or numbers (``regression``)."""
    train_length: int | None = None
    """Length of training inputs if all of them are shorter than the longest test inputs; None if they are not."""

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Tokens | Pairs | Frames | Patches):
            raise ValueError(f"inputs must be Tokens, Pairs, Frames or Patches; got {self.inputs!r}")
        check_whole("length of a task", self.length)
        check_whole("classes of a task", self.classes)
        check_text("labels of a task", self.labels, ("example", "position"))
        check_flag("causal of a task", self.causal)
        check_text("problem of a task", self.problem, PROBLEMS)
        if self.train_length is not None and not 0 < self.train_length < self.length:
            raise ValueError(
                f"train_length must be at least 1 and below the length {self.length}, or None; got {self.train_length}"
            )
        if self.labels == "position" and not isinstance(self.inputs, Tokens | Frames):
            raise ValueError(f"inputs must be Tokens or Frames if labels are by position; got {type(self.inputs).__name__}")
        if self.causal and self.labels == "example":
            raise ValueError(
                "a causal task must have a label for each position, because a single label is predicted at the first token, "
                "which sees no other token"
            )

    @property
    def in_training(self) -> TaskSpec:
        """The same spec with the length of training inputs."""
        return self if self.train_length is None else replace(self, length=self.train_length, train_length=None)

    @property
    def positions(self) -> int:
        """Number of positions that attention sees, including the class token if there is one."""
        return self.length + (self.labels == "example")


Inputs = (
    Int[Tensor, "batch length"]
    | Int[Tensor, "batch 2 length"]
    | Float[Tensor, "batch length channels"]
    | Float[Tensor, "batch channels height width"]
)
Labels = (
    Int[Tensor, " batch"] | Int[Tensor, "batch length"] | Float[Tensor, "batch classes"] | Float[Tensor, "batch length classes"]
)
"""Labels of examples or positions. A label is the number of a class; for ``multi_label``, 0 or 1 for each class; for
``regression``, one or more numbers.
"""


class Batch(NamedTuple):
    """Batch of examples: inputs, mask and labels. The mask ``valid`` is True for a real token or frame, and None if the task
    never has padding.
    """

    inputs: Inputs
    valid: Bool[Tensor, "batch length"] | Bool[Tensor, "batch 2 length"] | None
    labels: Labels


def scored(labels: Labels) -> Bool[Tensor, " batch"] | Bool[Tensor, "batch length"]:
    """Return a mask that is True for all labels that are scored: those that are neither ``UNASKED`` nor NaN."""
    return ~labels.isnan().any(dim=-1) if labels.is_floating_point() else labels != UNASKED


class Examples(ABC):
    """Examples of one split, which are read in batches by index.

    The order of examples does not depend on labels, so the first examples are a fair sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """Return the examples at these indices as one batch, in the order of the indices."""

    @abstractmethod
    def labels(self) -> Labels:
        """Return the labels of all examples, in order."""

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 digest of all inputs and labels, in order. It is equal on every machine."""


@dataclass(frozen=True, slots=True)
class Level:
    """Preset of a task: values for options of the task, of the model and of the training budget.

    Usual presets are ``smoke`` (takes seconds), ``cpu`` (an hour on two cores for a table of five mechanisms) and ``lra`` (sizes
    and steps as published, for a GPU). Some tasks also have ``quick``, ``profile_encoder``, ``profile_decoder`` or ``curves``.
    """

    model: Mapping[str, Any]
    budget: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    """Differences from the published set-up, in addition to those in the docstring of the task."""
    ceiling: float = 1.0
    """Highest validation score that softmax reaches with this preset: 1, or a measured value if the task or network does not
    allow 1. If the metric is a percentage, a run that trains until a criterion is met ends at 99 % of this score.
    """


@dataclass(frozen=True, slots=True)
class TaskCard:
    """Facts about a task that are known without building it."""

    name: str
    title: str
    version: str
    """Version of the examples, raised whenever they change. Results of different versions never share a table."""
    summary: str
    source: str
    licence: str
    options: type
    """Options class: a dataclass in which each field has a default, as for mechanisms."""
    build: type[Task]
    levels: Mapping[str, Level] = field(default_factory=dict)
    """Presets by name, the default first. Fields that a preset leaves out have their defaults."""
    locations: tuple[str, ...] = ()
    """Names of options that say where the data lie on disk. The id of a run does not depend on them, because the same data can be
    anywhere.
    """
    metric: str = "accuracy"
    """Metric of the score. ``classification``: ``accuracy`` (of examples, or of the scored positions), ``f1`` (of class 1 of two)
    or ``perplexity`` (lower is better). ``multi_label``: ``f1_micro`` (all classes together) or ``f1_macro`` (mean over classes).
    ``regression``: ``r2`` (share of the variance explained) or ``mse`` (mean squared error; lower is better).
    """
    datasets: tuple[DataSet[Any], ...] = ()
    """Published data sets that the task can read."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sets of options, beside the defaults, with which the conformance tests also check the task."""
    solved_by: str = "softmax"
    """Mechanism that can solve the task in theory. The ability profile includes the task only if this mechanism is better than the
    best control.
    """
    distant: str | None = None
    """Name of the subset of the test split (see ``slices``) whose labels depend on distant tokens. Tables compare mechanisms by the
    score on this subset, and show the score on the whole split among the parts.
    """

    @property
    def origin(self) -> str:
        """Module and name of the class of the task, such as ``package.module:Class``."""
        return f"{self.build.__module__}:{self.build.__qualname__}"

    def level(self, name: str | None) -> Level:
        """Return the preset of this name, or the first preset if the name is None.

        Raises:
            UnknownNameError: there is no preset of this name.
            ValueError: the card has no preset at all.
        """
        if not self.levels:
            raise ValueError(
                f"the card of task {self.name} must have at least one level, because a level says how long to train. Add a "
                "level to the card"
            )
        chosen = next(iter(self.levels)) if name is None else name
        if chosen not in self.levels:
            raise UnknownNameError(f"level of task {self.name}", chosen, self.levels)
        return self.levels[chosen]


def _with_known_split(method: Callable[[Any, Split], Any]) -> Callable[[Any, Split], Any]:
    """Wrap a method of a task so that an unknown split raises an error."""

    @wraps(method)
    def checked(self: Any, split: Split) -> Any:
        check_text("split", split, SPLITS)
        return method(self, split)

    return checked


class Task(ABC):
    """Base class of tasks, which are classification or regression problems. Equal options give equal data on every machine.

    The constructor reads no data, so ``spec`` is available even if the data are missing.
    """

    card: ClassVar[TaskCard]

    def __init_subclass__(cls, **given: Any) -> None:
        """Check the split in every call of ``examples`` and ``slices``."""
        super().__init_subclass__(**given)
        for name in {"examples", "slices"} & set(vars(cls)):
            setattr(cls, name, _with_known_split(vars(cls)[name]))

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """Inputs, labels and length of the task."""

    @abstractmethod
    def examples(self, split: Split) -> Examples:
        """Return all examples of a split, which is ``train``, ``valid`` or ``test``.

        Raises:
            ValueError: there is no such split.
            MissingDataError: data that cannot be generated are missing; the message says what to put where.
            DamagedDataError: a file is damaged, or does not hold what its name says; the message names it.
        """

    @property
    def data_title(self) -> str:
        """Name of the data that the options select, as tables show it. If the card names no data sets, it is ``generated``."""
        return " and ".join(dataset.title for dataset in self.card.datasets) or "generated"

    @property
    def generated(self) -> bool:
        """True if all examples are generated from the option ``data_seed``. A run that trains until a criterion is met then
        generates them from the seed of the run instead.
        """
        return False

    @property
    def criterion(self) -> str:
        """Name of the validation examples in reports. If a run trains until a criterion is met, the score on these examples decides
        when the run stops.

        The default is ``validation``. A task overrides this property if its test examples differ in kind from the validation
        examples, for example because the test examples are longer. The name then describes the validation examples.
        """
        return "validation"

    def slices(self, split: Split) -> Mapping[str, Bool[Tensor, " examples"] | Bool[Tensor, "examples length"]]:
        """Return the subsets of a split that are scored separately, such as the examples of one length. By default, there are no
        subsets.

        Keys are headings for tables. Values are masks that are True for the examples in the subset. If labels are by position,
        a mask may instead be True for the scored positions in the subset.
        """
        return {}

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """Return a batch of training examples with random changes. By default the batch is not changed.

        Args:
            generator: the only source of randomness. The run seeds it, so every mechanism is trained on the same batches.
        """
        return batch

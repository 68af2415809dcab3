"""Types of a leaderboard table: the table, its rows, the parts of a row, and the words for verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import Estimate, Resolution, Soon, Successes
from attn_zoo.records import RunRecord, Tuning

COSTS: Mapping[str, str] = {
    "parameters": "parameters",
    "FLOPs": "flops_per_example",
    "time": "train_seconds",
    "memory": "peak_bytes",
}
"""For each cost (parameters, FLOPs, time, memory), the field of a row that holds it."""
COUNTED = ("parameters", "FLOPs")
"""Costs that are counted, so they are the same on every machine and for every implementation. The others are measured."""


class Verdict(StrEnum):
    """Verdict on the row of a mechanism on a task. ``docs/reference/columns.md`` states the rules."""

    BEST = "best"
    TIED = "not distinguishable from the best"
    WORSE = "worse"
    NO_BETTER = "no better than the best control"
    NOT_TRAINED = "not trained"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"


class Outcome(StrEnum):
    """Outcome of the comparison of one row with another."""

    BETTER = "better"
    TIED = "not distinguishable"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed run: a seed that has no test score."""

    status: str
    """Recorded status, such as ``out_of_memory``; ``done`` if the score is not a number."""
    seed: int
    reason: str

    @property
    def word(self) -> str:
        """Status in plain words, such as ``out of memory``."""
        return self.status.replace("_", " ")

    @property
    def run(self) -> str:
        """Status and seed as text, such as ``out_of_memory with seed 1``."""
        return f"{self.status} with seed {self.seed}"

    def __str__(self) -> str:
        return f"{self.run}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Block:
    """Implementation group: the requested implementation and the machines. Measured costs are compared only within a group."""

    measured_as: str
    """``auto`` if ``auto`` chose the implementation, else the name of the implementation that the run asked for."""
    machines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.measured_as}, {'; '.join(self.machines)}"

    def named(self, names: Mapping[str, str]) -> str:
        """Return the name of the group: the implementation and, if ``names`` (short names by machine) has several entries, the
        short names of the group's machines."""
        where = " + ".join(names[machine] for machine in self.machines) if len(names) > 1 else ""
        return ", ".join(filter(None, [self.measured_as, where]))


@dataclass(frozen=True, slots=True)
class Within:
    """Score that a row reaches within a budget."""

    budget: float | None
    score: Estimate | None
    """Score within the budget. None if the budget is too small for this row, or if the score is not known."""
    spent: float | None
    """Cost at which the score was reached, in the unit of the budget; median over seeds."""
    over: bool
    """True if the budget is too small for this row."""
    note: str
    """Reason why there is no score, or a remark on it; may be empty."""


@dataclass(frozen=True, slots=True)
class Board:
    """Scores of all rows within the same limit on one kind of cost. For a measured cost, each implementation group (rows with the
    same requested implementation and machines) has its own budget."""

    cost: str
    """``time``, ``FLOPs`` or ``memory``."""
    rule: str
    """Rule by which the budgets were chosen."""
    score: str
    """Kind of score: ``valid`` for the best validation score within the budget, ``test`` for the test score of rows that fit
    the budget."""
    budgets: Mapping[Block, float]
    rows: Mapping[str, Within]
    """Score within the budget, by label of the row. If the cost is memory, only the best row of each mechanism is included."""

    @property
    def budget(self) -> float | None:
        """Budget that all rows share, or None if the implementation groups (see ``Block``) have different budgets."""
        shared = set(self.budgets.values())
        return shared.pop() if len(shared) == 1 else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of the comparison of two rows on a task."""

    row: str
    """Label of the row that is compared."""
    against: str
    """Label of the other row."""
    difference: Estimate
    """Score of ``row`` minus score of ``against``. Its Welch interval is not corrected for the number of comparisons."""
    ratio: Estimate | None
    """Logarithm of a quotient: the steps that ``row`` took to 90 % of the highest possible score, divided by those that ``against``
    took. None if the rows are compared by their scores."""
    p: float
    """Two-sided p value, corrected for the number of comparisons on the task."""
    outcome: Outcome
    """Whether ``row`` is better, worse or not distinguishable."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Comparisons of all mechanisms of a table, or the reason why there are no verdicts."""

    best: str | None
    """Label of the best row; None without verdicts."""
    reason: str | None
    """Reason why there are no verdicts; None if there are."""
    comparisons: tuple[Comparison, ...]


STEADY = 1.5
"""Largest quotient of the times of a training step with two seeds of a row for which training times are compared. A larger quotient
is usual if a run shared its processor with other work."""


def data_field(note: str, **more: Any) -> Any:
    """Return a field of ``Row`` that is a column in CSV and JSON only, with its explanation."""
    return field(metadata={"note": note}, **more)


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """Results of one configuration on one task, over all its seeds. Numbers that were not measured are None.

    A field without an explanation here is a column that all formats show; ``columns.COLUMNS`` explains it.
    """

    attention: str
    setting: str
    """Implementation, options and number of heads that distinguish the row from other rows of its mechanism; may be empty."""
    runs: tuple[RunRecord, ...] = field(repr=False)
    """Records of the row, sorted by seed."""
    control: bool = data_field("true for a control")
    options: Mapping[str, Any] = data_field("options of the mechanism")
    heads: int | None = data_field("number of heads, if it differs from the table's")
    by_seed: Mapping[int, float] = data_field("test score by seed")
    valid: Estimate | None = data_field("validation score of the weights that were tested")
    parts: Mapping[str, Estimate] = data_field("test score of each part of the test")
    failures: tuple[Failure, ...] = data_field("seeds without a score, with the reasons")
    warnings: tuple[str, ...] = data_field("warnings about the row's settings, such as more FLOPs than softmax")
    against_best: Comparison | None = data_field("comparison with the best row", default=None)
    against_control: Comparison | None = data_field("comparison with the best control", default=None)
    unjudged: str | None = data_field("reason why the row has no verdict", default=None)
    curve: tuple[Mapping[str, Any], ...] = data_field(
        "validation scores during training, averaged over the finished seeds, with steps, seconds (median) and FLOPs"
    )
    training_flops_per_example: float | None = data_field("FLOPs of a forward and backward pass over one example")
    training_flops_counted: bool = data_field("false if training_flops_per_example is estimated as three forward passes")
    mechanism_flops_4096: int | None = data_field(
        "FLOPs of a forward pass of the mechanisms of all layers, without projections, at 4,096 tokens; empty if they do not "
        "support this length or the records do not count them"
    )
    state_bytes: int | None = data_field(
        "bytes of the recurrent state of the mechanisms in all layers, without short convolutions, at the task's length; empty if "
        "the task is not causal or the size is not known"
    )
    train_seconds_range: tuple[float, float] | None = data_field("shortest and longest training time over seeds")
    implementation: str = data_field("implementation that ran")
    tuning: Tuning | None = data_field("search that found the settings")
    tuned: Mapping[str, Any] = data_field("settings that the search found")
    card: Mapping[str, Any] = data_field("the mechanism's card as it was recorded")
    block: Block
    resolution: Resolution
    """Direction and bounds of the scores, and the smallest differences that count; equal for all rows of a table."""
    test: Estimate | None
    """Mean test score over the finished seeds, with its interval."""
    train_gap: Estimate | None
    over_chance: Estimate | None
    parameters: int | None
    flops_per_example: int | None
    examples_per_second: float | None
    train_seconds: float | None
    peak_bytes: float | None
    learned: Successes | None
    steps_to_90: Soon | None
    margin: Estimate | None = None
    verdict: Verdict | None = None
    """Verdict on a mechanism; None for controls, and if there are too few seeds."""
    against_softmax: Comparison | None = None
    dominated_by: tuple[str, ...] = ()
    fronts: tuple[str, ...] = ()
    unsteady: str = ""
    """Reason why the training times of the row's block cannot be compared, or empty text if they can."""

    @property
    def label(self) -> str:
        """Mechanism and its distinguishing settings as text, unique in the table."""
        return f"{self.attention} {self.setting}".strip()

    @property
    def name(self) -> str:
        """Label of the row, with ``(c)`` for a control."""
        return f"{self.label} (c)" if self.control else self.label

    @property
    def merit(self) -> float:
        """Mean test score, with its sign turned if lower scores are better; minus infinity without a score."""
        return -math.inf if self.test is None else self.resolution.sign * self.test.mean

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs that have a test score."""
        return tuple(self.by_seed)

    @property
    def attempts(self) -> int:
        """Number of seeds that were run, including failed ones."""
        return len(self.by_seed) + len(self.failures)

    @property
    def trials(self) -> int:
        """Number of trials (runs with other settings) of the search that found the row's settings; 0 if there was no search."""
        return 0 if self.tuning is None else self.tuning.trials or 0

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the records, relative to their folder."""
        return tuple(run.source for run in self.runs if run.source)

    def noted(self, name: str) -> tuple[str, ...]:
        """Return the different values that the environments of the runs have for a name, such as ``commit``."""
        return tuple(dict.fromkeys(str(found) for run in self.runs if (found := run.environment.get(name))))

    @property
    def step_quotient(self) -> float:
        """Median time of a training step with the slowest seed, divided by that with the fastest seed; 1 if it was not measured."""
        done = (run.measured.get("step_seconds_median") for run in self.runs if run.spec.seed in self.by_seed)
        steps = list(filter(None, done))
        return max(steps) / min(steps) if steps else 1.0

    def block_of(self, cost: str) -> Block | None:
        """Return the implementation group (requested implementation and machines) within which the row's ``cost`` can be compared.
        Return None for a counted cost, which can be compared among all rows."""
        return None if cost in COUNTED else self.block


@dataclass(frozen=True, slots=True)
class Table:
    """Leaderboard table of comparable rows. All share task, data, network (except the number of heads), budget, precision and kind
    of device."""

    task: Mapping[str, Any]
    """The task's card as it was recorded."""
    task_options: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    """Facts about each split, such as the number of its examples. A digest is None if each seed draws its own examples."""
    model: Mapping[str, Any]
    """Settings of the network around the mechanism. The number of heads is the one that most rows have."""
    budget: Mapping[str, Any]
    """Training budget. If a setting was searched for each row, its value is the searched range as text."""
    protocol: str
    precision: str
    device: str
    chance: float | None
    control: str | None
    """Label of the best control."""
    best_control: float | None
    """Mean score of the best control."""
    softmax_flops: int | None
    """FLOPs per example of the softmax row, with which the FLOPs of other rows are compared."""
    rows: tuple[Row, ...]
    """Rows of mechanisms, the best first, followed by those of controls."""
    judgement: Judgement
    boards: Mapping[str, Board]
    """Scores at equal budgets by cost (``time``, ``FLOPs``, ``memory``), as far as the records have these costs."""
    at: tuple[Board, ...] = ()
    """Best validation scores reached within each training time that the caller asked for."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Short name of each machine that occurs in any of the tables."""

    @property
    def higher_is_better(self) -> bool:
        """True if higher values of the metric are better."""
        return bool(self.task.get("higher_is_better", True))

    @property
    def sign(self) -> int:
        """Factor by which scores are multiplied so that larger ones are better: 1 or, if lower scores are better, -1."""
        return 1 if self.higher_is_better else -1

    @property
    def control_row(self) -> Row | None:
        """Row of the best control. None if no control was run, or if the table does not show this row."""
        return next((row for row in self.rows if row.label == self.control), None)

    @property
    def data_title(self) -> str:
        """Title of the data set or, in older records without one, the source of the data."""
        return str(self.task.get("data") or self.task.get("source", "unknown"))


def best_on_validation(rows: Iterable[Row]) -> Row | None:
    """Return the row with the best validation score, or None without rows. A row without a test score is returned only if no row
    has a test score."""

    def place(row: Row) -> tuple[bool, bool, float]:
        valid = row.valid
        return row.test is not None, valid is not None, row.resolution.sign * valid.mean if valid else 0.0

    return max(sorted(rows, key=lambda row: row.label), key=place, default=None)


def shown_rows(table: Table) -> dict[str, Row]:
    """Return for each mechanism its row with the best validation score (see ``best_on_validation``)."""
    by_attention = grouped((row.attention, row) for row in sorted(table.rows, key=lambda row: row.label))
    return {name: best for name, rows in by_attention.items() if (best := best_on_validation(rows))}


def titles(tables: Sequence[Table]) -> list[str]:
    """Return a unique title for each table: the title of its task. Equal titles are followed by the settings in which the tables
    differ or, if needed, by a number."""
    names = [str(table.task["title"]) for table in tables]
    for words in (
        ["causal" * bool(table.task.get("causal")) for table in tables],
        ["no convolution" * (not table.model.get("short_convolution")) for table in tables],
        ["output gate" * (table.model.get("output_gate", "none") != "none") for table in tables],
        ["shared keys and values" * bool(table.model.get("key_value_heads")) for table in tables],
        ["latent keys and values" * bool(table.model.get("latent_dim")) for table in tables],
        [f"{table.task['length']:,} positions" for table in tables],
        [f"width {table.model['dim']}, depth {table.model['depth']}" for table in tables],
        [_rate(table.budget.get("learning_rate")) for table in tables],
    ):
        names = distinct(names, words)
    return numbered(names)


def _rate(rate: object) -> str:
    return f"rate {rate:g}" if isinstance(rate, float) else "rate tuned"


def distinct(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return ``names``. If equal names have different words (``words`` has one per name), each name is followed by its word in
    parentheses, unless the word is empty."""
    known = grouped(zip(names, words, strict=True))
    return [f"{name} ({word})" if word and len(set(known[name])) > 1 else name for name, word in zip(names, words, strict=True)]


def numbered(names: Sequence[str]) -> list[str]:
    """Return ``names``, with ``#`` and a number after each name that occurs several times."""
    return [name if names.count(name) == 1 else f"{name} #{names[: at + 1].count(name)}" for at, name in enumerate(names)]

"""Abilities of mechanisms, each tested by one task, and verdicts on mechanisms against softmax and the best control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attn_zoo.leaderboard.compare import BASELINE, difference, is_above_control
from attn_zoo.leaderboard.heatmap import unshaded
from attn_zoo.leaderboard.metrics import is_share
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Outcome, Row, Table, distinct, numbered, shown_rows
from attn_zoo.recommend.needs import ACCEPT

Judged = Literal["better", "as good", "above controls", "worse", "no better", "unclear", "failed", "few seeds", "not run"]


@dataclass(frozen=True, slots=True)
class Ability:
    """Ability, such as recall, that one task tests in one direction (bidirectional or causal), with each mechanism's scores."""

    name: str
    """Unique name: the title of the task, with its direction."""
    table: Table
    rows: Mapping[str, Row]
    """For each mechanism, the row (scores of one configuration) with the best validation score."""
    no_evidence: str | None
    """Reason why the task is not evidence, for example that no mechanism beats the best control. None if it is evidence."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.table.task["name"])

    @property
    def causal(self) -> bool:
        """True if the task is causal."""
        return bool(self.table.task.get("causal"))

    @property
    def softmax(self) -> Row | None:
        """Row of softmax, or None if softmax has no score."""
        row = self.rows.get(BASELINE)
        return row if row and row.test else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on how well one mechanism does on one task, or how well a trained encoder does with it in one quality."""

    at: str
    """Name of the ability or quality. If the mechanism has several rows on the task, the settings of the judged row follow."""
    verdict: Judged
    gain: Estimate | None = None
    """Difference between the scores of the mechanism and of softmax, positive if the mechanism is better. None for softmax, and if
    a score is missing."""
    unit: str = "points"
    """Unit of the difference: points for percentage metrics, else per cent of softmax's score."""
    row: Row | None = None
    """Row of the scores; None if the mechanism was not run, and for an encoder."""

    @property
    def matches(self) -> bool:
        """True if the mechanism matches softmax."""
        return self.verdict in ("better", "as good")

    @property
    def lost(self) -> bool:
        """True if the mechanism does not match softmax, whatever further seeds show."""
        return self.verdict in ("worse", "no better", "failed")

    @property
    def decided(self) -> bool:
        """True if the mechanism has enough seeds for a comparison with softmax."""
        return self.verdict in ("better", "as good", "worse", "no better", "unclear")

    @property
    def low(self) -> float:
        """Lower end of the interval of the difference."""
        assert self.gain is not None, "a verdict that is decided has a difference from softmax"
        return self.gain.low

    @property
    def words(self) -> str:
        """Difference from softmax as text, such as ``-1.2 ± 0.4 points``."""
        return f"{self.gain.written('.1f', sign='+')} {self.unit}" if self.gain else ""


def abilities(tables: Sequence[Table]) -> list[Ability]:
    """Return the ability that the task of each table tests, in the order of the tables.

    Names of causal tasks end with ``(causal)``. Equal names also say whether the network has a short convolution. Names that are
    still equal get a number.
    """
    plain = [f"{table.task['title']}{' (causal)' if table.task.get('causal') else ''}" for table in tables]
    words = [f"{'with' if table.model.get('short_convolution') else 'without'} a short convolution" for table in tables]
    found = [(name, table, shown_rows(table)) for name, table in zip(numbered(distinct(plain, words)), tables, strict=True)]
    return [Ability(name, table, rows, unshaded(table, list(rows.values()))) for name, table, rows in found]


def judge(ability: Ability, attention: str, accept: float = ACCEPT) -> Judgement:
    """Return the verdict on a mechanism on the task of one ability.

    Without enough scores, the verdict is ``not run``, ``failed`` or ``few seeds``. The verdict on softmax is ``above controls`` if
    softmax is significantly better than the best control (a network that cannot select tokens by content), else ``no better``.

    The verdict on any other mechanism that is significantly better than the best control is

    - ``better``, if its score is significantly better than that of softmax;
    - ``as good``, if the 95 % interval of its ``gain`` (its score minus that of softmax) lies above ``-accept``;
    - ``worse``, if it is significantly worse than softmax;
    - ``unclear`` in all other cases.

    The verdict on a mechanism that is not significantly better than the best control is ``no better`` if the mechanism is
    significantly worse than softmax, or if softmax is not better than the best control either. Otherwise it is ``unclear``.

    Args:
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).
    """
    row = ability.rows.get(attention)
    gain = None if row is None or attention == BASELINE else _gain(ability, row)
    name = f"{ability.name} with {row.setting}" if row and row.setting else ability.name
    return Judgement(name, _verdict(ability, row, gain, accept), gain, "points" if is_share(ability.table) else "%", row)


def recorded_shares(attention: str, abilities: Sequence[Ability]) -> list[float | None]:
    """Return a mechanism's recorded FLOPs at 4,096 tokens divided by softmax's, for each task on which it has a score.

    A count of 0 is unknown: only matrix products are counted, and other operations take time.
    """
    rows = [(one.rows[attention], one.softmax) for one in abilities if attention in one.rows and one.rows[attention].test]
    counts = [(row.mechanism_flops_4096, softmax.mechanism_flops_4096 if softmax else None) for row, softmax in rows]
    return [own / its if own and its else None for own, its in counts]


def _verdict(ability: Ability, row: Row | None, gain: Estimate | None, accept: float) -> Judged:
    if row is None:
        return "not run"
    if row.failures or row.test is None:
        return "failed"
    if row.against_control is None:
        return "few seeds"
    above, found = is_above_control(row), row.against_softmax
    if row.attention == BASELINE:
        return "above controls" if above else "no better"
    softmax = ability.softmax
    if softmax is None or found is None or gain is None:
        return "few seeds"
    if not above:
        return "no better" if found.outcome == Outcome.WORSE or not is_above_control(softmax) else "unclear"
    if found.ratio is None and found.outcome == Outcome.BETTER:
        return "better"
    if gain.low > -accept:
        return "as good"
    return "worse" if found.outcome == Outcome.WORSE else "unclear"


def _gain(ability: Ability, row: Row) -> Estimate | None:
    softmax, table = ability.softmax, ability.table
    found = difference(row, softmax) if softmax else None
    if found is None or softmax is None or softmax.test is None:
        return None
    scale = 100.0 if is_share(table) else 100.0 / (abs(softmax.test.mean) or 1.0)
    return found[0].times(row.resolution.sign * scale)

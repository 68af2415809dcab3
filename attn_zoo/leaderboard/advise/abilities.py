"""Abilities, one for each task, and judgements of mechanisms at them, against softmax and against the best control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attn_zoo.leaderboard.compare import SEEDS_NEEDED, SMALLEST, resolution
from attn_zoo.leaderboard.heatmap import distinct, numbered, unshaded
from attn_zoo.leaderboard.metrics import is_share
from attn_zoo.leaderboard.statistics import Estimate, paired
from attn_zoo.leaderboard.table import Row, Table, shown_rows

BASELINE = "softmax"
ACCEPT = 5.0
"""Acceptable loss of a mechanism called as good as softmax: points of 100, or per cent for metrics that are not shares."""

Verdict = Literal["better", "as good", "above controls", "worse", "no better", "unclear", "failed", "few seeds", "not run"]


@dataclass(frozen=True, slots=True)
class Ability:
    """A task, causal or read both ways, with one row for each mechanism."""

    name: str
    """Unique name."""
    table: Table
    rows: Mapping[str, Row]
    """Row with the best validation score of each attention."""
    no_evidence: str | None
    """Reason why the task says nothing about mechanisms; None where it does."""

    @property
    def causal(self) -> bool:
        """Tell whether the task is read from left to right."""
        return bool(self.table.task.get("causal"))

    @property
    def softmax(self) -> Row | None:
        """Row of softmax; None where it has no score."""
        row = self.rows.get(BASELINE)
        return row if row and row.test else None

    @property
    def unit(self) -> str:
        """Unit of gains: points of a share, else per cent of softmax's score."""
        return "points" if is_share(self.table) else "%"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of one mechanism at one ability."""

    ability: Ability
    row: Row | None
    gain: Estimate | None
    """Score minus softmax's, paired by seed, in the ability's unit, positive where better; None where softmax has no score at a
    common seed, and for softmax itself."""
    verdict: Verdict

    @property
    def name(self) -> str:
        """Name of the ability, with the hyperparameters that distinguish this row from others of the mechanism."""
        return f"{self.ability.name} with {self.row.setting}" if self.row and self.row.setting else self.ability.name


def abilities(tables: Sequence[Table]) -> list[Ability]:
    """Abilities, one for each table, in the order of the tables."""
    found = [shown_rows(table) for table in tables]
    return [
        Ability(name, table, rows, unshaded(table, list(rows.values())))
        for name, table, rows in zip(names(tables), tables, found, strict=True)
    ]


def names(tables: Sequence[Table]) -> list[str]:
    """Unique titles: the task's with the direction of reading, then, where needed, the network's convolution and a number."""
    plain = [f"{table.task['title']}{' (causal)' if table.task.get('causal') else ''}" for table in tables]
    words = [f"{'with' if table.model.get('short_convolution') else 'without'} a short convolution" for table in tables]
    return numbered(distinct(plain, words))


def judge(ability: Ability, attention: str, accept: float = ACCEPT) -> Judgement:
    """Judge ``attention`` at ``ability`` from the records, by 95 % intervals paired by seed, each for its pair of rows alone.

    Above the best control: ``better`` if the interval of the gain over softmax is above 0 and its mean at least a point or 1 %;
    ``as good`` if above ``-accept``; ``worse`` if below 0; ``above controls`` for softmax. Not above it: ``no better`` if worse
    than softmax, or if softmax is not above it either. Else ``unclear``.

    Args:
        accept: loss, in the ability's unit, that does not count.
    """
    row = ability.rows.get(attention)
    gain = None if row is None or attention == BASELINE else _gain(ability, row)
    return Judgement(ability, row, gain, _verdict(ability, row, gain, accept))


def _verdict(ability: Ability, row: Row | None, gain: Estimate | None, accept: float) -> Verdict:
    if row is None:
        return "not run"
    if row.failures or row.test is None:
        return "failed"
    above = _above_control(ability, row)
    if above is None:
        return "few seeds"
    if row.attention == BASELINE:
        return "above controls" if above else "no better"
    softmax = ability.softmax
    if softmax is None or gain is None or gain.count < SEEDS_NEEDED:
        return "few seeds"
    worse = gain.high < 0
    if not above:
        return "no better" if worse or not _above_control(ability, softmax) else "unclear"
    if gain.low > 0 and gain.mean >= 100 * SMALLEST:
        return "better"
    if gain.low > -accept:
        return "as good"
    return "worse" if worse else "unclear"


def _above_control(ability: Ability, row: Row) -> bool | None:
    """Tell whether a row is better than the best control beyond noise; None where seeds are too few to tell."""
    margin, table = row.margin, ability.table
    if margin is None or margin.count < SEEDS_NEEDED or table.best_control is None:
        return None
    sure = margin.low > 0 if table.higher_is_better else margin.high < 0
    return sure and not resolution(table.task, table.data).ties(margin.mean, table.best_control)


def _gain(ability: Ability, row: Row) -> Estimate | None:
    softmax = ability.softmax
    difference = paired(row.by_seed, softmax.by_seed) if softmax else None
    if softmax is None or softmax.test is None or difference is None:
        return None
    scale = 100.0 if is_share(ability.table) else 100.0 / (abs(softmax.test.mean) or 1.0)
    half = None if difference.half_width is None else scale * difference.half_width
    return replace(difference, mean=ability.table.sign * scale * difference.mean, half_width=half)

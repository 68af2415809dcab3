"""Comparison of the rows of a table: significance tests, verdicts, Pareto fronts, dominated rows, and orders of rows.

Two rows are compared by Welch's t test on their test scores over seeds. The standard deviation of a row is assumed to be at
least the binomial error of the test set.

Some tasks are trained until a criterion, which is 99 % of the highest possible validation score. If both rows reached it with all
seeds, the test compares steps instead of scores: the logarithms of the steps until the validation score was 90 % of the highest
possible score. The standard deviation of these steps is assumed to be at least the number of steps between two validations. If test
examples differ in kind from validation examples, as longer inputs do, the test compares scores, because these can differ between
rows that reached the criterion.

Every row is compared with the best row, with softmax and with the best control. The p values are corrected for the number of all
these comparisons on a task (Holm 1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attn_zoo.checks import check_text
from attn_zoo.leaderboard.statistics import CONFIDENCE, SMALLEST, Estimate, holm, welch
from attn_zoo.leaderboard.table import COSTS, COUNTED, Comparison, Judgement, Outcome, Row, Table, Verdict, best_on_validation

BASELINE = "softmax"
SEEDS_NEEDED = 3  # fewer seeds do not show the spread
"""Number of seeds that a verdict needs."""
_LIKE_CONTROL = 0.02
"""Largest difference from the best control's validation score at which a row with a flat training loss counts as not trained. For
metrics that are not percentages, it is a share of the control's score."""
ORDERS: Mapping[str, str] = {"score": "", **{cost.lower(): cost for cost in COSTS}}
"""Orders in which rows can be shown, each with its cost."""


def difference(one: Row, other: Row) -> tuple[Estimate, float] | None:
    """Return the mean test score of ``one`` minus that of ``other`` as an estimate, and the p value of Welch's t test. If a row has
    no score, return None."""
    if one.test is None or other.test is None:
        return None
    floors = one.resolution.floor(one.test.mean), one.resolution.floor(other.test.mean)
    return welch(tuple(one.by_seed.values()), tuple(other.by_seed.values()), floors, one.resolution.bounds)


def fit_to_compare(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Return the rows that can be compared, and a mapping from the label of every other row to the reason why it cannot be.

    A row can be compared if it has ``SEEDS_NEEDED`` seeds and none failed. If some seeds failed, the scores of the others may be
    too good (survivorship bias).
    """
    reasons = {row.label: why for row in rows if (why := _unfit(row))}
    return [row for row in rows if row.label not in reasons], reasons


def _unfit(row: Row) -> str | None:
    """Return why a row cannot be compared, or None if it can."""
    if row.failures:
        return f"no verdict, because not every seed has a score ({row.failures[0].run})"
    if len(row.seeds) < SEEDS_NEEDED:
        return f"no verdict with fewer than {SEEDS_NEEDED} seeds; {SEEDS_NEEDED - len(row.seeds)} more needed"
    return None


def compare(pairs: Sequence[tuple[Row, Row]]) -> tuple[Comparison, ...]:
    """Return the comparison of the first row of each pair with the second row. P values are corrected for the number of pairs."""
    made = [_tested(one, other) for one, other in pairs]
    corrected = holm([p for _, _, p in made])
    return tuple(
        _comparison(one, other, score, ratio, p) for (one, other), (score, ratio, _), p in zip(pairs, made, corrected, strict=True)
    )


def _tested(one: Row, other: Row) -> tuple[Estimate, Estimate | None, float]:
    """Return the difference of scores, the ratio of steps if rows are compared by steps, and the p value."""
    found = difference(one, other)
    assert found is not None, "rows that are compared have scores"
    mine, theirs = _logarithms(one), _logarithms(other)
    if mine is None or theirs is None:
        return found[0], None, found[1]
    ratio, p = welch(mine, theirs, (_interval(one, mine), _interval(other, theirs)))
    return found[0], ratio, p


def _logarithms(row: Row) -> list[float] | None:
    """Return the logarithms of the steps to 90 % if the row reached the criterion with all seeds, and if the task tests examples of
    the kind on which the criterion was reached. Otherwise return None."""
    steps = [run.steps_to_90 for run in row.runs if run.steps_to_90]
    whole = row.learned is not None and row.learned.count == row.learned.of == len(steps)
    return [math.log(count) for count in steps] if whole and all(run.tests_as_validated for run in row.runs) else None


def _interval(row: Row, logarithms: Sequence[float]) -> float:
    """Return one interval of validation, on the scale of the logarithm of steps."""
    every = max(run.spec.budget.evaluate_every for run in row.runs)
    return every / math.exp(statistics.fmean(logarithms))


def _comparison(one: Row, other: Row, score: Estimate, ratio: Estimate | None, p: float) -> Comparison:
    if ratio is None:
        gain = one.resolution.sign * score.mean
        ties = one.resolution.ties(gain, max(abs(row.test.mean) for row in (one, other) if row.test))
    else:
        gain, ties = -ratio.mean, abs(ratio.mean) < math.log1p(SMALLEST)
    apart = p <= 1 - CONFIDENCE and not ties
    outcome = Outcome.TIED if not apart else Outcome.BETTER if gain > 0 else Outcome.WORSE
    return Comparison(one.label, other.label, score, ratio, p, outcome)


def standing(row: Row) -> tuple[bool, float]:
    """Return a sort key that puts the best row first.

    Rows that are compared by steps (see ``compare``) come first, sorted by their steps to 90 % of the highest possible score. All
    others follow, the best score first.
    """
    steps = _logarithms(row)
    return (True, -row.merit) if steps is None else (False, statistics.fmean(steps))


def judge_rows(rows: Sequence[Row], control: Row | None) -> Judgement:
    """Compare the rows of mechanisms, and store in each row its verdict and comparisons, or the reason why it has no verdict.
    Return all comparisons.

    Args:
        rows: rows of mechanisms, sorted by the key ``standing``, then rows of controls.
        control: row of the best control, if any.
    """
    contenders = [row for row in rows if not row.control]
    kept, missing = fit_to_compare(contenders)
    reason = _no_verdicts(contenders) if len(kept) < 2 else None
    if not kept:
        return Judgement(None, reason, ())
    for row in contenders:
        row.unjudged = None if reason else missing.get(row.label)
    fit = control if control and not _unfit(control) else None

    softmax = best_on_validation(row for row in kept if row.attention == BASELINE)

    def compared(best: Row) -> tuple[Comparison, ...]:
        pairs = {frozenset((a.label, b.label)): (a, b) for b in (best, softmax, fit) if b for a in kept if a is not b}
        made = compare(list(pairs.values()))
        found = {frozenset((c.row, c.against)): c for c in made}
        for row in kept:
            row.against_best, row.against_softmax, row.against_control = (
                _from(row, found.get(frozenset((row.label, other.label)))) if other else None for other in (best, softmax, fit)
            )
        return made

    for best in _candidates(kept, fit):
        comparisons = compared(best)
        if is_above_control(best):
            break
    else:
        best = kept[0]
        comparisons = compared(best)
    for row in kept:
        row.verdict = _verdict(row, best, control)
    if reason and best.verdict == Verdict.BEST:
        best.verdict = None  # it is the only one
    return Judgement(None if reason else best.label, reason, comparisons)


def _candidates(rows: Sequence[Row], control: Row | None) -> list[Row]:
    """Return the rows that can be the best one: those that are better than the control before any correction."""
    if control is None:
        return list(rows[:1])
    return [row for row in rows if compare([(row, control)])[0].outcome == Outcome.BETTER]


def _from(row: Row, found: Comparison | None) -> Comparison | None:
    """Return a comparison as seen from ``row``."""
    if found is None or found.row == row.label:
        return found
    turned = {Outcome.BETTER: Outcome.WORSE, Outcome.WORSE: Outcome.BETTER}.get(found.outcome, found.outcome)
    ratio = found.ratio and found.ratio.times(-1)
    return replace(found, row=found.against, against=found.row, difference=found.difference.times(-1), ratio=ratio, outcome=turned)


def _verdict(row: Row, best: Row, control: Row | None) -> Verdict:
    """Return the verdict on a row that was compared.

    A row that succeeds with only some seeds may differ significantly neither from the best row nor from the best control. If its
    mean is better than that of the control by a difference that counts, it is not distinguishable from the best; otherwise it is no
    better than the control.
    """
    if _is_flat(row, control):
        return Verdict.NOT_TRAINED
    worse = row.against_best is not None and row.against_best.outcome == Outcome.WORSE
    if not is_above_control(row):
        assert row.against_control is not None and row.test is not None, "without a control every row is above it"
        gain = row.resolution.sign * row.against_control.difference.mean
        if worse or not is_above_control(best) or gain <= 0 or row.resolution.ties(gain, abs(row.test.mean)):
            return Verdict.NO_BETTER
    return Verdict.BEST if row is best else Verdict.WORSE if worse else Verdict.TIED


def is_above_control(row: Row) -> bool:
    """Return True if a row is significantly better than the best control (a network that cannot select tokens by content), or if
    there is no control to compare with."""
    return row.against_control is None or row.against_control.outcome == Outcome.BETTER


def _is_flat(row: Row, control: Row | None) -> bool:
    """Return True if the training loss stayed flat for all seeds, and the validation score is close to that of the best control."""
    if not all(run.flat for run in row.runs):
        return False
    if control is None or control.valid is None or row.valid is None:
        return True
    near = _LIKE_CONTROL * (1.0 if row.resolution.share else abs(control.valid.mean))
    return abs(row.valid.mean - control.valid.mean) <= near


def _no_verdicts(contenders: Sequence[Row]) -> str:
    if len(contenders) < 2:
        return "no verdicts, because there is only one contender"
    if sum(bool(row.seeds) for row in contenders) < 2:
        return "no verdicts, because fewer than two contenders have a score"
    most = max(len(row.seeds) for row in contenders)
    if most < SEEDS_NEEDED:
        return f"no verdicts with fewer than {SEEDS_NEEDED} seeds; {SEEDS_NEEDED - most} more needed"
    return f"no verdicts, because fewer than two contenders have {SEEDS_NEEDED} seeds and a score at every seed"


def apart(comparisons: Sequence[Comparison]) -> set[tuple[str, str]]:
    """Return the pairs of row labels that differ significantly, each as (better row, worse row)."""
    found = {(c.row, c.against) for c in comparisons if c.outcome == Outcome.BETTER}
    return found | {(c.against, c.row) for c in comparisons if c.outcome == Outcome.WORSE}


def cost_of(row: Row, cost: str) -> float | None:
    """Return a cost of a row, or None if the cost is not known.

    Args:
        cost: a key of ``COSTS``.
    """
    value: float | None = getattr(row, COSTS[cost])
    return value


def ordered(table: Table, by: str) -> Table:
    """Return the table with its rows sorted by score (the best first) or by a cost (the lowest first). Controls come last.

    For a measured cost, rows are sorted within their implementation groups (rows with the same requested implementation and
    machines).

    Raises:
        ValueError: ``by`` is not one of ``ORDERS``.
    """
    check_text("by", by, ORDERS)
    if by == "score":
        return table
    name = ORDERS[by]

    def place(row: Row) -> tuple[bool, str, bool, float]:
        cost = cost_of(row, name)
        return row.control, str(row.block_of(name)), cost is None, cost or 0.0

    return replace(table, rows=tuple(sorted(table.rows, key=place)))


def with_fronts(rows: Sequence[Row], judgement: Judgement) -> None:
    """Set, for each row including controls, the Pareto fronts that it is on and the rows that dominate it.

    Fronts compare mean values. A row dominates another if it is no worse in mean score and in every comparable cost, and also
    cheaper in one cost or significantly better in score. A row is cheaper in time if its slowest seed took less time than the
    other's fastest seed. A row with a failed seed is on no front and dominates no other row.
    """
    better = apart(judgement.comparisons)
    whole = [row for row in rows if row.test and not row.failures]
    for row in rows:
        row.fronts = tuple(cost for cost in COSTS if row in whole and _on_front(row, whole, cost))
        row.dominated_by = tuple(other.label for other in whole if row.test and _dominates(other, row, better))


def comparable(one: Row, other: Row, cost: str) -> bool:
    """Return True if the costs of two rows can be compared.

    Both costs must be known. Measured costs can be compared only if both rows have the same requested implementation and were
    measured on one and the same machine. Times can be compared only if no row is ``unsteady``.
    """
    if cost_of(one, cost) is None or cost_of(other, cost) is None or (cost == "time" and (one.unsteady or other.unsteady)):
        return False
    return one.block_of(cost) == other.block_of(cost) and (cost in COUNTED or len(one.block.machines) == 1)


def _on_front(row: Row, others: Sequence[Row], cost: str) -> bool:
    mine = cost_of(row, cost)
    if mine is None or not comparable(row, row, cost):  # not measured, or on several machines
        return False
    for other in others:
        gain, spent = other.merit - row.merit, cost_of(other, cost) or 0.0
        if gain >= 0 and spent <= mine and (gain > 0 or spent < mine) and comparable(row, other, cost):
            return False
    return True


def _dominates(one: Row, other: Row, better: set[tuple[str, str]]) -> bool:
    if one is other or one.merit < other.merit:
        return False
    costs = {cost: (cost_of(one, cost) or 0.0, cost_of(other, cost) or 0.0) for cost in COSTS if comparable(one, other, cost)}
    if not costs or any(mine > theirs for mine, theirs in costs.values()):
        return False
    less = any(mine < theirs for cost, (mine, theirs) in costs.items() if cost != "time")
    return less or ("time" in costs and _sooner(one, other)) or (one.label, other.label) in better


def _sooner(one: Row, other: Row) -> bool:
    """Return True if the slowest seed of one row took less time than the fastest seed of the other."""
    if one.train_seconds_range is None or other.train_seconds_range is None:
        return False
    return one.train_seconds_range[1] < other.train_seconds_range[0]

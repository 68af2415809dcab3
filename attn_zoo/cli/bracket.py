"""Learning-rate search that tries lower or higher rates until the best rate lies between two others.

The functions of this module choose the next trials from the results so far. A trial runs for an eighth, a half or the whole of the
maximum number of steps. Each of these numbers of steps is called a rung. A trial on a higher rung continues where the trial on the
rung below ended. If the best rate is the lowest or the highest of all, the next lower or higher rate is tried as well. The two best
rates get a second seed. All functions are pure, so an interrupted search can continue from its recorded trials.

``seeds_wanted`` is the rule for the number of seeds with which a mechanism is then trained. It was fixed in advance, is the same
for all mechanisms, and uses validation scores only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attn_zoo.records.criterion import VALIDATIONS

LOWER, UPPER = 0.0001, 0.1
"""Learning rate that is tried next if the best rate so far is the lowest (``LOWER``) or the highest (``UPPER``). No rate beyond
these two is tried."""
RUNGS = (8, 2, 1)
"""Divisors of the maximum number of steps. The quotients (rungs) are the numbers of steps for which trials run."""
HOPELESS = 0.1
"""Gap to the best score above which a learning rate is given up, unless its score has reached 90 % of the ceiling (the best
possible score). The scores are those after equally many steps, divided by the ceiling."""
FINALISTS = 2
"""How many of the best learning rates are trained beyond half of the maximum number of steps. Equally many get a second seed."""

FEW, USUAL, MANY = 3, 5, 10
LEAVES = 0.02
"""Gain over the best control (scores are from 0 to 1) above which a mechanism with three seeds gets five."""
APART = 0.20
"""Difference between the highest and the lowest score (from 0 to 1) above which a mechanism with five seeds gets ten."""


class Trial(NamedTuple):
    """One training run of a learning-rate search, done or still to do."""

    rate: float
    steps: int
    """Maximum number of training steps: one of the numbers that ``rungs`` returns."""
    second: bool = False
    """True for a trial with the second of two seeds, which only the best rates get."""


class Result(NamedTuple):
    """Result of one training run of a learning-rate search."""

    score: float | None
    """Last validation score divided by the ceiling (the best possible score). If lower is better for the metric, the score is minus
    the logarithm of the last validation score. None for a trial that diverged or failed."""
    succeeded: bool = False
    """True if the trial ended because its validation scores met the criterion (``Budget.until``)."""
    to_90: float = math.inf
    """Number of steps until the score reached 90 % of the ceiling; infinite if it never did."""


Results = Mapping[Trial, Result]


def rungs(cap: int) -> tuple[int, ...]:
    """Return the rungs, which are numbers of training steps: an eighth, a half and the whole of the maximum ``cap``. Equal numbers
    are listed once."""
    return tuple(dict.fromkeys(max(1, cap // divisor) for divisor in RUNGS))


def next_trials(results: Results, cap: int, rates: Sequence[float]) -> list[Trial]:
    """Return the training runs (trials) that a learning-rate search needs next, given the results so far. The list is empty if the
    search is over.

    Args:
        cap: maximum number of training steps of a trial.
        rates: learning rates that every search tries.
    """
    tried = sorted({*rates, *(trial.rate for trial in results)})
    for rung, steps in enumerate(rungs(cap)):
        entering = [rate for rate in tried if _goes_on(rate, results, cap, rung, tried)]
        if new := [Trial(rate, steps) for rate in entering if Trial(rate, steps) not in results]:
            return new
    ranked = ranking(results, cap)
    if ranked[0] == tried[0] and tried[0] > LOWER:
        return [Trial(LOWER, rungs(cap)[0])]
    if ranked[0] == tried[-1] and tried[-1] < UPPER:
        return [Trial(UPPER, rungs(cap)[0])]
    finalists = [rate for rate in ranked if results[_furthest(rate, results)].score is not None][:FINALISTS]
    return [Trial(rate, cap, second=True) for rate in finalists if Trial(rate, cap, second=True) not in results]


def most(cap: int, rates: Sequence[float]) -> tuple[int, int]:
    """Return the number of training runs (trials) of a long learning-rate search, and the sum of their training steps.

    A long search tries ``rates`` and one more rate. None of its trials reaches the target score early, and no rate is given up
    before half of the maximum number of steps, ``cap``.
    """
    entered, last = len(rates) + 1, FINALISTS + 1
    half = cap // RUNGS[1]
    return 2 * entered + 2 * last, entered * half + last * (cap - half) + last * cap


def ranking(results: Results, cap: int) -> list[float]:
    """Return all learning rates that were tried, the best first.

    The first of these rules that distinguishes two rates decides:

    - a rate with a failed trial comes after all others;
    - a rate that reached the task's target score comes before one that did not;
    - a rate whose score reached 90 % of the best possible score (the ceiling) in fewer steps comes first. If the numbers of steps
      differ by at most a 48th of ``cap`` (the steps between two validations), the lower rate comes first;
    - of rates that never reached 90 %, the one that ran for more steps comes first;
    - a rate with a higher score comes first.

    Rates with a trial of a second seed are ranked again among themselves, by both trials: how many failed, how many reached the
    target score, and then the mean steps to 90 % and the mean score.
    """
    rates = {trial.rate for trial in results}
    firsts = _best_first({rate: [_furthest(rate, results)] for rate in rates}, results, cap)
    seconds = [rate for rate in firsts if Trial(rate, cap, second=True) in results]
    both = {rate: [_furthest(rate, results), Trial(rate, cap, second=True)] for rate in seconds}
    finals = _best_first(both, results, cap)
    places = iter(finals)
    return [next(places) if rate in seconds else rate for rate in firsts]


def _goes_on(rate: float, results: Results, cap: int, rung: int, tried: Sequence[float]) -> bool:
    """Return True if a rate goes on to a rung, given the results on the rung below."""
    if rung == 0:
        return True
    below = rungs(cap)[rung - 1]
    rivals = {other: results[Trial(other, below)] for other in tried if Trial(other, below) in results}
    own = rivals.get(rate)
    if own is None or own.score is None or own.succeeded:
        return False
    if any(rival.succeeded for rival in rivals.values()) and own.to_90 == math.inf:
        return False  # its time to 90 % is already longer than that of the rate that succeeded
    best = max(rival.score for rival in rivals.values() if rival.score is not None)
    if own.score < best - HOPELESS and own.to_90 == math.inf:
        return False
    if rung == len(rungs(cap)) - 1:
        return rate in _best_first({other: [Trial(other, below)] for other in rivals}, results, cap)[:FINALISTS]
    return True


def _furthest(rate: float, results: Results) -> Trial:
    """Return the trial of a rate that has the first seed and the most steps."""
    return max((trial for trial in results if trial.rate == rate and not trial.second), key=lambda trial: trial.steps)


def _best_first(trials: Mapping[float, Sequence[Trial]], results: Results, cap: int) -> list[float]:
    """Return the rates, the best first. Among rates that reach 90 % within one validation interval of the best, the lowest comes
    first."""
    left = {rate: _order(own, results) for rate, own in trials.items()}
    found = []
    while left:
        best = min(left.values())
        found.append(min(rate for rate, own in left.items() if own == best or _as_soon(own, best, cap // VALIDATIONS)))
        del left[found[-1]]
    return found


class _Order(NamedTuple):
    """Sort key of the trials of one rate: the smaller, the better."""

    failures: int
    successes: int
    to_90: float
    steps: int
    score: float
    rate: float


def _as_soon(own: _Order, best: _Order, interval: int) -> bool:
    """Return True if trials have as many failures and successes as the best ones, and reach 90 % at most one interval later."""
    return own[:2] == best[:2] and own.to_90 < math.inf and own.to_90 - best.to_90 <= interval


def _order(trials: Sequence[Trial], results: Results) -> _Order:
    """Return the sort key of the trials of one rate."""
    found = [results[trial] for trial in trials]
    scores = [-math.inf if result.score is None else result.score for result in found]
    return _Order(
        failures=sum(result.score is None for result in found),
        successes=-sum(result.succeeded for result in found),
        to_90=sum(result.to_90 for result in found) / len(found),
        steps=-trials[0].steps if len(trials) == 1 and found[0].to_90 == math.inf else 0,
        score=-sum(scores) / len(scores),
        rate=trials[0].rate,
    )


def seeds_wanted(scores: Sequence[float], *, main: bool, control: float | None, share: bool = True) -> int:
    """Return the number of seeds with which a mechanism must be trained on a task.

    - Main mechanisms and controls (networks that cannot select tokens by content) start with five seeds, other
      mechanisms with three.
    - A mechanism with three seeds gets five if the best of its first three scores exceeds the score of the best control by more
      than ``LEAVES``, or if no control has a score.
    - A mechanism with five seeds gets ten if the highest and the lowest of its first five scores differ by more than ``APART``.
    - If scores are not shares, such as perplexity, the last two rules do not apply.

    Args:
        scores: validation scores of the first seeds, in the order of the seeds; 0 for a run without a score.
        main: True for controls and for the mechanisms that the experiment names as main.
        control: best validation score of a control on the task; None if no control has one.
        share: True if scores are from 0 to 1, and higher is better.
    """
    if not share:
        return USUAL if main else FEW
    leaves = len(scores) >= FEW and (control is None or max(scores[:FEW]) > control + LEAVES)
    if not (main or leaves):
        return FEW
    five = scores[:USUAL]
    return MANY if len(five) == USUAL and max(five) - min(five) > APART else USUAL

"""Rules by which ``attn-zoo diff`` decides whether a score or a cost differs between two sets of records, A and B."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from attn_zoo.leaderboard.compare import SEEDS_NEEDED, Resolution
from attn_zoo.leaderboard.statistics import CONFIDENCE, Estimate, Run, estimate, holm, paired_p_value
from attn_zoo.records.frames import COUNTED

LEVEL = 0.05
"""Significance level. If the later records are as good as the earlier ones, this is the greatest probability that any row is
called worse."""
REGRESSIONS: Mapping[str, str] = {
    "worse": "a score is significantly worse",
    "slower": "a training step takes longer",
    "larger": "a training step takes more memory",
    "costlier": "a counted cost rose: parameters, FLOPs",
    "failing": "a seed that succeeded in A failed in B",
    "missing": "a configuration or seed is only in A",
    "changed": "data, protocol or settings changed, so nothing was compared",
}
"""Kinds of findings that can make ``attn-zoo diff`` fail. The other kinds (better, faster, smaller, cheaper, fixed, new) cannot."""
METHOD = (
    "scores: worse or better by a one-sided paired t test over shared seeds, with Holm's correction over all rows "
    f"({100 * LEVEL:.0f} % for the whole comparison), and by more than the tolerance; with fewer than {SEEDS_NEEDED} shared seeds "
    "the spread is unknown, and the tolerance alone decides",
    "counted costs: any difference counts",
    "measured costs: higher or lower for every shared seed by more than the tolerance and, for time, by more than the "
    "interquartile ranges of the steps; compared only on the same processor with the same number of threads",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Difference of one row between two sets of records, A (earlier) and B (later), of a kind such as ``worse`` or ``slower``."""

    kind: str
    row: str
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Test scores of one row by seed, in the earlier records (A) and in the later ones (B)."""

    a: Mapping[int, float]
    b: Mapping[int, float]
    resolution: Resolution
    tolerance: float
    """Largest loss of score that does not count as worse, in the unit of the score."""

    @property
    def differences(self) -> list[float]:
        """Score in B minus score in A at each shared seed."""
        return [self.b[seed] - self.a[seed] for seed in sorted(self.a.keys() & self.b.keys())]


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict on whether the scores of one row differ between the earlier records (A) and the later ones (B)."""

    word: str
    """``worse``, ``better``, ``within noise``, ``within tolerance`` (with few seeds) or ``not compared``."""
    difference: Estimate | None
    """Score in B minus score in A, averaged over shared seeds. Its interval is not corrected for the number of rows."""
    p: float | None
    """Corrected p value of the hypothesis that B is not worse; None with fewer than ``SEEDS_NEEDED`` shared seeds."""
    least: float | None
    """Smallest loss of score that the test would have called worse, given the spread of this row's seeds."""
    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """Value of one cost of a row, such as its FLOPs, in the earlier records (A) and in the later ones (B)."""

    name: str
    a: float
    b: float
    kind: str
    """Kind of finding; empty if the costs differ too little to count."""
    why: str


def judged(pairs: Sequence[Pair]) -> list[Judged]:
    """Return for each row the verdict on whether its earlier and later scores differ. The p values are corrected for the number of
    rows with at least ``SEEDS_NEEDED`` shared seeds."""
    tested = [at for at, pair in enumerate(pairs) if len(pair.differences) >= SEEDS_NEEDED]
    p_values = [_p_worse(pairs[at]) for at in tested]
    worse, better = (dict(zip(tested, holm(p), strict=True)) for p in (p_values, [1 - p for p in p_values]))
    return [_judge(pair, worse.get(at), better.get(at), len(tested)) for at, pair in enumerate(pairs)]


def _p_worse(pair: Pair) -> float:
    """Return the one-sided p value for B being worse."""
    two_sided = paired_p_value(pair.differences, pair.resolution.grain)
    return two_sided / 2 if pair.resolution.sign * statistics.fmean(pair.differences) < 0 else 1 - two_sided / 2


def _judge(pair: Pair, p_worse: float | None, p_better: float | None, tests: int) -> Judged:
    found = estimate(pair.differences)
    if found is None:
        return Judged("not compared", None, None, None, "no seed is done in both A and B")
    gain, share = pair.resolution.sign * found.mean, pair.resolution.share
    if p_worse is None or p_better is None:
        seeds = f"{found.count} shared seed{'s' if found.count > 1 else ''}"
        why = f"{found.in_points(share)} over {seeds}, tolerance {Estimate(pair.tolerance, None, 0).in_points(share, '')}"
        word = "worse" if gain < -pair.tolerance else "better" if gain > pair.tolerance else "within tolerance"
        return Judged(word, found, None, pair.tolerance, f"{why}; the noise is unknown")
    assert found.half_width is not None, "an estimate over several seeds has an interval"
    sure = {"worse": p_worse, "better": p_better}
    word = next((w for w, p in sure.items() if p <= LEVEL and abs(gain) > pair.tolerance), "within noise")
    p = sure.get(word, p_worse)
    why = f"{found.in_points(share)} over {found.count} shared seeds, corrected p = {p:.2g}"
    return Judged(word, found, float(p_worse), max(pair.tolerance, _least(found, pair.resolution.grain, tests)), why)


def _least(found: Estimate, grain: float, tests: int) -> float:
    """Return the smallest loss for which the strictest step of Holm's correction would have called this row worse.

    The variance is that of the differences plus the variance that rounding two scores to ``grain`` causes, as in
    ``paired_p_value``.
    """
    assert found.half_width is not None, "only several seeds have an interval"
    error = found.half_width / float(stdtrit(found.count - 1, (1 + CONFIDENCE) / 2))
    return math.hypot(error, grain / math.sqrt(6 * found.count)) * float(stdtrit(found.count - 1, 1 - LEVEL / tests))


def cost_changes(a: Mapping[int, Run], b: Mapping[int, Run], tolerance: float) -> tuple[Change, ...]:
    """Return the costs of a row in the earlier runs ``a`` and in the later runs ``b`` (mappings from seed to run).

    A counted cost is returned only if it differs between ``a`` and ``b``. Time and memory are returned only if a seed ran on
    the same kind of processor in ``a`` and ``b``.

    Args:
        tolerance: relative change up to which a measured cost counts as unchanged.
    """
    shared = [seed for seed in a if seed in b and a[seed]["status"] == b[seed]["status"] == "done"]
    if not shared:
        return ()
    then, now = a[shared[0]], b[shared[0]]
    found = []
    for name in COUNTED:
        before = then[name]
        if before is not None and now[name] is not None and before != now[name]:
            kind = "costlier" if now[name] > before else "cheaper"
            found.append(Change(name, before, now[name], kind, _ratio(name, before, now[name])))
    here = [seed for seed in shared if a[seed]["processor"] == b[seed]["processor"]]
    for name, spread, kinds in (
        ("step_seconds_median", "step_seconds_iqr", ("slower", "faster")),
        ("peak_bytes", "", ("larger", "smaller")),
    ):
        known = [s for s in here if _measured(a[s], name) and _measured(b[s], name)]
        if known:
            found.append(_measured_change(name, spread, kinds, [(a[s], b[s]) for s in known], tolerance))
    return tuple(found)


def _measured_change(
    name: str, spread: str, kinds: tuple[str, str], runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], tolerance: float
) -> Change:
    rises = [then[name] < now[name] - _noise(then, now, name, spread, tolerance) for then, now in runs]
    falls = [now[name] < then[name] - _noise(now, then, name, spread, tolerance) for then, now in runs]
    kind = kinds[0] if all(rises) else kinds[1] if all(falls) else ""
    then, now = (statistics.median(pair[side][name] for pair in runs) for side in (0, 1))
    return Change(name, then, now, kind, f"{_ratio(name, then, now)} over {len(runs)} shared seed{'s' if len(runs) > 1 else ''}")


def _noise(low: Mapping[str, Any], high: Mapping[str, Any], name: str, spread: str, tolerance: float) -> float:
    ranges = [float(run.get(spread) or 0.0) for run in (low, high)] if spread else [0.0]
    return max(tolerance * float(low[name]), max(ranges))


def _measured(run: Run, name: str) -> bool:
    return run[name] is not None and run[name] > 0


def _ratio(name: str, then: float, now: float) -> str:
    change = f" ({now / then - 1:+.1%})" if then else ""
    return f"{name.replace('_', ' ')} {then:,.4g} became {now:,.4g}{change}"

"""Verdicts on mechanisms in place of softmax in a trained encoder, from measurements of ``attn-zoo transplant``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.leaderboard.statistics import Estimate, estimate, welch
from attn_zoo.recommend.verdicts import Judgement

QUALITIES = {
    "spearman": ("similarity of passages", "the order of similarities should stay the same as the teacher's"),
    "neighbours": ("neighbouring passages", "consecutive passages should still be distinguished from other pairs of passages"),
    "pairs_spearman": ("similarity of pairs", "the order of similarities should stay the same as the teacher's on other text"),
    "pairs_auc": ("paraphrases", "pairs with the same meaning should still be distinguished from other pairs"),
}
"""For each quality of a fine-tuned student, its name and why it is evidence for the use case."""
_STAGE = "tuned"

Point = Mapping[str, Any]
"""Measurements of one student with one seed."""
Student = tuple[str, dict[str, Judgement]]
"""Name of a student with its settings, and its verdict on each deciding quality by the quality's name."""


def deciding(found: Mapping[str, Any]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the qualities that decide, with the scores of the best control, and why each of the others does not.

    A quality (a key of ``QUALITIES``) decides if the teacher, which is the encoder with softmax, is significantly better than the
    best control.

    Args:
        found: content of a file that ``attn-zoo transplant`` wrote.
    """
    teacher, evidence, discounted = found["reference"], dict[str, list[float]](), dict[str, str]()
    controls = _by_student([point for point in found["points"] if point["control"]])
    for quality in (name for name in QUALITIES if teacher.get(name) is not None):
        scores = [made for points in controls.values() if not _failed(points) and (made := _scores(points, quality))]
        best = max(scores, key=lambda made: sum(made) / len(made), default=[])
        if _is_above(estimate([teacher[quality] - score for score in best])):
            evidence[quality] = best
        else:
            discounted[quality] = "the teacher is no better than the best control" if best else "no control was transplanted"
    return evidence, discounted


def students(found: Mapping[str, Any], accept: float) -> dict[str, Student]:
    """Return the best student of each mechanism: the cheapest that matches the teacher, or else the one that loses least.

    Students, which are copies of the teacher with another mechanism, are left out if it takes as many FLOPs as softmax.

    Args:
        found: content of a file that ``attn-zoo transplant`` wrote.
        accept: largest acceptable loss against the teacher, in points (a score of 1 is 100 points).
    """
    evidence, _ = deciding(found)
    placed = defaultdict[str, list[tuple[bool, float, Student]]](list)
    for label, points in _by_student([point for point in found["points"] if not point["control"]]).items():
        share = points[0]["cost"]["attention_flops"] / points[0]["cost"]["softmax_flops"]
        if share < 1:
            judged = {name: _judge(name, points, found["reference"][name], control, accept) for name, control in evidence.items()}
            matches = all(one.matches for one in judged.values())
            worst = min((one.low if one.decided else float("-inf") for one in judged.values()), default=0.0)
            student = label, {one.at: one for one in judged.values()}
            placed[points[0]["attention"]].append((not matches, share if matches else -worst, student))
    return {attention: min(those, key=itemgetter(0, 1))[2] for attention, those in placed.items()}


def _judge(quality: str, points: Sequence[Point], teacher: float, control: Sequence[float], accept: float) -> Judgement:
    name, scores = QUALITIES[quality][0], _scores(points, quality)
    gain = estimate([100 * (score - teacher) for score in scores])
    if _failed(points):
        return Judgement(name, "failed")
    if gain is None or gain.count < SEEDS_NEEDED:
        return Judgement(name, "few seeds", gain)
    if not _is_above(welch(scores, control)[0]):
        return Judgement(name, "no better", gain)
    return Judgement(name, "as good" if gain.low > -accept else "worse" if gain.high < 0 else "unclear", gain)


def _by_student(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points of each student, one for each seed, by its name with its settings."""
    named = [(f"{point['label']} (init={point['init']})" if point["init"] else str(point["label"]), point) for point in points]
    return grouped((name, point) for name, point in named if point["attention"] != BASELINE)


def _failed(points: Sequence[Point]) -> bool:
    return any(point["failed"] or _STAGE not in point["stages"] for point in points)


def _scores(points: Sequence[Point], quality: str) -> list[float]:
    found = [point["stages"].get(_STAGE, {}).get(quality) for point in points]
    return [score for score in found if score is not None]


def _is_above(margin: Estimate | None) -> bool:
    return margin is not None and margin.count >= SEEDS_NEEDED and margin.low > 0

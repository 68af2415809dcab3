"""Advice on replacing softmax in a trained encoder, from measurements of ``attn-zoo transplant``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.needs import Answer, Choice, Gain
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.leaderboard.statistics import Estimate, estimate, welch

TITLE = "Replace softmax in a trained encoder"
_STAGE = "tuned"
_QUALITIES = {
    "spearman": ("similarity of passages", "the order of similarities should stay the same as the teacher's"),
    "neighbours": ("neighbouring passages", "consecutive passages should still be distinguished from other pairs of passages"),
    "pairs_spearman": ("similarity of pairs", "the order of similarities should stay the same as the teacher's on other text"),
    "pairs_auc": ("paraphrases", "pairs with the same meaning should still be distinguished from other pairs"),
}
"""For each quality of a fine-tuned student, its name and why it is evidence for the use case."""

_Row = dict[int, Mapping[str, float | None]]
"""Scores of one student, by seed and then by quality (a key of ``_QUALITIES``)."""


def drop_in(found: Mapping[str, Any] | None, accept: float, candidates: Collection[str] | None = None) -> Answer:
    """Return which mechanism to use in place of softmax in a trained encoder.

    The evidence is the scores of students, which are copies of the encoder (the teacher) with another mechanism. Each score
    measures one quality, such as the similarity of passages. A quality counts if the teacher is significantly better than the best
    control. A mechanism can be recommended if all its layers together take fewer FLOPs than softmax at the length of the passages.
    On every quality that counts, it must also lose less than ``accept`` against the teacher and be significantly better than the
    best control.

    Args:
        found: content of a file that ``attn-zoo transplant`` wrote; None for no evidence.
        accept: largest acceptable loss against the teacher, in points (a score of 1 is 100 points).
        candidates: mechanisms to choose among; None for all.

    Raises:
        ValueError: ``found`` is the content of another experiment's file.
    """
    if found is None:
        return Answer(TITLE, "", (), (), False, (), (), None)
    if found.get("experiment") != "transplant":
        raise ValueError(f"--transplant must name a file that attn-zoo transplant wrote; got a file of {found.get('experiment')!r}")
    points = [p for p in found["points"] if candidates is None or p["control"] or p["attention"] in candidates]
    students, controls = _students(points, control=False), _students(points, control=True)
    evidence, no_evidence, judged = [], [], []
    best = {name: _best(controls, name) for name in _QUALITIES if found["reference"].get(name) is not None}
    for name, control in best.items():
        if control is not None and _above(estimate([found["reference"][name] - score for score in control.values()])):
            evidence.append(name)
        else:
            said = "no control was transplanted" if control is None else "the teacher is no better than the best control"
            no_evidence.append((_QUALITIES[name][0], said))
    for label, (point, row) in students.items():
        gains = tuple(_gains(row, found["reference"], evidence))
        if evidence and len(gains) == len(evidence) and _share(point) < 1:
            choice = Choice(
                label,
                gains,
                f"{100 * _share(point):.3g} % of softmax's FLOPs at {found['setting']['length']:,} tokens",
                point["attention"],
            )
            beyond = all(_above(_margin(_scores(row, name), best[name] or {})) for name in evidence)
            judged.append((_share(point), choice, beyond))
    judged.sort(key=lambda one: (one[0], -one[1].worst))
    good = [choice for _, choice, beyond in judged if beyond and choice.worst > -accept]
    return Answer(
        title=TITLE,
        direction="",
        evidence=tuple(_QUALITIES[name] for name in evidence),
        no_evidence=tuple(no_evidence),
        compared=bool(judged),
        missing=(),
        chosen=tuple(good),
        nearest=None if good else max((choice for _, choice, _ in judged), key=lambda choice: choice.worst, default=None),
        tasks=tuple(_QUALITIES[name][0] for name in evidence),
        lengths=(int(found["setting"]["length"]),) if evidence else (),
    )


def _students(points: Sequence[Mapping[str, Any]], *, control: bool) -> dict[str, tuple[Mapping[str, Any], _Row]]:
    """Return, for each student, its first point and its qualities by seed. Students that failed with a seed are left out."""
    mine = [point for point in points if point["control"] == control and point["attention"] != BASELINE]
    starts = grouped((point["label"], point["init"]) for point in mine)
    rows: dict[str, tuple[Mapping[str, Any], _Row]] = {}
    failed = set()
    for point in mine:
        several = len(set(starts[point["label"]])) > 1
        label = f"{point['label']} (init={point['init']})" if several else str(point["label"])
        if point["failed"] or _STAGE not in point["stages"]:
            failed.add(label)
        else:
            rows.setdefault(label, (point, {}))[1][point["seed"]] = point["stages"][_STAGE]
    return {label: row for label, row in rows.items() if label not in failed}


def _scores(row: _Row, name: str) -> dict[int, float]:
    return {seed: score for seed, qualities in row.items() if (score := qualities.get(name)) is not None}


def _best(controls: Mapping[str, tuple[Mapping[str, Any], _Row]], name: str) -> dict[int, float] | None:
    """Return the scores by seed of the control with the best mean, or None if there is no control."""
    found = [scores for _, row in controls.values() if (scores := _scores(row, name))]
    return max(found, key=lambda scores: sum(scores.values()) / len(scores), default=None)


def _margin(these: Mapping[int, float], those: Mapping[int, float]) -> Estimate | None:
    return welch(tuple(these.values()), tuple(those.values()))[0] if these and those else None


def _above(margin: Estimate | None) -> bool:
    return margin is not None and margin.count >= SEEDS_NEEDED and margin.low > 0


def _gains(row: _Row, reference: Mapping[str, float], evidence: Sequence[str]) -> Iterator[Gain]:
    """Return the gains over the teacher in points. The scores of the teacher are the same for all seeds."""
    for name in evidence:
        amount = estimate([100 * (score - reference[name]) for score in _scores(row, name).values()])
        if amount is not None and amount.count >= SEEDS_NEEDED:
            yield Gain(_QUALITIES[name][0], amount, "points")


def _share(point: Mapping[str, Any]) -> float:
    return float(point["cost"]["attention_flops"]) / float(point["cost"]["softmax_flops"])

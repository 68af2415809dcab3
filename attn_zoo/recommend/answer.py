"""Answer to a use case or to given requirements: which mechanism to use, and on which evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.leaderboard.heatmap import LENGTH
from attn_zoo.leaderboard.table import Table
from attn_zoo.recommend.candidates import Candidate, Requirements, candidates
from attn_zoo.recommend.needs import ACCEPT, NEEDS, Need
from attn_zoo.recommend.transplanted import QUALITIES, deciding, students
from attn_zoo.recommend.verdicts import Ability, Judgement, abilities, judge
from attn_zoo.rows import RowName

ENCODER = "Replace softmax in a trained encoder"
"""Title of the use case that is judged by transplants."""


class Evidence(NamedTuple):
    """Task on whose scores a recommendation is based or, for a trained encoder, quality that the scores measure."""

    name: str
    """Title of the task, with its direction."""
    task: str
    """Name of the task on the command line."""
    why: str
    length: int | None
    unit: str
    """Unit of differences from softmax: points for percentage metrics, else per cent of softmax's score."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Which mechanism to use, with all the evidence."""

    title: str
    required: Requirements
    candidates: tuple[Candidate, ...]
    """Mechanisms that meet the requirements, the cheapest first."""
    refused: Mapping[str, str]
    """Why each other mechanism does not meet the requirements."""
    named: bool
    """True if the user named the rows to choose among."""
    evidence: tuple[Evidence, ...] = ()
    """Deciding tasks: those on whose scores the recommendation is based."""
    discounted: Mapping[str, str] | None = None
    """For each recorded task of the use case that does not count, the reason."""
    missing: tuple[str, ...] = ()
    """Names of the use case's tasks that have no records."""
    need: Need | None = None
    """Use case that selects the tasks. None for a trained encoder, which is judged by transplants."""

    def deciding(self, each: Candidate) -> list[Judgement]:
        """Return the verdict on a candidate on every deciding task."""
        return [each.judged.get(one.name, Judgement(one.name, "not run")) for one in self.evidence]

    def worst(self, each: Candidate) -> Judgement:
        """Return the verdict on the deciding task with the worst difference from softmax, at the lower end of its interval."""
        return min(self.deciding(each), key=lambda one: one.low)

    @property
    def cheaper(self) -> list[Candidate]:
        """Candidates that take fewer FLOPs than softmax and, with ``decode``, have a smaller state. The cheapest comes first: with
        ``decode``, the one with the smallest state."""
        found = [each for each in self.candidates if each.share < 1 and (each.smaller or not self.required.decode)]
        return sorted(found, key=lambda each: each.states[0] if self.required.decode and each.states else 0)

    @property
    def compared(self) -> list[Candidate]:
        """Cheaper candidates that have enough seeds on every deciding task."""
        return [each for each in self.cheaper if self.evidence and all(one.decided for one in self.deciding(each))]

    @property
    def qualified(self) -> list[Candidate]:
        """Cheaper candidates that match softmax on every deciding task, the cheapest of each mechanism."""
        found: dict[str, Candidate] = {}
        for each in self.compared:
            if all(one.matches for one in self.deciding(each)):
                found.setdefault(each.attention, each)
        return list(found.values())

    @property
    def softmax(self) -> Candidate | None:
        """Softmax, or None if it does not meet the requirements."""
        return next((each for each in self.candidates if each.attention == BASELINE), None)

    @property
    def taken(self) -> Candidate | None:
        """Recommended candidate, which is softmax if no other qualifies. None if nothing meets the requirements."""
        return next(iter(self.qualified), self.softmax)

    @property
    def nearest(self) -> Candidate | None:
        """The compared candidate that loses least on its worst task. None if a candidate qualifies, or without a comparison."""
        return None if self.qualified else max(self.compared, key=lambda each: self.worst(each).low, default=None)

    @property
    def untried(self) -> tuple[Candidate, list[Evidence]] | None:
        """Candidate for which more runs are most likely to change the recommendation, and the deciding tasks on which it must still
        be shown to match softmax. None if there is no such candidate.

        The candidate is cheaper than softmax and did not lose on a deciding task. Of several candidates, the one with the fewest
        unmatched deciding tasks is returned; among equals, the one that matches softmax on the most recorded tasks, then the
        one with the fewest FLOPs.
        """
        found = []
        for each in self.cheaper:
            verdicts = self.deciding(each)
            lacking = [task for task, one in zip(self.evidence, verdicts, strict=True) if not one.matches]
            if not any(one.lost for one in verdicts) and (lacking or not self.evidence):
                good = sum(one.matches for one in each.judged.values())
                found.append(((len(lacking), -good, each.share, each.label), each, lacking))
        return min(found, key=itemgetter(0))[1:] if found else None

    @property
    def lengths(self) -> list[int]:
        """Input lengths of the evidence in ascending order."""
        return sorted({one.length for one in self.evidence if one.length})

    @property
    def no_evidence(self) -> str:
        """Why the records do not allow an answer, as text. If they allow one, the text is empty."""
        if self.evidence:
            return "" if self.compared else f"no cheaper mechanism has {SEEDS_NEEDED} seeds on every task"
        told = [f"{name} does not count ({why})" for name, why in (self.discounted or {}).items()]
        told += [f"not run: {', '.join(self.missing)}"] if self.missing else []
        return "; ".join(told) or "there are no records of these tasks"


def recommend(
    required: Requirements,
    tables: Sequence[Table],
    transplant: Mapping[str, Any] | None = None,
    *,
    rows: Sequence[RowName] = (),
) -> Answer:
    """Return an answer: the cheapest mechanism that meets the requirements and takes fewer FLOPs than softmax.

    On every deciding task (one on whose score the recommendation is based), the mechanism must also match softmax and beat the
    controls, which cannot select tokens by content. If there is no such mechanism, softmax is recommended. A task decides if it
    has enough tokens for the use case, and if softmax has at least ``SEEDS_NEEDED`` seeds on it and beats the best control.

    Args:
        required: requirements, which also choose the deciding tasks.
        transplant: content of a file that ``attn-zoo transplant`` wrote. For a trained model, the evidence is this content instead
            of scores on tasks.
        rows: mechanisms with options to choose among; by default all mechanisms except controls.

    Raises:
        ValueError: the task that the user named has no records in the required direction, or the cost of softmax cannot be counted
            for these requirements.
    """
    met, refused = candidates(required, rows)
    every = [ability for ability in abilities(tables) if ability.causal == required.reads_past]
    found = [replace(each, judged={one.name: judge(one, each.attention, required.accept) for one in every}) for each in met]
    if required.trained:
        return _from_transplant(Answer(ENCODER, required, tuple(found), refused, bool(rows)), transplant)
    need = _need(required, every)
    ours = {one.name: (one, _no_evidence(one, need)) for one in every if (one.task, one.causal) in need.tasks}
    recorded = {one.task for one in every}
    return Answer(
        title=f"{need.title} ({_direction(required)})" if len(need.directions) > 1 else need.title,
        required=required,
        candidates=tuple(found),
        refused=refused,
        named=bool(rows),
        evidence=tuple(_evidence(one, need) for one, why in ours.values() if why is None),
        discounted={name: why for name, (_, why) in ours.items() if why is not None},
        missing=tuple(task for task, causal in need.tasks if causal == required.reads_past and task not in recorded),
        need=need,
    )


def use_cases(tables: Sequence[Table], transplant: Mapping[str, Any] | None, accept: float = ACCEPT) -> list[Answer]:
    """Return one answer per use case and direction (bidirectional, causal), for layers at 4,096 tokens.

    Args:
        transplant: content of a file that ``attn-zoo transplant`` wrote, as evidence on trained encoders; None for no evidence.
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).

    Raises:
        ValueError: ``accept`` is not at least 0 and less than 100.
    """
    ways = [(need, causal) for need in NEEDS for causal in need.directions]
    asked = [Requirements(LENGTH, causal=causal, decode=need.small_state, use=need.name, accept=accept) for need, causal in ways]
    return [recommend(required, tables, transplant) for required in [*asked, Requirements(LENGTH, trained=True, accept=accept)]]


def _direction(required: Requirements) -> str:
    return "causal" if required.reads_past else "bidirectional"


def _need(required: Requirements, every: Sequence[Ability]) -> Need:
    """Return the use case that selects the tasks. If the user named none, it has the named task or all recorded tasks."""
    if required.use is not None:
        return next(need for need in NEEDS if need.name == required.use)
    recorded, way = sorted({one.task for one in every}), _direction(required)
    if required.task is not None and required.task not in recorded:
        raise ValueError(
            f"there are no {way} records of --task {required.task}. Run this task, or name a task with {way} records: "
            f"{', '.join(recorded) or 'none'}"
        )
    why = "named with --task" if required.task else f"every recorded {way} task decides"
    names = [required.task] if required.task else recorded
    return Need("Tasks", {(name, required.reads_past): why for name in names}, small_state=required.decode)


def _evidence(one: Ability, need: Need) -> Evidence:
    length = one.table.task.get("length")
    return Evidence(one.name, one.task, need.tasks[one.task, one.causal], length and int(length), judge(one, BASELINE).unit)


def _no_evidence(ability: Ability, need: Need) -> str | None:
    """Return why an ability among the tasks of a use case cannot show a loss against softmax, or None if it can."""
    length = ability.table.task.get("length") or 0
    if length < need.shortest:
        return f"{length:,} tokens, and this use case begins at {need.shortest:,}"
    if ability.no_evidence:
        return ability.no_evidence
    reasons = {
        "above controls": None,
        "not run": "softmax was not run",
        "failed": "softmax failed at a seed",
        "few seeds": f"softmax or the control {ability.table.control} has fewer than {SEEDS_NEEDED} seeds",
    }
    return reasons.get(judge(ability, BASELINE).verdict, f"softmax is no better than the control {ability.table.control}")


def _from_transplant(asked: Answer, transplant: Mapping[str, Any] | None) -> Answer:
    if transplant is None:
        return replace(asked, missing=("attn-zoo transplant",))
    length, (evidence, discounted) = int(transplant["setting"]["length"]), deciding(transplant)
    judged = students(transplant, asked.required.accept)
    scored = [(each, *judged.get(each.attention, (each.attention, {}))) for each in asked.candidates]
    return replace(
        asked,
        candidates=tuple(replace(each, scored=name, judged={**each.judged, **verdicts}) for each, name, verdicts in scored),
        evidence=tuple(Evidence(QUALITIES[key][0], *QUALITIES[key], length, "points") for key in evidence),
        discounted={QUALITIES[key][0]: why for key, why in discounted.items()},
    )

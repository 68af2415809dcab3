"""Choice of the recommended mechanism among the candidates. If no candidate matches softmax, softmax is recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard import Table
from attn_zoo.leaderboard.advise.abilities import Ability, Judgement, abilities, judge
from attn_zoo.leaderboard.advise.costs import Cost
from attn_zoo.leaderboard.advise.drop_in import drop_in
from attn_zoo.leaderboard.advise.needs import QUALIFIES, Answer, Choice, Need, answer
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.recommend.candidates import Candidate, Refusal, candidates
from attn_zoo.recommend.requirements import Requirements
from attn_zoo.rows import RowName


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended mechanism with all the evidence."""

    required: Requirements
    need: Need | None
    """Use case whose tasks decide the recommendation; None for a trained model."""
    candidates: tuple[Candidate, ...]
    """Mechanisms that meet the requirements, the cheapest first."""
    refused: tuple[Refusal, ...]
    answer: Answer
    """Which candidates to use for the use case, according to the records."""
    judged: Mapping[str, tuple[Judgement, ...]]
    """For each mechanism among the candidates except softmax, its verdicts on all recorded tasks of the required direction."""
    transplanted: frozenset[str]
    """Mechanisms that were put into a trained model."""
    named: bool
    """True if the user named the rows to choose among."""

    @property
    def softmax(self) -> Candidate | None:
        """Softmax as a candidate, or None if it does not meet the requirements."""
        return self.candidate(BASELINE)

    def candidate(self, attention: str) -> Candidate | None:
        """Return the cheapest candidate of a mechanism, or None if there is none."""
        return next((each for each in self.candidates if each.attention == attention), None)

    @property
    def qualified(self) -> list[Candidate]:
        """Candidates that are cheaper than softmax and match it on every deciding task (one on whose score the recommendation is
        based), the cheapest first."""
        names = dict.fromkeys(choice.attention for choice in self.answer.chosen)
        return [each for name in names if (each := self.candidate(name))]

    @property
    def taken(self) -> Candidate | None:
        """Recommended candidate, or None if nothing meets the requirements."""
        return next(iter(self.qualified), self.softmax)

    @property
    def choice(self) -> Choice | None:
        """Evidence for the recommended candidate. If softmax is recommended, evidence for the candidate that came
        closest. None if no candidate has evidence on every deciding task."""
        taken = self.taken
        own = [each for each in self.answer.chosen if taken and each.attention == taken.attention]
        return own[0] if own else self.answer.nearest

    def at_deciding(self, attention: str) -> list[Judgement]:
        """Return the verdicts on a mechanism on the deciding tasks (those on whose scores the recommendation is based)."""
        deciding = {name for name, _ in self.answer.evidence}
        return [one for one in self.judged.get(attention, ()) if one.ability.name in deciding]

    def untried(self) -> tuple[Candidate, list[Ability]] | None:
        """Return the candidate for which more runs are most likely to change the recommendation, and the tasks on which it must
        still be shown to match softmax. Return None if there is no such candidate.

        These are deciding tasks: the recommendation is based on their scores. The candidate is cheaper than softmax (with
        ``decode``, its state is smaller, too), did not lose on a deciding task, and was not put into a trained model. Of several
        candidates, the one with the fewest unmatched deciding tasks is returned; among equals, the one that
        matches softmax on the most recorded tasks, then the cheapest.
        """
        found = []
        for each in self.candidates:
            judgements = self.at_deciding(each.attention)
            lacking = [one.ability for one in judgements if one.verdict not in QUALIFIES]
            lost = any(one.verdict in ("worse", "no better", "failed") for one in judgements) or each.attention in self.transplanted
            good = sum(one.verdict in QUALIFIES for one in self.judged.get(each.attention, ()))
            if each.cost.cheaper and (each.cost.smaller or not self.required.decode) and not lost and (lacking or not judgements):
                found.append((len(lacking), -good, each.share, each.label, each, lacking))
        return min(found, key=lambda one: one[:4])[4:] if found else None


def recommend(
    required: Requirements,
    tables: Sequence[Table],
    transplant: Mapping[str, Any] | None = None,
    *,
    rows: Sequence[RowName] = (),
) -> Recommendation:
    """Return a recommendation: the cheapest mechanism that meets the requirements and takes fewer FLOPs than softmax.

    On every deciding task (one on whose score the recommendation is based), the mechanism must also match softmax and beat the
    controls, which cannot select tokens by content. If there is no such mechanism, softmax is recommended.

    Args:
        required: requirements, which also choose the deciding tasks.
        transplant: content of a file that ``attn-zoo transplant`` wrote. For a trained model, the evidence is
            this content instead of scores on tasks.
        rows: mechanisms with options to choose among; by default all mechanisms except controls.

    Raises:
        ValueError: the task that the user named has no records in the required direction, ``transplant`` is the file of another
            experiment, or the cost of softmax cannot be counted for these requirements.
    """
    found, refused = candidates(required, rows)
    costs: dict[str, Cost] = {each.attention: each.cost for each in reversed(found)}
    every = [ability for ability in abilities(tables) if ability.causal == required.reads_past]
    need = None
    tried: set[str] = set()
    if required.trained:
        tried = {point["attention"] for point in (transplant or {}).get("points", ())}
        fits = not (required.reads_past or required.cross)
        said = drop_in(transplant if fits else None, required.accept, costs)
    else:
        need = required.need({str(ability.table.task["name"]): ability.name for ability in every})
        said = answer(need, required.reads_past, every, required.accept, lambda name, _: costs.get(name))
    judged = {name: tuple(judge(ability, name, required.accept) for ability in every) for name in costs if name != BASELINE}
    return Recommendation(required, need, tuple(found), tuple(refused), said, judged, frozenset(tried), bool(rows))

"""Sentences about what one mechanism can do, and about what the records show over all mechanisms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.abilities import ACCEPT, Ability, Judged, Judgement, judge
from attn_zoo.leaderboard.advise.costs import cost
from attn_zoo.leaderboard.advise.needs import QUALIFIES
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.metrics import estimated, score, unit
from attn_zoo.leaderboard.statistics import CONFIDENCE

_CLAUSES: Mapping[Judged, str] = {
    "better": "It is better than softmax on",
    "as good": "It matches softmax on",
    "above controls": "It is better than the best control on",
    "worse": "It is worse than softmax on",
    "no better": "It is no better than the best control on",
    "unclear": "It is undecided, because seeds differ too much, on",
    "failed": "It failed with at least one seed on",
    "few seeds": "It has too few seeds for a verdict on",
}
"""For each verdict, the beginning of its sentence. Sentences come in this order."""


@dataclass(frozen=True, slots=True)
class Told:
    """Sentence such as ``It matches softmax on 3 of the 6 tasks that it was run on.``, with the scores on the 3 tasks."""

    sentence: str
    tasks: tuple[str, ...]
    """Each task with its scores, as text; only its name if the mechanism was not run on it."""


def told(abilities: Sequence[Ability], attention: str, *, causal: bool = True) -> list[Told]:
    """Return one sentence per verdict on a mechanism, with the number of tasks that have this verdict. Sentences on tasks
    without a run come last.

    Args:
        causal: False if the mechanism has no causal form, which is then the stated reason why it was not run on causal tasks.
    """
    judged = [judge(ability, attention) for ability in abilities]
    ran = [one for one in judged if one.row is not None]
    lines = [
        Told(f"{head} {len(some)} of the {_tasks(len(ran))} that it was run on.", tuple(map(_scores, some)))
        for head, some in _groups(ran).items()
    ]
    left = [one.ability for one in judged if one.row is None]
    for why, some in grouped((", because it has no causal form" * (one.causal and not causal), one.name) for one in left).items():
        lines.append(Told(f"It was not run on {len(some)} of all {_tasks(len(judged))}{why}.", tuple(some)))
    return lines


def _groups(ran: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    """Return judgements by the beginnings of their sentences."""
    if any(one.row and one.row.control for one in ran):
        found = grouped((one.row is not None and one.row.label == one.ability.table.control, one) for one in ran)
        words = {True: "It is the best control on", False: "Another control is better on"}
        return {words[best]: found[best] for best in (True, False) if best in found}
    by_verdict = grouped((one.verdict, one) for one in ran)
    return {head: by_verdict[verdict] for verdict, head in _CLAUSES.items() if verdict in by_verdict}


def _scores(one: Judgement) -> str:
    """Return the name and score of a task, with the scores of softmax and of the best control."""
    table, row, softmax = one.ability.table, one.row, one.ability.softmax
    assert row is not None
    percent = unit(table, " %")
    parts = [f"{one.name}: {score(row, table)}{percent * (row.test is not None)}"]
    if softmax and row.attention != BASELINE:
        parts.append(f"softmax {estimated(softmax.test, table)}{percent}")
    best = table.control_row
    if best and best.test and row.label != best.label:
        parts.append(f"{best.label} (the best control) {estimated(best.test, table)}{percent}")
    return ", ".join(parts)


def rule() -> str:
    """Return the sentence that says when a mechanism matches softmax."""
    return (
        f"A mechanism matches softmax if the {100 * CONFIDENCE:.0f} % interval of the difference lies above -{ACCEPT:g} points, or "
        "if both reached the criterion with all seeds."
    )


@dataclass(frozen=True, slots=True)
class Matched:
    """Number of tasks on which a mechanism matches softmax, and the number of tasks on which it was run."""

    attention: str
    count: int
    of: int
    costs: str
    """Cost as text."""

    @property
    def place(self) -> tuple[float, int, str]:
        """Sort key that puts the largest share of matched tasks first and, among equal shares, the largest number of tasks."""
        return -self.count / self.of, -self.of, self.attention


def matched(abilities: Sequence[Ability]) -> list[Matched]:
    """Return the mechanisms that take fewer FLOPs than softmax, each with the number of tasks on which it matches softmax. The list
    is sorted by ``Matched.place``."""
    names = {name for ability in abilities for name, row in ability.rows.items() if not row.control} - {BASELINE}
    found = []
    for name in names:
        verdicts = [judge(ability, name).verdict for ability in abilities if name in ability.rows]
        spent = cost(name, abilities)
        if spent.cheaper:
            found.append(Matched(name, sum(verdict in QUALIFIES for verdict in verdicts), len(verdicts), spent.words.split(";")[0]))
    return sorted(found, key=lambda one: one.place)


def finding(abilities: Sequence[Ability]) -> str:
    """Return a few sentences on how often mechanisms that are cheaper than softmax match it.

    A mechanism counts if it was run on at least half of the bidirectional or of the causal tasks. If none counts, the text is
    empty.
    """
    cheap = matched(abilities)
    ranked = [one for one in cheap if _was_run_on_half(one.attention, abilities)]
    if not ranked:
        return ""
    whole = [one for one in ranked if one.count == one.of]
    cheaper = f"{len(ranked)} {'mechanisms that take' if len(ranked) > 1 else 'mechanism that takes'} fewer FLOPs than softmax"
    if whole:
        names = ", ".join(f"`{one.attention}`" for one in whole)
        first = f"Of {cheaper}, {len(whole)} match softmax on all bidirectional and causal tasks that they were run on: {names}."
    else:
        best = ranked[0]
        first = (
            f"Of {cheaper}, none matches softmax on all bidirectional and causal tasks that it was run on. "
            f"`{best.attention}` comes closest: it matches softmax on {best.count} of {best.of} tasks. With the sizes of "
            f"these runs, it takes {best.costs}."
        )
    hardest = min(abilities, key=lambda ability: _matches(ability, ranked)[0] / max(1, _matches(ability, ranked)[1]))
    count, of = _matches(hardest, ranked)
    hard = f"Softmax is hardest to match on {hardest.name}: {count} of {of} mechanisms match it there."
    few = [f"`{one.attention}`" for one in cheap if one not in ranked]
    left = f"These mechanisms are not counted, because they were run on few tasks: {', '.join(few)}."
    return " ".join([first, hard, *([left] if few else [])])


def _was_run_on_half(attention: str, abilities: Sequence[Ability]) -> bool:
    """Return True if a mechanism was run on at least half of the bidirectional or of the causal tasks."""
    by_direction = grouped((ability.causal, attention in ability.rows) for ability in abilities).values()
    return any(sum(ran) >= len(ran) / 2 for ran in by_direction)


def _matches(ability: Ability, ranked: Sequence[Matched]) -> tuple[int, int]:
    """Return how many of the mechanisms match softmax on a task, and how many were run on it."""
    names = [one.attention for one in ranked if one.attention in ability.rows]
    return sum(judge(ability, name).verdict in QUALIFIES for name in names), len(names)


def _tasks(count: int) -> str:
    return f"{count} task{'s' * (count != 1)}"

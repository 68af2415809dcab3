"""Sentences about what one mechanism can do, and about what the records show over all mechanisms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.abilities import Ability, Judged, Judgement, judge
from attn_zoo.leaderboard.advise.costs import cost
from attn_zoo.leaderboard.advise.needs import QUALIFIES
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.metrics import estimated, score, unit

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
        Told(f"{head} {_share(len(some), len(ran))} that it was run on.", tuple(map(_scores, some)))
        for head, some in _groups(ran).items()
    ]
    left = [one.ability for one in judged if one.row is None]
    for why, some in grouped((", because it has no causal form" * (one.causal and not causal), one.name) for one in left).items():
        lines.append(Told(f"It was not run on {_share(len(some), len(judged))}{why}.", tuple(some)))
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


def finding(abilities: Sequence[Ability]) -> str:
    """Return for each direction (bidirectional, causal) how many mechanisms that take fewer FLOPs than softmax match it on all
    tasks, and which of them match it on the most.

    A mechanism counts in a direction if it was run on at least half of its tasks. If none counts, the text is empty.
    """
    by_direction = {causal: [one for one in abilities if one.causal == causal] for causal in (False, True)}
    said = [_finding("causal" if causal else "bidirectional", some) for causal, some in by_direction.items()]
    return " ".join(filter(None, said))


def _finding(direction: str, abilities: Sequence[Ability]) -> str:
    """Return the finding on the tasks of one direction."""
    rivals = {name for ability in abilities for name, row in ability.rows.items() if not row.control} - {BASELINE}
    ran = {name: [judge(ability, name) for ability in abilities if name in ability.rows] for name in sorted(rivals)}
    spent = {name: cost(name, abilities) for name, some in ran.items() if len(some) >= len(abilities) / 2}
    cheap = [name for name in spent if spent[name].cheaper]
    if not cheap:
        return ""
    matches = {name: {one.ability.name for one in ran[name] if one.verdict in QUALIFIES} for name in cheap}
    most = max(map(len, matches.values()))
    names = [name for name in cheap if len(matches[name]) == most]
    listed = _listed([f"`{name}`" for name in names])
    text = (
        f"{len(cheap)} mechanism{'s' * (len(cheap) > 1)} with fewer FLOPs than softmax {'were' if cheap[1:] else 'was'} run on at "
        f"least half of the {len(abilities)} {direction} task{'s' * (len(abilities) != 1)}. "
    )
    if most == len(abilities):
        text += f"{listed} {'match' if names[1:] else 'matches'} softmax on all of these tasks"
    else:
        text += "None of them matches softmax on all of these tasks"
        text += f": {listed} {'match' if names[1:] else 'matches'} it on {most}, the most" if most else ""
    if most and not names[1:]:
        text += f". With the sizes of these runs, it takes {spent[names[0]].words.split(';')[0]}"
    clear = [one.name for one in abilities if judge(one, BASELINE).verdict == "above controls"]
    run_on = Counter(one.ability.name for name in cheap for one in ran[name] if one.ability.name in clear)
    shares = {task: sum(task in some for some in matches.values()) / count for task, count in run_on.items()}
    hardest = [task for task, share in shares.items() if share == min(shares.values()) and share < 1]
    if not hardest:
        return f"{text}."
    counts = _listed([f"{round(shares[task] * run_on[task])} of {run_on[task]}" for task in hardest])
    return f"{text}. Softmax is hardest to match on {_listed(hardest)}: {counts} mechanisms match it there."


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _share(count: int, of: int) -> str:
    return "the only task" if of == 1 else f"{count} of the {of} tasks"

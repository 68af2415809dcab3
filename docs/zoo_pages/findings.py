"""Sentences about what one mechanism can do, and what it costs, from the records of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.heatmap import LENGTH
from attn_zoo.leaderboard.metrics import estimated, score, unit
from attn_zoo.recommend.candidates import percentage
from attn_zoo.recommend.verdicts import Ability, Judged, Judgement, judge, recorded_shares
from attn_zoo.registry import card
from attn_zoo.terminal import byte_count

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
"""For each verdict, the beginning of its sentence."""
_HEADS = ("It is the best control on", "Another control is better on", *_CLAUSES.values())
"""Beginnings of sentences, for controls and then for mechanisms, in the order of the sentences."""


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
    judged = [(one, judge(one, attention)) for one in abilities]
    ran = grouped((_head(one, verdict), _scores(one, verdict)) for one, verdict in judged if verdict.row)
    heads = [head for head in _HEADS if head in ran]
    count = sum(map(len, ran.values()))
    lines = [Told(f"{head} {_share(len(ran[head]), count)} that it was run on.", tuple(ran[head])) for head in heads]
    left = [
        (", because it has no causal form" * (one.causal and not causal), one.name) for one, verdict in judged if not verdict.row
    ]
    return lines + [Told(f"It was not run on {_share(len(of), len(judged))}{why}.", tuple(of)) for why, of in grouped(left).items()]


def _head(ability: Ability, verdict: Judgement) -> str:
    row = verdict.row
    if row and row.control:
        return _HEADS[0] if row.label == ability.table.control else _HEADS[1]
    return _CLAUSES[verdict.verdict]


def _scores(ability: Ability, verdict: Judgement) -> str:
    """Return the name and score of a task, with the scores of softmax and of the best control. A score of an earlier version of the
    mechanism is marked."""
    table, row, softmax = ability.table, verdict.row, ability.softmax
    assert row is not None
    percent = unit(table, " %")
    parts = [f"{verdict.at}: {score(row, table)}{percent * (row.test is not None)}"]
    if row.card["version"] < card(row.attention).version:
        parts[0] += " (an earlier version of it, which computed something different)"
    if softmax and row.attention != BASELINE:
        parts.append(f"softmax {estimated(softmax.test, table)}{percent}")
    best = table.control_row
    if best and best.test and row.label != best.label:
        parts.append(f"{best.label} (the best control) {estimated(best.test, table)}{percent}")
    return ", ".join(parts)


def spent(attention: str, abilities: Sequence[Ability]) -> str:
    """Return the recorded cost of a mechanism over the tasks on which it has a score, as text. It is empty if no FLOPs are known.

    An example is ``0.4 % of softmax's FLOPs at 4,096 tokens; a state of 8.25 KiB, softmax's 32 KiB (64 tokens)``, with the size of
    the state, summed over all layers, on the longest causal task.
    """
    known = [share for share in recorded_shares(attention, abilities) if share is not None]
    if not known:
        return ""
    ends = dict.fromkeys(percentage(share) for share in (min(known), max(known)))
    text = f"{' to '.join(ends)} % of softmax's FLOPs at {LENGTH:,} tokens"
    causal = [one for one in abilities if one.causal and one.softmax and attention in one.rows]
    for one in sorted(causal, key=lambda one: -one.table.task["length"]):
        own, its = (one.rows[name].state_bytes for name in (attention, BASELINE))
        if own is not None and its is not None and one.rows[attention].test:
            return f"{text}; a state of {byte_count(own)}, softmax's {byte_count(its)} ({one.table.task['length']:,} tokens)"
    return text


def _share(count: int, of: int) -> str:
    return "the only task" if of == 1 else f"{count} of the {of} tasks"

"""Sentences of the findings: measured tasks, strengths, weaknesses and cost of a mechanism, and the choice for a need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attn_zoo.leaderboard.compare import SEEDS_NEEDED
from attn_zoo.leaderboard.findings.abilities import BASELINE, Ability, Judgement, Verdict, judge
from attn_zoo.leaderboard.findings.costs import cost
from attn_zoo.leaderboard.findings.needs import Answer, Choice
from attn_zoo.leaderboard.heatmap.costs import byte_count
from attn_zoo.leaderboard.metrics import estimated, unit
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row

Kind = tuple[Verdict, str, Callable[[Judgement], str]]
"""Verdict, the words for it, and a function that names the task of a judgement with the evidence."""
NOTHING = "softmax (sdpa): no recorded mechanism that costs less is close enough"
_OTHERS = 4
"""Greatest number of further qualifying mechanisms that are named."""


def ability_sentence(ability: Ability) -> str:
    """Scores of softmax and of the best control at an ability, and the reason where it says nothing about mechanisms."""
    table, control = ability.table, ability.table.control_row
    told = [f"softmax {_score(ability, ability.softmax)}"] if ability.softmax else ["softmax was not run"]
    told += [f"best control {control.label} {_score(ability, control)}"] if control else []
    told += [f"chance {100 * table.chance:.1f} %"] if table.chance is not None and unit(table) else []
    length = f"{table.task['length']} positions, " if table.task["length"] else ""
    said = f"{ability.name}: {', '.join(told)}; {length}{_seeds(list(ability.rows.values()))}."
    return f"{said} This says nothing about mechanisms: {ability.no_evidence}." if ability.no_evidence else said


def mechanism_sentences(attention: str, abilities: Sequence[Ability], accept: float) -> list[str]:
    """Sentences on the strengths, weaknesses and cost of a mechanism, and on tasks that were not judged."""
    judged = [judge(ability, attention, accept) for ability in abilities if not ability.no_evidence]
    if not judged:
        return ["No measured task says anything about it.", _cost(attention, abilities)]
    said = [_strengths(attention, judged), _weaknesses(attention, judged), _cost(attention, abilities)]
    return [*said, *_unjudged(judged)]


def _strengths(attention: str, judged: Sequence[Judgement]) -> str:
    kinds: list[Kind] = [
        ("better", "better than softmax at", _with_gain),
        ("as good", "as good as softmax at", _with_gain),
        ("above controls", "better than the best control at", _with_score),
    ]
    if clauses := list(_clauses(judged, kinds)):
        return f"{attention} is {'; '.join(clauses)}."
    return (
        f"{attention} is {'better than the best control' if attention == BASELINE else 'as good as softmax'} at none of the "
        "measured tasks."
    )


def _weaknesses(attention: str, judged: Sequence[Judgement]) -> str:
    kinds: list[Kind] = [
        ("no better", "is no better than the best control at", _with_control),
        ("worse", "is worse than softmax at", _with_gain),
        ("failed", "fails at", lambda one: f"{one.name} ({_failure(one.row)})"),
    ]
    if clauses := list(_clauses(judged, kinds)):
        return f"It {'; '.join(clauses)}."
    return f"No measured task shows it {'' if attention == BASELINE else 'worse than softmax or '}failing."


def _cost(attention: str, abilities: Sequence[Ability]) -> str:
    found = cost(attention, abilities)
    if attention == BASELINE:
        states = [f"{byte_count(state.bytes)} at {state.length:,} tokens" for state in found.states]
        return f"It is the reference for cost; its keys and values take {states[0]}." if states else "It is the reference for cost."
    return f"Cost: {found.words}."


def _unjudged(judged: Sequence[Judgement]) -> Iterator[str]:
    kinds: list[Kind] = [
        ("unclear", "seeds differ too much at", _with_score),
        ("few seeds", f"fewer than {SEEDS_NEEDED} seeds in common with softmax and the best control at", _with_score),
    ]
    clauses = list(_clauses(judged, kinds))
    absent = [one.ability for one in judged if one.verdict == "not run"]
    clauses += [f"not run at {_listed(_grouped(absent, [one.ability for one in judged]))}"] if absent else []
    if clauses:
        yield f"Not judged: {'; '.join(clauses)}."


def _grouped(absent: Sequence[Ability], every: Sequence[Ability]) -> list[str]:
    """Names of abilities; all abilities of a direction are replaced by one phrase."""
    named = []
    for causal, word in ((False, "any task read both ways"), (True, "any causal task")):
        mine = [ability.name for ability in absent if ability.causal == causal]
        whole = len(mine) > 1 and len(mine) == sum(ability.causal == causal for ability in every)
        named += [word] if whole else mine
    return named


def _clauses(judged: Sequence[Judgement], kinds: Sequence[Kind]) -> Iterator[str]:
    """Yield a clause for each kind of verdict that occurs, with the number of its tasks."""
    for verdict, words, told in kinds:
        found = [told(one) for one in judged if one.verdict == verdict]
        if found:
            yield f"{words} {len(found)} of {len(judged)} task{'' if len(judged) == 1 else 's'}: {_listed(found)}"


def answer_paragraphs(answer: Answer) -> Iterator[str]:
    """Yield paragraphs on the choice for a need and its loss, then on the evidence."""
    head = f"{answer.direction.capitalize()}. " if answer.direction else ""
    if not answer.evidence:
        yield f"{head}Not measured yet: {_unmeasured(answer)}."
        return
    if answer.chosen:
        first, *others = answer.chosen
        named = [one.label for one in others[:_OTHERS]] + ([f"{len(others) - _OTHERS} more"] if len(others) > _OTHERS else [])
        also = f" Also close enough, in this order: {_listed(named)}." if named else ""
        yield f"{head}Take {_choice(first)}.{also}"
    elif not answer.compared:
        yield f"{head}Not measured yet: no mechanism that costs less has {SEEDS_NEEDED} seeds at every task that decides."
    else:
        near = f" The nearest is {_choice(answer.nearest)}." if answer.nearest else ""
        yield f"{head}{NOTHING}.{near}"
    scored = f" Scored at {answer.scored_at} positions." if answer.lengths else ""
    rests = "; ".join(f"{name} (because {why})" for name, why in answer.evidence)
    left_out = [f"{name} ({why})" for name, why in answer.no_evidence]
    beside = f" Left out: {', '.join(left_out)}." if left_out else ""
    beside += f" These records lack {', '.join(answer.missing)}." if answer.missing else ""
    yield f"This rests on {rests}.{scored}{beside}"


def _unmeasured(answer: Answer) -> str:
    told = [f"{name} says nothing about it ({why})" for name, why in answer.no_evidence]
    told += [f"no records of {', '.join(answer.missing)}"] if answer.missing else []
    return "; ".join(told) or "attn-zoo transplant measures it, and none of its files was given"


def _choice(choice: Choice) -> str:
    gains = _listed([f"{gain_words(gain.amount, gain.unit)} at {gain.at}" for gain in choice.gains])
    return f"{choice.label}: {choice.costs}. Against softmax: {gains} ({_count({g.amount.count for g in choice.gains})})"


def gain_words(gain: Estimate | None, unit: str) -> str:
    """Format a gain with its unit, such as ``-1.2 ± 0.4 points``; empty without a gain."""
    return "" if gain is None else f"{gain.written('.1f', sign='+')} {unit}"


def _with_score(one: Judgement) -> str:
    return f"{one.name} ({_score(one.ability, one.row)})"


def _with_gain(one: Judgement) -> str:
    return f"{one.name} ({_score(one.ability, one.row)}, {gain_words(one.gain, one.ability.unit)})"


def _with_control(one: Judgement) -> str:
    control = one.ability.table.control_row
    assert control is not None, "only a task with a control has this verdict"
    return f"{one.name} ({_score(one.ability, one.row)}; {control.label} {_score(one.ability, control)})"


def _score(ability: Ability, row: Row | None) -> str:
    return "no score" if row is None else f"{estimated(row.test, ability.table)}{unit(ability.table, ' %')}"


def _failure(row: Row | None) -> str:
    """Words for a failed row: ``refused``, or ``diverged at 1 of 3 seeds``."""
    assert row is not None and row.failures, "only failed rows have a failure"
    word, failed = row.failures[0].word, len(row.failures)
    return f"{word} at {failed} of {row.attempts} seeds" if row.seeds else word


def _seeds(rows: Sequence[Row]) -> str:
    return _count({len(row.seeds) for row in rows if row.test})


def _count(counts: set[int]) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{least if least == most else f'{least} to {most}'} seed{'' if most == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    """Join names as ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

"""Answers as text: a table of all use cases, and one answer in a few lines or with all evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from attn_zoo.contract import plain_options
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import BASELINE
from attn_zoo.leaderboard.statistics import CONFIDENCE
from attn_zoo.leaderboard.table import Row
from attn_zoo.leaderboard.text import Grid, lines, tabulated
from attn_zoo.recommend.answer import Answer
from attn_zoo.recommend.candidates import Candidate
from attn_zoo.recommend.commands import evidence_command, measure_command, own_task_command
from attn_zoo.recommend.needs import ACCEPT
from attn_zoo.recommend.verdicts import Judged
from attn_zoo.registry import attention_options, card
from attn_zoo.terminal import COLUMNS as WIDTH
from attn_zoo.terminal import byte_count, fit, paragraph, shell, short

NO_EVIDENCE = "no evidence yet"
FAR = 4
"""How many times the longest input of the evidence a required length may be, so that the answer is ``Use ...``, not ``Try ...``."""
_HEAD = ("use case", "use", "against softmax", "tested on", "tokens")
_WORDS: dict[Judged, str] = {
    "better": "match",
    "as good": "match",
    "no better": "at control level",
    "worse": "worse",
    "failed": "failed",
    "unclear": "undecided",
    "few seeds": "too few seeds",
    "not run": "not run",
}
"""Words for each verdict on a candidate, after the number of tasks."""


def rule(accept: float = ACCEPT) -> str:
    """Return the sentence that says when a mechanism matches softmax.

    Args:
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).
    """
    return (
        "A mechanism matches softmax on a task if it is better than the best control, and if the "
        f"{100 * CONFIDENCE:.0f} % interval of its difference from softmax lies above -{accept:g} points."
    )


def use_table(found: Sequence[Answer], accept: float = ACCEPT, format: str = "terminal") -> str:
    """Return a table with one row per answer, followed by notes on the conditions for naming a mechanism.

    Args:
        accept: largest acceptable loss against softmax, which the notes state.
        format: ``terminal`` or ``github``.
    """
    notes = [
        f"{rule(accept)} The table names a mechanism only if it matches softmax on every task in the column *tested on*.",
        "The column *against softmax* has the difference in score on the mechanism's worst task. Each task has an interval for "
        "this difference. The worst task is the one whose interval starts lowest.",
    ]
    table = tabulated(Grid("Which attention should I use?", _HEAD, [use_line(one) for one in found]), format)
    return f"{table}\n\n{lines(notes, format)}"


def use_line(found: Answer) -> list[str]:
    """Return the row of a use case: its name, what to use, the difference from softmax, the tasks of the evidence, and their
    lengths."""
    if why := found.no_evidence:
        if found.missing and not found.evidence:
            long = f" with {found.need.shortest:,} tokens or more" if found.need and found.need.shortest else ""
            why = f"not run{long}: {', '.join(found.missing)}"
        return [found.title, NO_EVIDENCE, "", why, ""]
    use, gain = "softmax", ""
    if found.qualified:
        first, *others = found.qualified
        names = f" (also matches: {listed([one.scored for one in others], 3)})" if others else ""
        use, gain = first.scored + names, found.worst(first).words
    elif found.nearest:
        gain = f"{found.worst(found.nearest).words} for {found.nearest.scored}, which came closest"
    return [found.title, use, gain, ", ".join(dict.fromkeys(one.task for one in found.evidence)), _span(found.lengths) or "-"]


def as_text(found: Answer, whole: bool = False) -> str:
    """Return an answer as text: the mechanism, the reason, its cost, code that uses it, and a caution.

    Args:
        whole: add the tasks on which the recommendation is based, all candidates, and the mechanisms that do not meet the
            requirements.
    """
    said = [line for words in sentences(found) for line in _wrapped(words)]
    return "\n".join([*said, *(_evidence(found) if whole else [])])


def sentences(found: Answer) -> Iterator[str]:
    """Yield the lines of an answer: mechanism, reason, cost and caution. Lines that are commands are indented."""
    taken, lengths = found.taken, found.lengths
    if taken is None:
        yield _without_softmax(found)
        yield from (f"{label}: {reason}" for label, reason in found.refused.items() if found.named or label == BASELINE)
        return
    is_far = bool(lengths) and found.required.length > FAR * lengths[-1]
    if lengths and found.required.length not in lengths:
        only = "only " if is_far else ""
        yield f"This answer is for {found.required.length:,} tokens; the evidence is {only}from inputs of {_span(lengths)} tokens."
    if found.evidence:
        yield f"{'Try' if is_far and taken.attention != BASELINE else 'Use'} {taken.label}."
        yield f"Why: {_why_softmax(found) if taken.attention == BASELINE else _why(found, taken)}."
    else:
        yield f"{NO_EVIDENCE.capitalize()}: {found.no_evidence}. Without evidence, {taken.label} is the safe choice."
    yield from _softmax(found, taken) if taken.attention == BASELINE else _other(found, taken)
    if found.named:
        yield from (f"{label} does not meet the requirements: {why}." for label, why in found.refused.items())
    if cautions := _cautions(found):
        yield f"Caution: {'; '.join(cautions)}."


def _without_softmax(found: Answer) -> str:
    """Return the first sentence of an answer that names no mechanism, because softmax does not meet the requirements."""
    if not found.candidates:
        return "No mechanism meets these requirements, not even softmax."
    met = listed([each.label for each in found.candidates])
    return f"Softmax does not meet these requirements, and no mechanism that meets them ({met}) was shown to match softmax."


def _why(found: Answer, taken: Candidate) -> str:
    worst, several = found.worst(taken), len(found.evidence) > 1
    gain = f"the worst case is {worst.words} on {worst.at}" if several else worst.words
    return f"less than {_tolerance(found)} worse than softmax on {_tasks(found)}, with 95 % confidence; {gain}"


def _why_softmax(found: Answer) -> str:
    if not found.cheaper:
        return "no other mechanism that meets these requirements costs less"
    if not found.compared:
        return found.no_evidence
    run = [each.attention for each in found.cheaper if any(one.verdict != "not run" for one in found.deciding(each))]
    names = listed(list(dict.fromkeys(run)), 3)
    return (
        f"no cheaper mechanism that was run ({names}) matches softmax on {_tasks(found)} (less than {_tolerance(found)} worse, "
        "with 95 % confidence)"
    )


def _other(found: Answer, taken: Candidate) -> Iterator[str]:
    state = "; a state of {}, softmax's {}".format(*map(byte_count, taken.states)) if taken.states else ""
    yield f"Cost: {taken.percent} of softmax's FLOPs at {found.required.length:,} tokens{state}."
    others = [each.label for each in found.qualified[1:]]
    yield f"Also matches softmax: {listed(others, 3)}." if others else "No other cheaper candidate matches softmax."
    yield f"Code: {code(found, taken)}"
    if found.required.padding and not (found.required.trained or found.required.reads_past or found.required.cross):
        yield f"In a transformers model: {_replacement(taken)}"
    if command := measure_command(found.required, taken):
        yield f"FLOPs are not time. This measures {taken.attention} and {BASELINE} at {found.required.length:,} tokens:"
        yield f"  {command}"


def _softmax(found: Answer, taken: Candidate) -> Iterator[str]:
    length = found.required.length
    if taken.flops:
        state = f"; keys and values take {byte_count(taken.states[0])}" if taken.states else ""
        yield f"Cost: {short(taken.flops)}FLOPs in one layer at {length:,} tokens, four times as many at twice the length{state}."
    if not found.required.trained:  # a trained model has softmax already
        yield f"Code: {code(found, taken)}"
    if near := found.nearest:
        worst, width = found.worst(near), found.required.width // found.required.heads  # shares depend on the width
        cost = f"{near.percent} of softmax's FLOPs (heads of width {width})"
        yield f"Closest: {near.label}, with {cost}; its worst case is {worst.words} on {worst.at}."
    if (command := evidence_command(found)) and found.untried:
        each, lacking = found.untried
        why = "was not transplanted" if found.required.trained else "was not run on these tasks"
        if any(one.row or one.gain for one in found.deciding(each)):
            why = f"has no clear verdict on {listed([one.name for one in lacking], 2)}"
        is_short = bool(command.lengths) and command.lengths[-1] < length
        note = f" (its inputs of {_span(command.lengths)} tokens do not test {length:,})" if is_short else ""
        option = "--transplant transplant.json" if found.required.trained else "--records runs"
        run = f"Run this command{note}, then repeat yours with {option}; the advice may change:"
        yield f"{each.label} takes {each.percent} of softmax's FLOPs but {why}. {run}"
        yield f"  {command.text}"
    elif not found.required.trained and not (found.required.task and found.evidence):
        words = "--records runs" if found.required.task else "--records runs --task NAME, without --for"
        yield f"Your own task may give another answer. Run this, then repeat your command with {words}:"
        yield f"  {own_task_command(found)}"


def _tolerance(found: Answer) -> str:
    """Return the accepted loss with its unit: points for percentage metrics, else per cent of softmax's score."""
    units = {one.unit for one in found.evidence} or {"points"}
    return f"{found.required.accept:g} {' or '.join(sorted(units, reverse=True))}"


def _tasks(found: Answer) -> str:
    """Return a phrase for the deciding tasks: ``all 4 tasks``, or the name of the only one."""
    if len(found.evidence) == 1:
        return found.evidence[0].name
    return f"all {len(found.evidence)} {'qualities' if found.required.trained else 'tasks'} that decide"


def _cautions(found: Answer) -> list[str]:
    """Return what limits the evidence for a recommendation, each limit once."""
    required, taken = found.required, found.taken
    if not found.evidence:
        return []
    told = next(iter(found.qualified), found.nearest)
    cautions: list[str] = []
    if required.trained:
        cautions.append(f"the evidence is from one sentence encoder only{f', with {told.scored}' if told else ''}")
    if required.cross:
        cautions.append("the evidence is from self-attention, not cross-attention")
    if found.missing:
        cautions.append(f"no records of {listed(found.missing)}")
    if taken and taken.attention != BASELINE:
        cautions += [] if measure_command(required, taken) else ["FLOPs are not time"]
        cautions += [*_scored_with(found, taken), *taken.warnings]
    elif found.named:
        cautions += [said for each in found.candidates for said in _scored_with(found, each)]
    cautions += [f"{name} does not count: {why}" for name, why in (found.discounted or {}).items()]
    return list(dict.fromkeys(cautions))


def _scored_with(found: Answer, each: Candidate) -> Iterator[str]:
    """Yield a caution if the records of a candidate have other options than it has, and one if some are from an earlier version of
    the mechanism."""
    rows = [one.row for one in found.deciding(each) if one.row]
    other = {
        f"{key}={row.options[key]}" for row in rows for key, value in each.options.items() if row.options.get(key, value) != value
    }
    if not each.options:
        own = plain_options(attention_options(card(each.attention), found.required.geometry, {}))
        other |= {row.setting for row in rows if row.setting and _differs(row, own)}
    if other:
        yield f"{each.attention} was scored with {' and '.join(sorted(other))}"
    if any(row.card["version"] < card(each.attention).version for row in rows):
        yield f"some scores of {each.attention} are from an earlier version of it, which computed something different"


def _differs(row: Row, own: Mapping[str, Any]) -> bool:
    """Return True if the setting of a row names other options than ``own``. A setting may also name an option that has its default
    value, if records of an earlier version of the mechanism lack this option."""
    named = {word.partition("=")[0] for word in row.setting.split()} & row.options.keys()
    return not named or any(row.options[name] != own.get(name) for name in named)


def _evidence(found: Answer) -> Iterator[str]:
    yield from _block("What decides, and why", [f"{one.name}: {one.why}" for one in found.evidence])
    states = [byte_count(each.states[0]) if each.states else "-" for each in found.candidates]
    rows = [[each.label, each.percent, state, _verdict(found, each)] for each, state in zip(found.candidates, states, strict=True)]
    size = f"{found.required.length:,} tokens, without projections"
    yield from ("", f"Candidates, the fewest FLOPs first (as a share of softmax's at {size})", "")
    yield from fit(rows, ["mechanism", "FLOPs", "state", "verdicts"], right=("FLOPs", "state"), width=WIDTH).splitlines()
    reasons = grouped((why.removeprefix(label).strip(), label) for label, why in found.refused.items())
    yield from _block("Mechanisms that do not meet the requirements", [f"{', '.join(of)}: {why}" for why, of in reasons.items()])


def _verdict(found: Answer, each: Candidate) -> str:
    """Return the verdicts on a candidate in words, each with its number of tasks. The numbers add up to all deciding tasks."""
    if each.attention == BASELINE:
        return "the baseline"
    if each in found.qualified:
        return "matches softmax"
    verdicts = [_WORDS[one.verdict] for one in found.deciding(each)]
    return ", ".join(f"{verdicts.count(words)} {words}" for words in dict.fromkeys(_WORDS.values()) if words in verdicts) or "-"


def _block(head: str, said: Sequence[str]) -> Iterator[str]:
    if said:
        yield from ("", head)
        yield from (line for words in said for line in _wrapped(words, "- "))


def _wrapped(words: str, mark: str = "") -> list[str]:
    if words.startswith("  "):  # a command
        return [f"  {line}" for line in shell(words, WIDTH - 2).splitlines()]
    return paragraph(words, WIDTH, mark, "  ")


def _span(lengths: Sequence[int]) -> str:
    """Return ascending lengths as text, such as ``36 to 80``; empty without lengths."""
    return " to ".join(dict.fromkeys(f"{length:,}" for length in (*lengths[:1], *lengths[-1:])))


def code(found: Answer, taken: Candidate) -> str:
    """Return Python code that uses a candidate: it builds a layer or, for a trained model, replaces softmax."""
    required = found.required
    if required.trained:
        return _replacement(taken)
    causal = ", causal=True" if required.reads_past else ""
    cross = f", context_length={required.length}" if required.cross else ""
    sizes = f'{required.width}, {required.heads}, "{taken.attention}", length={required.length}'
    return f"MultiHeadAttention({sizes}{cross}{causal}{_arguments(taken)})"


def _replacement(taken: Candidate) -> str:
    """Return a call for a transformers model. A mechanism without attention weights needs ``attention_dropout=0.0`` there."""
    drops = any(field.name == "dropout" for field in fields(card(taken.attention).options))
    return f'replace_attention(model, "{taken.attention}"{"" if drops else ", attention_dropout=0.0"}{_arguments(taken)})'


def _arguments(taken: Candidate) -> str:
    """Return the given options and implementation as arguments that follow another argument in a call."""
    given = {"implementation": taken.requested} if taken.requested != "auto" else {}
    return "".join(f", {name}={value!r}" for name, value in {**taken.options, **given}.items())


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as text, such as ``a, b, c and 2 more``. At most ``most`` names are written out."""
    shown = list(names[:most])
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Recommendation as text, brief or with all evidence, and as JSON. It names the code that uses the mechanism and, if evidence is
missing, the command that gathers it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.advise.abilities import Ability, Judged
from attn_zoo.leaderboard.advise.needs import QUALIFIES, Gain
from attn_zoo.leaderboard.advise.table import NO_EVIDENCE, gain_words, no_evidence
from attn_zoo.leaderboard.compare import BASELINE, SEEDS_NEEDED
from attn_zoo.leaderboard.heat_costs import byte_count
from attn_zoo.recommend.commands import CONTROL, Command, evidence_command, measure_command, with_plugins
from attn_zoo.recommend.ranking import Candidate, Recommendation
from attn_zoo.registry import card
from attn_zoo.rows import RowName
from attn_zoo.terminal import COLUMNS as WIDTH
from attn_zoo.terminal import fit, paragraph, shell

_WORDS: dict[Judged, str] = {
    "no better": "at control level",
    "worse": "worse",
    "failed": "failed",
    "unclear": "undecided",
    "few seeds": "too few seeds",
    "not run": "not run",
}
"""Words for each verdict that rules a candidate out, after the number of tasks. The worst verdict comes first."""


FAR = 4
"""How many times the longest input of the evidence a required length may be, so that the answer is ``Use ...``, not ``Try ...``."""


def as_text(found: Recommendation, whole: bool = False) -> str:
    """Return a recommendation as text: the mechanism, the reason, its cost, code that uses it, and a caution.

    Args:
        whole: add the tasks on which the recommendation is based, all candidates, the mechanisms that do not meet the
            requirements, and all cautions.
    """
    lines = [line for said in sentences(found) for line in _wrapped(said)]
    return "\n".join([*lines, *(_evidence(found) if whole else [])])


def sentences(found: Recommendation) -> Iterator[str]:
    """Yield the lines of a recommendation: mechanism, reason, cost and caution. Lines that are commands are indented."""
    taken = found.taken
    if taken is None:
        yield "No mechanism meets these requirements, not even softmax."
        yield from (f"{each.label}: {each.reason}" for each in found.refused if each.label == BASELINE)
        yield from _refused(found)
        return
    yield from _scope(found)
    if found.answer.evidence:
        yield f"{'Try' if _is_far(found) and taken.attention != BASELINE else 'Use'} {taken.label}."
    else:
        yield f"{NO_EVIDENCE.capitalize()}: {_why_softmax(found)}. Without evidence, {taken.label} is the safe choice."
    yield from _softmax(found, taken) if taken.attention == BASELINE else _other(found, taken)
    if found.named or len(found.candidates) == 1:
        yield from _refused(found)
    yield from _caution(_cautions(found))


def _refused(found: Recommendation) -> Iterator[str]:
    """Yield why each row that the user named does not meet the requirements, or else how many mechanisms do not."""
    others = [each for each in found.refused if each.label != BASELINE]
    if found.named:
        yield from (f"{each.label} does not meet the requirements: {each.reason}." for each in others)
    elif others:
        count = "1 other mechanism does" if len(others) == 1 else f"{len(others)} other mechanisms do"
        yield f"{count} not meet the requirements; add --all to see why."


def _scope(found: Recommendation) -> Iterator[str]:
    """Yield the lengths of the evidence if the required length is not among them."""
    lengths = found.answer.lengths
    if lengths and found.required.length not in lengths:
        only = "only " if _is_far(found) else ""
        where = f"inputs of {found.answer.scored_at} tokens"
        yield f"You asked for {found.required.length:,} tokens; the evidence is {only}from {where}."


def _is_far(found: Recommendation) -> bool:
    """Return True if the required length is more than ``FAR`` times the longest input of the evidence."""
    return bool(found.answer.lengths) and found.required.length > FAR * found.answer.lengths[-1]


def _caution(cautions: list[str]) -> Iterator[str]:
    """Yield one line with as many cautions as fit, but at least one. Yield nothing if there are none."""
    for shown in range(len(cautions), 0, -1):
        more = f" ({len(cautions) - shown} more: --all)" if shown < len(cautions) else ""
        line = f"Caution: {'; '.join(cautions[:shown])}{more}."
        if len(line) <= WIDTH or shown == 1:
            yield line
            return


def _other(found: Recommendation, taken: Candidate) -> Iterator[str]:
    choice = found.choice
    assert choice is not None, "a mechanism other than softmax is taken only with evidence"
    worst = min(choice.gains, key=lambda gain: gain.amount.low)
    at = _deciding(found, "")
    least = f"the worst case is {_gain(worst)}" if len(choice.gains) > 1 else gain_words(worst.amount, worst.unit)
    learned = ", or both learned the task with all seeds" if worst.amount.low <= -found.required.accept else ""
    yield f"Why: less than {_tolerance(found)} worse than softmax on {at}, with 95 % confidence{learned}; {least}."
    yield f"Cost: {taken.cost.words}."
    others = [each.label for each in found.qualified if each is not taken]
    yield f"Also matches softmax: {listed(others, 3)}." if others else "No other cheaper candidate matches softmax."
    yield f"Code: {code(found, taken)}"
    if found.required.padding and not (found.required.trained or found.required.reads_past or found.required.cross):
        yield f"In a transformers model: {_replacement(taken)}"
    if command := measure_command(found.required, taken):
        yield f"FLOPs are not time. This measures {taken.attention} and {BASELINE} at {found.required.length:,} tokens:"
        yield f"  {command}"


def _softmax(found: Recommendation, taken: Candidate) -> Iterator[str]:
    if found.answer.evidence:
        yield f"Why: {_why_softmax(found)}."
    if taken.flops:
        billions = taken.flops / 1e9
        told = f"{billions:,.0f}" if billions >= 10 else f"{billions:.2g}"
        state = f"; keys and values take {_state(taken)}" if found.required.reads_past else ""
        size = f"{found.required.length:,} tokens"
        yield f"Cost: {told} GFLOPs in one layer at {size}, four times as many at twice the length{state}."
    if not found.required.trained:  # a trained model has softmax already
        yield f"Code: {code(found, taken)}"
    nearest = found.choice
    near = nearest and found.candidate(nearest.attention)
    if nearest and near:
        worst = min(nearest.gains, key=lambda gain: gain.amount.low)
        heads = f"heads of width {found.required.width // found.required.heads}"  # shares depend on it
        yield f"Closest: {near.label}, with {_share(near)} of softmax's FLOPs ({heads}); its worst case is {_gain(worst)}."
    command, untried = evidence_command(found), found.untried()
    option = "--transplant transplant.json" if found.required.trained else "--records runs"
    if command and untried:
        run = f"Run this command{_inputs(command, found.required.length)}, then repeat yours with {option}"
        yield f"{_why_untried(found, *untried)}. {run}; the advice may change:"
        yield f"  {command.text}"
    elif len(found.candidates) == 1:
        return
    elif found.required.trained:
        if found.required.reads_past or found.required.cross:
            yield "attn-zoo transplant supports bidirectional encoders only."
        elif any(each.cost.cheaper for each in found.candidates):
            yield "All cheaper candidates were transplanted, and none matches the teacher."
    elif not (found.required.task and found.answer.evidence):
        row, task = RowName(near.attention, near.options) if near else "linear", found.required.task
        lost = "No cheaper candidate matches softmax here, but your" if found.answer.evidence else "Your"
        place = f" in place of --for {found.required.use}" if found.required.use else ""
        again, other = "--records runs", f" --task NAME{place}"
        yield f"{lost} own task may give another answer. Run this, then repeat your command with {again}{'' if task else other}:"
        words = f"attn-zoo run -m task={task or 'NAME'} attention={BASELINE},{CONTROL},{row} seed=1,2,3"
        yield f"  {with_plugins(words)}"


def _inputs(command: Command, length: int) -> str:
    """Return a note in parentheses if all inputs of a command are shorter than the required length. Else the text is empty."""
    if not command.lengths or command.lengths[-1] >= length:
        return ""
    tokens = " to ".join(dict.fromkeys(f"{end:,}" for end in (command.lengths[0], command.lengths[-1])))
    return f" (its inputs of {tokens} tokens do not test {length:,})"


def _why_untried(found: Recommendation, each: Candidate, lacking: list[Ability]) -> str:
    """Return the clause that says why the suggested command runs a mechanism."""
    lacks = "was not transplanted" if found.required.trained else "was not run on these tasks"
    if lacking:
        lacks = f"has no clear verdict on {listed([ability.name for ability in lacking], 2)}"
    return f"{each.label} takes {_share(each)} of softmax's FLOPs but {lacks}"


def _why_softmax(found: Recommendation) -> str:
    answer, others = found.answer, [each for each in found.candidates if each.attention != BASELINE]
    if not others:
        return "no other mechanism meets these requirements"
    if not answer.evidence and found.required.trained:
        return "no transplant into a trained model of this kind is recorded"
    if not answer.evidence:
        return no_evidence(answer)
    cheaper = [each for each in others if each.cost.cheaper and (each.cost.smaller or not found.required.decode)]
    if not cheaper:
        return "no other mechanism costs less"
    if not answer.compared:
        runs = f"run with {SEEDS_NEEDED} seeds on {_deciding(found)}"
        if len(cheaper) == 1:
            return f"the only cheaper mechanism, {cheaper[0].attention}, was not {runs}"
        return f"none of {len(cheaper)} cheaper mechanisms was {runs}"
    if not found.required.trained:
        run = [each for each in cheaper if any(one.row for one in found.at_deciding(each.attention))]
        if len(run) == 1:
            return f"the only cheaper mechanism that was run, {run[0].attention}, does not match softmax {_close(found)}"
        return f"none of {len(run)} cheaper mechanisms that were run matches softmax {_close(found)}"
    tried = [each.attention for each in cheaper if each.attention in found.transplanted]
    if not tried:
        return f"none of {len(cheaper)} cheaper mechanisms was transplanted"
    return f"no transplanted mechanism ({listed(tried)}) matches softmax {_close(found)}"


def _close(found: Recommendation) -> str:
    return f"on {_deciding(found)} (less than {_tolerance(found)} worse, with 95 % confidence)"


def _tolerance(found: Recommendation) -> str:
    """Return the accepted loss with its unit: points for percentage metrics, else per cent of softmax's score."""
    deciding = {name for name, _ in found.answer.evidence}
    units = {one.ability.unit for each in found.judged.values() for one in each if one.ability.name in deciding} or {"points"}
    return f"{found.required.accept:g} {' or '.join(sorted(units, reverse=True))}"


def _deciding(found: Recommendation, clause: str = " that decide") -> str:
    """Return a phrase for the deciding tasks: ``all 4 tasks`` with a clause after it, or the name of the only one."""
    evidence = found.answer.evidence
    if len(evidence) == 1:
        return evidence[0][0]
    return f"all {len(evidence)} {'qualities' if found.required.trained else 'tasks'}{clause}"


def _cautions(found: Recommendation) -> list[str]:
    """Return what limits the evidence for a recommendation, each limit once."""
    required, taken = found.required, found.taken
    evidence = {name for name, _ in found.answer.evidence}
    cautions: list[str] = []
    if required.trained and evidence:
        student = f", with {found.choice.label}" if found.choice and found.choice.label != found.choice.attention else ""
        cautions.append(f"the evidence is from one sentence encoder only{student}")
    if required.cross and evidence:
        cautions.append("the evidence is from self-attention, not cross-attention")
    if found.answer.missing and evidence:
        cautions.append(f"no records of {listed(found.answer.missing)}")
    if taken and taken.attention != BASELINE:
        cautions += [] if measure_command(required, taken) else ["FLOPs are not time"]
        settings = {one.row.setting for one in found.at_deciding(taken.attention) if one.row and one.row.setting}
        cautions += [f"its scores are for {' and '.join(sorted(settings))}"] if settings else []
        cautions += [*_other_options(found, taken), *taken.warnings]
    elif found.named:
        cautions += [said for each in found.candidates for said in _other_options(found, each)]
    if evidence or required.trained:  # else the answer begins with them
        cautions += [f"{name} does not count: {why}" for name, why in found.answer.no_evidence]
    return list(dict.fromkeys(cautions))


def _other_options(found: Recommendation, each: Candidate) -> Iterator[str]:
    """Yield a caution if the records of a mechanism have other options than those that were asked for."""
    rows = [one.row for one in found.at_deciding(each.attention) if one.row]
    asked = {key: value for key, value in each.options.items() if any(row.options.get(key, value) != value for row in rows)}
    if asked:
        scored = {f"{key}={row.options[key]}" for row in rows for key in asked if key in row.options}
        wanted = ", ".join(f"{key}={value}" for key, value in asked.items())
        yield f"{each.attention} was recorded with {', '.join(sorted(scored))}, not with {wanted}"


def _evidence(found: Recommendation) -> Iterator[str]:
    yield from ("", *_wrapped(f"Required: {found.required.describe()}; less than {_tolerance(found)} worse than softmax."))
    qualities = "Qualities" if found.required.trained else "Tasks"
    yield from _block(f"{qualities} that decide, and why", [f"{name}: {why}" for name, why in found.answer.evidence])
    deciding = len(found.answer.evidence)
    on = "" if found.required.trained or not deciding else f" on {deciding} task{'s' * (deciding > 1)}"
    head = ["mechanism", "FLOPs", "state", f"verdict{on}"]
    rows = [[each.label, _share(each), _state(each), _verdict(found, each)] for each in found.candidates]
    yield from ("", f"Candidates, the fewest FLOPs first (as a share of softmax's at {found.required.length:,} tokens)", "")
    yield from fit(rows, head, right=("FLOPs", "state"), width=WIDTH).splitlines()
    reasons = grouped((each.reason.removeprefix(each.label).strip(), each.label) for each in found.refused)
    unfit = [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]
    yield from _block("Mechanisms that do not meet the requirements", unfit)
    yield from _block("Cautions", _cautions(found))
    notes = ["FLOPs are those of the mechanism alone, without projections. Options that you do not give have their defaults."]
    notes += [] if found.required.trained else ["*At control level* means no better than the best control."]
    yield from _block("Notes", notes)


def _verdict(found: Recommendation, each: Candidate) -> str:
    """Return the verdicts on a candidate in words, each with its number of tasks. The numbers add up to all deciding tasks."""
    if each.attention == BASELINE:
        return "the baseline"
    if each in found.qualified:
        return "matches softmax"
    if found.required.trained:
        return "does not match" if each.attention in found.transplanted else "not transplanted"
    verdicts = [one.verdict for one in found.at_deciding(each.attention)]
    counts = {"match": sum(verdict in QUALIFIES for verdict in verdicts)}
    counts |= {words: verdicts.count(verdict) for verdict, words in _WORDS.items()}
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count) or "-"


def _share(each: Candidate) -> str:
    return "-" if each.cost.shares is None else f"{100 * each.share:.2g} %" if each.share < 0.1 else f"{100 * each.share:,.0f} %"


def _state(each: Candidate) -> str:
    return byte_count(each.cost.states[0].bytes) if each.cost.states else "-"


def _block(head: str, said: list[str]) -> Iterator[str]:
    if said:
        yield from ("", head)
        yield from (line for words in said for line in _wrapped(words, "- "))


def _wrapped(words: str, mark: str = "") -> list[str]:
    if words.startswith("  "):  # a command
        return [f"  {line}" for line in shell(words, WIDTH - 2).splitlines()]
    return paragraph(words, WIDTH, mark, "  ")


def _gain(gain: Gain) -> str:
    return f"{gain_words(gain.amount, gain.unit)} on {gain.at}"


def code(found: Recommendation, taken: Candidate) -> str:
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
    """Return the given options as arguments that follow another argument in a call."""
    return "".join(f", {name}={value!r}" for name, value in taken.options.items())


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as text, such as ``a, b, c and 2 more``. At most ``most`` names are written out."""
    shown = list(names[:most])
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def as_json(found: Recommendation) -> str:
    """Return a recommendation with its evidence as JSON."""
    data: dict[str, Any] = {
        "take": found.taken and found.taken.label,
        "lines": as_text(found).splitlines(),
        "required": asdict(found.required),
        "answer": asdict(found.answer),
        "candidates": [{**asdict(each), "label": each.label, "verdict": _verdict(found, each)} for each in found.candidates],
        "refused": [asdict(each) for each in found.refused],
        "doubts": _cautions(found),
    }
    return json.dumps(data, indent=1)

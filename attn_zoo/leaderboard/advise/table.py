"""Table of use cases: which mechanism to use for each, how its score differs from softmax's, and on which tasks this was tested."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attn_zoo.leaderboard.advise.abilities import ACCEPT, abilities
from attn_zoo.leaderboard.advise.drop_in import TITLE, drop_in
from attn_zoo.leaderboard.advise.needs import NEEDS, Answer, Choice, answers, costs_of
from attn_zoo.leaderboard.statistics import CONFIDENCE, Estimate
from attn_zoo.leaderboard.table import Table
from attn_zoo.leaderboard.text import Grid, lines, tabulated

NO_EVIDENCE = "no evidence yet"
_HEAD = ("use case", "use", "against softmax", "tested on", "tokens")
_NAMED = 3
"""Greatest number of mechanisms that a row names in addition to the cheapest one."""


def use_cases(
    tables: Sequence[Table],
    transplant: Mapping[str, Any] | None = None,
    *,
    accept: float = ACCEPT,
    recurrent: Collection[str] | None = None,
) -> list[Answer]:
    """Return one answer per use case and direction (bidirectional, causal): which mechanism to use.

    Args:
        transplant: content of a file that ``attn-zoo transplant`` wrote, as evidence on trained encoders; None for no evidence.
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).
        recurrent: mechanisms with a recurrent form, the only ones recommended for little memory; None if they are not known.

    Raises:
        ValueError: ``accept`` is not at least 0 and less than 100, or ``transplant`` is the content of another experiment's file.
    """
    if not 0 <= accept < 100:
        raise ValueError(f"accept must be at least 0 and less than 100 points; got {accept:g}")
    found = abilities(tables)
    made = [one for need in NEEDS for one in answers(need, found, accept, costs_of(recurrent if need.small_state else None))]
    return [*made, drop_in(transplant, accept)]


def rule(accept: float = ACCEPT) -> str:
    """Return the sentence that says when a mechanism matches softmax.

    Args:
        accept: largest acceptable loss against softmax, in points or per cent (see ``ACCEPT``).
    """
    return (
        "A mechanism matches softmax on a task if it is better than the best control, and if one of two conditions holds: the "
        f"{100 * CONFIDENCE:.0f} % interval of its difference from softmax lies above -{accept:g} points, or both learned the task "
        "with all seeds."
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


def no_evidence(answer: Answer) -> str:
    """Return why the records do not allow an answer to a use case. If they allow one, the text is empty."""
    if answer.evidence and (answer.chosen or answer.compared):
        return ""
    told = [f"{name} does not count ({why})" for name, why in answer.no_evidence]
    told += [f"not run: {', '.join(answer.missing)}"] if answer.missing else []
    told += ["no cheaper mechanism has three seeds on every task"] if answer.evidence else []
    encoder = "attn-zoo transplant measures this, but no file that it wrote was given"
    return "; ".join(told) or (encoder if answer.title == TITLE else "there are no records of these tasks")


def _lacking(answer: Answer) -> str:
    """Return which evidence is missing, short enough for a cell: the tasks that were not run, or else the whole reason."""
    long = f" with {answer.shortest:,} tokens or more" if answer.shortest else ""
    return f"not run{long}: {', '.join(answer.missing)}" if answer.missing and not answer.evidence else no_evidence(answer)


def gain_words(gain: Estimate | None, unit: str) -> str:
    """Return a difference from softmax as text, such as ``-1.2 ± 0.4 points``. If the difference is None, the text is empty."""
    return "" if gain is None else f"{gain.written('.1f', sign='+')} {unit}"


def use_line(answer: Answer) -> list[str]:
    """Return the row of a use case: its name, what to use, the difference from softmax, the tasks of the evidence, and their
    lengths."""
    if no_evidence(answer):
        return [_title(answer), NO_EVIDENCE, "", _lacking(answer), ""]
    if answer.chosen:
        first, *others = answer.chosen
        names = [one.label for one in others[:_NAMED]] + ([f"{len(others) - _NAMED} more"] if len(others) > _NAMED else [])
        use, gain = first.label + (f" (also matches: {', '.join(names)})" if names else ""), _worst(first)
    else:
        use, gain = "softmax", f"{_worst(answer.nearest)} for {answer.nearest.label}, which came closest" if answer.nearest else "-"
    return [_title(answer), use, gain, ", ".join(answer.tasks), answer.scored_at or "-"]


def _worst(choice: Choice) -> str:
    """Return as text the gain whose interval has the lowest end."""
    worst = min(choice.gains, key=lambda gain: gain.amount.low)
    return gain_words(worst.amount, worst.unit)


def _title(answer: Answer) -> str:
    return f"{answer.title} ({answer.direction})" if answer.direction else answer.title

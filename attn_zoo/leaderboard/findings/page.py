"""The findings as a page of Markdown and as lines for the terminal: the same sentences in both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from attn_zoo.escapes import markdown, terminal
from attn_zoo.leaderboard.compare import SEEDS_NEEDED
from attn_zoo.leaderboard.findings.abilities import ACCEPT, BASELINE, Ability, abilities
from attn_zoo.leaderboard.findings.drop_in import drop_in
from attn_zoo.leaderboard.findings.needs import NEEDS, answers, costs_of
from attn_zoo.leaderboard.findings.sentences import ability_sentence, answer_paragraphs, mechanism_sentences
from attn_zoo.leaderboard.statistics import CONFIDENCE
from attn_zoo.leaderboard.table import Table
from attn_zoo.terminal import COLUMNS, paragraph

Block = tuple[Literal["head", "subhead", "paragraph", "item"], str]


def findings(
    tables: Sequence[Table],
    transplant: Mapping[str, Any] | None = None,
    *,
    accept: float = ACCEPT,
    format: str = "terminal",
    recurrent: Collection[str] | None = None,
) -> str:
    """Return all findings that ``tables`` and a transplant support, as text.

    Args:
        transplant: content of a file of ``attn-zoo transplant``; None for none.
        accept: acceptable loss to softmax in points of 100; in per cent for metrics that are not shares.
        format: ``terminal``, wrapped to ``COLUMNS`` columns, or ``github``.
        recurrent: attentions with a recurrent form, without which a small state is of no use; None where that is not known.

    Raises:
        ValueError: ``accept`` is below 0 or at least 100, or ``transplant`` is the content of another experiment's file.
    """
    if not 0 <= accept < 100:
        raise ValueError(f"accept is a loss in points, at least 0 and less than 100; got {accept:g}")
    return (_markdown if format == "github" else _terminal)(list(_blocks(abilities(tables), transplant, accept, recurrent)))


def _blocks(
    found: Sequence[Ability], transplant: Mapping[str, Any] | None, accept: float, recurrent: Collection[str] | None
) -> Iterator[Block]:
    yield "head", "How to read this"
    yield from (("item", rule) for rule in _rules(accept))
    yield "head", "What to take"
    for need in NEEDS:
        yield "subhead", need.title
        among = recurrent if need.small_state else None
        yield from (("paragraph", text) for one in answers(need, found, accept, costs_of(among)) for text in answer_paragraphs(one))
    encoder = drop_in(transplant, accept)
    yield "subhead", encoder.title
    yield from (("paragraph", text) for text in answer_paragraphs(encoder))
    yield "head", "What was measured"
    if not found:
        yield "paragraph", "Not measured yet: there are no records."
        return
    yield from (("item", ability_sentence(ability)) for ability in found)
    yield "head", "Each mechanism"
    for name in _mechanisms(found):
        yield "subhead", name
        yield from (("item", text) for text in mechanism_sentences(name, found, accept))


def _rules(accept: float) -> list[str]:
    return [
        f"Scores are means over seeds ± half of their {100 * CONFIDENCE:.0f} % interval; nothing is judged with fewer than "
        f"{SEEDS_NEEDED} seeds. Differences are paired by seed, and each interval is of its pair alone: among many mechanisms "
        "a few verdicts are wrong by chance.",
        f"As good as softmax: the interval of the difference lies above -{accept:g} points, or above -{accept:g} % of softmax's "
        "score where the metric is not a share. Better than softmax: the interval lies above 0, and the difference is at least a "
        "point (1 % where the metric is not a share). Worse: the interval lies below 0, and the mechanism is not as good. Seeds "
        "differ too much: the interval allows none of these verdicts.",
        "No better than the best control: the interval of the difference to that control is not wholly above 0, and either the "
        "mechanism is worse than softmax or softmax is no better than that control either. A control is a network without "
        "attention, or with attention that cannot select by content.",
        "A mechanism is taken for a need if, at every task that speaks for that need, it is better than softmax or as good as "
        "softmax, and better than the best control, and if it takes fewer FLOPs than softmax at 4,096 tokens. The cheapest of "
        "these is named; where memory is limited, the one with the smallest state, which must be known, smaller than "
        "softmax's keys and values, and used by a recurrent form.",
        "Costs are counted, not measured, and are those of the attention mechanisms of all layers, without projections.",
    ]


def _mechanisms(found: Sequence[Ability]) -> list[str]:
    """Names of mechanisms without controls: softmax, then the others in alphabetical order."""
    names = {name for ability in found for name, row in ability.rows.items() if not row.control}
    return sorted(names, key=lambda name: (name != BASELINE, name))


def _markdown(blocks: Sequence[Block]) -> str:
    marks = {"head": "## ", "subhead": "### ", "paragraph": "", "item": "- "}
    text = ""
    for at, (kind, words) in enumerate(blocks):
        tight = kind == blocks[at - 1][0] == "item"
        text += ("\n" if tight else "\n\n") + marks[kind] + markdown(words)
    return text.strip()


def _terminal(blocks: Sequence[Block]) -> str:
    lines: list[str] = []
    for at, (kind, foreign) in enumerate(blocks):
        words = terminal(foreign)
        if at and not (kind == "item" and blocks[at - 1][0] in ("item", "subhead")):
            lines.append("")
        mark = "- " if kind == "item" else ""
        lines += paragraph(words, COLUMNS, mark, " " * len(mark))
        lines += [{"head": "=", "subhead": "-"}[kind] * len(words)] if kind in ("head", "subhead") else []
    return "\n".join(lines)

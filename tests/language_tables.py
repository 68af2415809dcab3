"""Table on text of ``docs/explanation/profile.md``: does the order of mechanisms on text agree with that on the profile?"""

from __future__ import annotations

from collections.abc import Sequence

from axes_tables import SIGNIFICANT, asked, order_of, rank_correlation
from committed import titled

from attn_zoo.leaderboard import Row, Table
from attn_zoo.leaderboard.compare import BASELINE, is_above_control, standing
from attn_zoo.leaderboard.metrics import estimated, score
from attn_zoo.leaderboard.statistics import holm
from attn_zoo.terminal import table as printed

FEWEST = 6
"""Number of mechanisms that two tasks must have in common for a correlation."""


def language(made: Sequence[Table], profile: Sequence[Table]) -> str:
    """Return, for each task on text, whether softmax is better than the controls, and how the order of mechanisms agrees with that
    on the tasks of the profile."""
    return "\n\n".join(_correlations(table, profile) for table in made) or "Not run."


def _of_repeated(row: Row, text: Table) -> str:
    """Return the score on tokens that an earlier or distant place of the input shows."""
    found = row.parts.get("repeated")
    return "-" if found is None else estimated(found, text)


def _correlations(text: Table, profile: Sequence[Table]) -> str:
    causal = bool(text.task.get("causal"))
    order, found = order_of(text), list[tuple[str, int, float, float]]()
    rows = sorted((row for row in text.rows if row.test is not None), key=lambda row: (row.control, standing(row)))
    scored = [(row.name, score(row, text), _of_repeated(row, text), str(len(row.seeds))) for row in rows]
    lower = "" if text.higher_is_better else " (lower is better)"
    head = ("mechanism", f"{text.task['metric']}{lower}", "of repeated tokens", "seeds")
    scores = printed(head, scored, "github", left=(0,))
    for table in profile:
        common, _, rho, p = rank_correlation(order_of(table), order)
        if bool(table.task.get("causal")) == causal and len(common) >= FEWEST:
            found.append((titled(table), len(common), rho, p))
    planned = len(asked(f"language_{'decoder' if causal else 'encoder'}"))
    left = [f"Not run: {planned - len(text.rows)} of {planned} rows."] if len(text.rows) < planned else []
    softmax = next((row for row in text.rows if row.attention == BASELINE), None)
    above = softmax is not None and is_above_control(softmax)
    said = f"On {titled(text)}, softmax is {'' if above else 'not '}better than the best control."
    if not found:
        few = f"**{said} Too few mechanisms are recorded for a correlation with the tasks of the profile.**"
        return "\n\n".join([few, scores, *left])
    corrected = holm([p for *_, p in found])
    lines = [
        (name, str(count), f"{rho:.2f}", f"{p:.2g}" if p >= 0.001 else "< 0.001")
        for (name, count, rho, _), p in zip(found, corrected, strict=True)
    ]
    agree = sum(rho > 0 and p <= SIGNIFICANT for (_, _, rho, _), p in zip(found, corrected, strict=True))
    said += (
        f" The order of mechanisms on text is significantly correlated with that on {agree} of {len(found)} tasks of the profile."
    )
    head = ("task of the profile", "mechanisms", "Spearman's ρ", "p (Holm)")
    return "\n\n".join([f"**{said}**", scores, printed(head, lines, "github", left=(0,)), *left])

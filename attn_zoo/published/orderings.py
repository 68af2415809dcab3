"""Published orderings: statements that one mechanism scores better than another on a task, in which all sources agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from attn_zoo.published.figures import SCORE, figures

_BASELINE = "softmax"
LEAST_SOURCES = 3
LEAST_GAP = 5.0  # one mechanism's scores differ less between sources
"""In every source of an ordering, the scores of the two mechanisms differ by at least this many points."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """Statement that one mechanism scores below (or above) another on a task in every source."""

    task: str
    attention: str
    baseline: str
    gaps: Mapping[str, float]
    """Score of ``attention`` minus score of ``baseline``, in points, by title of source; all have the same sign."""

    @property
    def below(self) -> bool:
        """True if ``attention`` scores lower than ``baseline``."""
        return all(gap < 0 for gap in self.gaps.values())


def orderings() -> tuple[Ordering, ...]:
    """Return one ``Ordering`` for each task and mechanism whose score is above that of softmax in all sources, or below it in all
    sources.

    At least ``LEAST_SOURCES`` sources must have numbers for the mechanism and for softmax. In all of them the difference must have
    the same sign and at least ``LEAST_GAP`` points. A source with several numbers for one mechanism, with different options, is
    left out.
    """
    cells: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures(metric=SCORE):
        if figure.task and figure.attention:
            cells[figure.task, figure.attention][figure.source.title].append(figure.value)
    agreed = []
    for (task, attention), by_source in sorted(cells.items()):
        against = cells.get((task, _BASELINE), {})
        both = [name for name, values in by_source.items() if len(values) == len(against.get(name, ())) == 1]
        gaps = {name: round(by_source[name][0] - against[name][0], 6) for name in both}
        one_side = all(gap <= -LEAST_GAP for gap in gaps.values()) or all(gap >= LEAST_GAP for gap in gaps.values())
        if len(gaps) >= LEAST_SOURCES and one_side:
            agreed.append(Ordering(task, attention, _BASELINE, gaps))
    return tuple(agreed)

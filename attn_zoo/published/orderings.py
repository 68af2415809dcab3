"""Which mechanism beats which, where every source that has both says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from attn_zoo.published.figures import SCORE, figures

LEAST_SOURCES = 3
LEAST_GAP = 5.0
"""Points, in every source; sources differ by more than smaller gaps for one mechanism alone."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """An attention that every source finds below another, or above it, on a task."""

    task: str
    attention: str
    yardstick: str
    gaps: Mapping[str, float]
    """Score of ``attention`` minus that of ``yardstick``, in points, by title of source; all of one sign."""

    @property
    def below(self) -> bool:
        """Whether ``attention`` is the lower one."""
        return all(gap < 0 for gap in self.gaps.values())


def orderings(yardstick: str = "softmax") -> tuple[Ordering, ...]:
    """The orderings against ``yardstick`` of which no source disagrees.

    At least ``LEAST_SOURCES`` sources have both, and each of them sees a gap of at least ``LEAST_GAP``
    points to the same side. A source with several figures for one attention, by dials, takes no part.
    """
    cells: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures(metric=SCORE):
        if figure.task and figure.attention:
            cells[figure.task, figure.attention][figure.source.title].append(figure.value)
    found = []
    for (task, attention), by_source in sorted(cells.items()):
        against = cells.get((task, yardstick), {})
        both = [name for name, values in by_source.items() if len(values) == len(against.get(name, ())) == 1]
        gaps = {name: round(by_source[name][0] - against[name][0], 6) for name in both}
        one_side = all(gap <= -LEAST_GAP for gap in gaps.values()) or all(gap >= LEAST_GAP for gap in gaps.values())
        if len(gaps) >= LEAST_SOURCES and one_side:
            found.append(Ordering(task, attention, yardstick, gaps))
    return tuple(found)

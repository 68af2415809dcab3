"""Rule for the number of seeds that a row has with its best settings. It was fixed in advance, is the same for all rows, and uses
validation scores only."""

from __future__ import annotations

from collections.abc import Sequence

FEW, USUAL, MANY = 3, 5, 10
LEAVES = 0.02
"""Difference from the best control above which a score leaves the controls, as a share."""
APART = 0.20
"""Difference between the highest and lowest score above which seeds differ so much that there are more, as a share."""


def seeds_wanted(scores: Sequence[float], *, main: bool, control: float | None) -> int:
    """Return how many seeds a row has on a task: five for main rows and controls, three for others.

    Another row also has five if one of its first three scores is clearly above the best control. Any row has ten if its first five
    scores differ by more than ``APART``.

    Args:
        scores: validation scores of the first seeds, in the order of the seeds, from 0 to 1; 0 for a run without a score.
        main: True for controls and for the rows that the experiment names as main rows.
        control: best validation score of a control on the task; None if no control has one.
    """
    leaves = len(scores) >= FEW and (control is None or max(scores[:FEW]) > control + LEAVES)
    if not (main or leaves):
        return FEW
    five = scores[:USUAL]
    return MANY if len(five) == USUAL and max(five) - min(five) > APART else USUAL

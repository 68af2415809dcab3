"""Rule for the number of seeds with which a mechanism is trained on a task with its best settings. The rule was fixed in advance,
is the same for all mechanisms, and uses validation scores only."""

from __future__ import annotations

from collections.abc import Sequence

FEW, USUAL, MANY = 3, 5, 10
LEAVES = 0.02
"""Gain over the best control (scores are from 0 to 1) above which a mechanism with three seeds gets five."""
APART = 0.20
"""Difference between the highest and the lowest score (from 0 to 1) above which a mechanism with five seeds gets ten."""


def seeds_wanted(scores: Sequence[float], *, main: bool, control: float | None, share: bool = True) -> int:
    """Return the number of seeds with which a mechanism must be trained on a task.

    - Main mechanisms and controls (networks that cannot select tokens by content) start with five seeds, other
      mechanisms with three.
    - A mechanism with three seeds gets five if the best of its first three scores exceeds the score of the best control by more
      than ``LEAVES``, or if no control has a score.
    - A mechanism with five seeds gets ten if the highest and the lowest of its first five scores differ by more than ``APART``.
    - If scores are not shares, such as perplexity, the last two rules do not apply.

    Args:
        scores: validation scores of the first seeds, in the order of the seeds; 0 for a run without a score.
        main: True for controls and for the mechanisms that the experiment names as main.
        control: best validation score of a control on the task; None if no control has one.
        share: True if scores are from 0 to 1, and higher is better.
    """
    if not share:
        return USUAL if main else FEW
    leaves = len(scores) >= FEW and (control is None or max(scores[:FEW]) > control + LEAVES)
    if not (main or leaves):
        return FEW
    five = scores[:USUAL]
    return MANY if len(five) == USUAL and max(five) - min(five) > APART else USUAL

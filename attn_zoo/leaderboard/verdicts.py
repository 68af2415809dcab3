"""Words for verdicts on rows. Tables, pages, pictures and sentences use the same words."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Verdict on the row of a mechanism on a task. ``compare.METHOD`` states the rules."""

    BEST = "best"
    TIED = "not distinguishable from the best"
    WORSE = "worse"
    NO_BETTER = "no better than the best control"
    NOT_TRAINED = "not trained"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"


class Outcome(StrEnum):
    """Outcome of the comparison of one row with another."""

    BETTER = "better"
    TIED = "not distinguishable"
    WORSE = "worse"

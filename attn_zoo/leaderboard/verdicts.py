"""Words for the result of a row on a task. Tables, pages, pictures and sentences use them."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Verdict on a row on a task. ``compare.METHOD`` says how it is found."""

    BEST = "best"
    TIED = "not distinguishable from the best"
    WORSE = "worse"
    NO_BETTER = "no better than the best control"
    NOT_TRAINED = "not trained"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"


class Outcome(StrEnum):
    """Outcome of a comparison of two rows."""

    BETTER = "better"
    TIED = "not distinguishable"
    WORSE = "worse"

"""Search for one fault that explains many failures. A report names this fault first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_zoo.conformance.harness import Result

MANY = 3
"""Smallest number of failures for which a report names a likeliest cause."""

COST = "cost_formula_is_exact"
CAUSES: tuple[tuple[str, str, str], ...] = (
    ("card_is_complete", "must have a bidirectional form", "the mechanism cannot be built at the lengths of the checks"),
    ("output_is_like_the_queries", r"output has shape", "the output does not have the shape of the queries"),
    ("output_is_like_the_queries", r"output has dtype", "the output does not have the dtype of the inputs"),
    ("output_is_like_the_queries", r"padded=False: .*NaN or infinite", "outputs are NaN or infinite, also without padding"),
    ("queries_without_keys_give_zeros", r"\bnan\b|NaN or infinite", "a query without a valid key gives NaN instead of zeros"),
    ("eval_is_deterministic", "", "two equal calls give different outputs; in eval mode, a call must not draw random numbers"),
    ("batch_mates_have_no_influence", "", "the output for an example depends on the other examples of its batch"),
    ("causal_output_ignores_the_future", "", "outputs of the causal form depend on later positions"),
    ("padding_has_no_influence", "", "padded positions change the outputs"),
    (COST, "", "the card's cost formula states other FLOPs or parameters than the module has"),
    ("eager_agrees_with_the_definition", "", "`attend` and `definition` compute different outputs"),
)
"""Known faults as triples: the name of a check, a regular expression for its message, and the cause. A report names the cause of
the first triple that fits a failure."""


def likeliest_cause(failures: Sequence[Result]) -> str:
    """Return a sentence that names the likeliest cause of the failures, or an empty text if there are fewer than three failures or
    no cause is found.

    If the plugin raises an exception at the same line of code in at least half of the failures, and in at least three, this
    exception is named. Otherwise, the first of the known faults in ``CAUSES`` that fits a failure is named. A wrong cost formula
    breaks no other rule, so it is named only if it is at least half of the failures.
    """
    if len(failures) < MANY:
        return ""
    places = Counter(failure.raised_at for failure in failures if failure.raised_at)
    place, times = places.most_common(1)[0] if places else ("", 0)
    if times >= MANY and 2 * times >= len(failures):
        cause = next(failure.detail for failure in failures if failure.raised_at == place)
    else:
        counted = sum(COST in (failure.case.check, *failure.detail.split(": ")) for failure in failures)
        known = (each for each in CAUSES if each[0] != COST or 2 * counted >= len(failures))
        found = (told for check, pattern, told in known for failure in failures if _shows(failure, check, pattern))
        cause = next(found, "")
    return cause and f"likeliest cause of the {len(failures)} failures: {cause}; mend it first"


def _shows(failure: Result, check: str, pattern: str) -> bool:
    return failure.case.check == check and re.search(pattern, failure.detail, re.DOTALL) is not None

"""The kit that any attention must pass: each claim on a card is proved and each non-claim is refused."""

from attn_zoo.conformance.attention_suite import attention_checks, check_attention, resolve
from attn_zoo.conformance.harness import Case, NotApplicable, Report, Result, Violation, require, run_cases
from attn_zoo.conformance.subject import ATTENTION_CHECKS

__all__ = [
    "ATTENTION_CHECKS",
    "Case",
    "NotApplicable",
    "Report",
    "Result",
    "Violation",
    "attention_checks",
    "check_attention",
    "require",
    "resolve",
    "run_cases",
]

"""Conformance tests for mechanisms and tasks. They test that each capability on a card (registered description) works, and that
requests outside the capabilities raise an error."""

from attn_zoo.conformance import task_leaks  # noqa: F401 (registers its checks)
from attn_zoo.conformance.attention_suite import attention_checks, check_attention, resolve
from attn_zoo.conformance.harness import Case, NotApplicable, Report, Result, Violation, require, run_cases
from attn_zoo.conformance.subject import ATTENTION_CHECKS
from attn_zoo.conformance.task_checks import TASK_CHECKS, check_task, task_checks

__all__ = [
    "ATTENTION_CHECKS",
    "TASK_CHECKS",
    "Case",
    "NotApplicable",
    "Report",
    "Result",
    "Violation",
    "attention_checks",
    "check_attention",
    "check_task",
    "require",
    "resolve",
    "run_cases",
    "task_checks",
]

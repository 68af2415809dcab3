"""``attn-zoo check``: the conformance kit on an attention or a task, its report printed."""

from __future__ import annotations

from attn_zoo import registry
from attn_zoo.conformance import check_attention, check_task, resolve
from attn_zoo.contract import TaskCard


def check(target: str) -> int:
    """Check a registered name or ``pkg.module:Class``; the exit status is 0 if everything claimed is proved.

    Raises:
        UnknownNameError: nothing has this name.
        ValueError: the class cannot be imported or has no card.
    """
    if target in registry.task_names():
        report = check_task(target)
    else:
        entry = resolve(target)
        report = check_task(entry) if isinstance(entry, TaskCard) else check_attention(entry)
    print(report)
    return 0 if report.ok else 1

"""How each experiment of ``attn-zoo measure`` is made ready: what was asked, checked; the work; the table of what is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from attn_zoo.cost.linformer_kernels import experiment as linformer_kernels
from attn_zoo.cost.linformer_kernels.setting import kernels_digest
from attn_zoo.cost.linformer_kernels.setting import resolve_setting as resolve_kernels_setting
from attn_zoo.cost.linformer_kernels.table import linformer_kernels_table
from attn_zoo.records import describe_environment

Points = list[dict[str, Any]]

Save = Callable[[Points], None]

Prepared = tuple[dict[str, Any], Callable[[Save, Points], Points], Callable[[Mapping[str, Any]], str]]
"""Facts that stand above the points; the work, given how to save and what is done; the table of what was found."""


def _linformer_kernels(given: Mapping[str, Any]) -> Prepared:
    setting, limits = resolve_kernels_setting(given)
    facts = {"setting": asdict(setting), "kernels": kernels_digest(), "environment": describe_environment(setting.device)}

    def work(save: Save, done: Points) -> Points:
        return linformer_kernels.measure(setting, limits, tell=tell, save=save, done=done)

    return facts, work, linformer_kernels_table


PREPARE: Mapping[str, Callable[[Mapping[str, Any]], Prepared]] = {
    "linformer_kernels": _linformer_kernels,
}
"""How each experiment is made ready, by its name."""


def tell(line: str) -> None:
    """Say how far the work is, beside the table."""
    print(line, file=sys.stderr, flush=True)

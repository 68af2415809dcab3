"""Command line with which a recorded run can be repeated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attn_zoo.records import RunSpec

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_CRITERION = ("until", "ceiling")
"""Fields of a budget that no preset sets. The command states them only for runs until a criterion."""
_KEYWORDS = frozenset(["true", "false", "null", "nan", "inf"])


def command(spec: RunSpec, seeds: Sequence[int] = ()) -> str:
    """Return the ``attn-zoo run`` command that repeats a run. It states every setting, so it does not depend on presets or
    defaults.

    The command is quoted for a POSIX shell. It does not state the data folder, which the reader adds as ``data.root=FOLDER``.

    Args:
        seeds: seeds to run in place of the seed in ``spec``.
    """
    several = ",".join(map(str, seeds or [spec.seed]))
    words = [f"attention={hydra_value(spec.attention)}", *_group("attention", spec.options)]
    words += [f"task={spec.task}", *_group("task", spec.task_options)]
    budget = {name: value for name, value in asdict(spec.budget).items() if name not in _CRITERION or spec.budget.until != "steps"}
    words += [*_group("model", asdict(spec.model)), *_group("budget", budget)]
    words += [f"seed={several}", *_group("", {name: getattr(spec, name) for name in ("implementation", "device", "precision")})]
    return shlex.join(["attn-zoo", "run", *(["-m"] if "," in several else []), *words])


def _group(name: str, values: Any) -> list[str]:
    prefix = f"{name}." if name else ""
    return [f"{prefix}{key}={hydra_value(value)}" for key, value in values.items()]


def hydra_value(value: Any) -> str:
    """Return a setting as text in Hydra's grammar. A string that Hydra could read as something else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    if not value:
        return ""
    value = value.replace("${", "\\${")  # no interpolation
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)  # a backslash counts twice only before a quote
    escaped += escaped[len(escaped.rstrip("\\")) :]  # or at the end
    return f"'{escaped}'"

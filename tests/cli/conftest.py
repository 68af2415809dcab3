"""Fixture of tests that load plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_zoo import registry


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; what is registered and imported there is forgotten afterwards."""
    registry.load_plugins()  # before the copies are made, since the built-in entries register once
    for name in ("_ATTENTIONS", "_TASKS", "_LOADED", "_FAILURES"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]

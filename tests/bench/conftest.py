"""Fixture of the tests of measurements."""

from __future__ import annotations

import pytest
from scripted import Scripted

from attn_zoo.bench import session


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    """Worker processes that answer by a script."""
    monkeypatch.setattr(session, "Worker", Scripted)
    for name, empty in (("asked", []), ("limits", []), ("wrong", {}), ("made", [])):
        monkeypatch.setattr(Scripted, name, empty)
    return Scripted

"""Mistakes that the kit must catch in a mechanism; that it passes without them is tested in ``test_attention_conformance.py``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attn_zoo.conformance import Violation, attention_checks


def require_caught(name: str, setting: str, mistake: Callable[[pytest.MonkeyPatch], None], patch: pytest.MonkeyPatch) -> None:
    """Make a mistake in a mechanism, and require that a case of the kit, such as ``default-eager-limit_is_softmax``, fails."""
    case = next(case for case in attention_checks(name) if case.setting == setting)
    mistake(patch)
    with pytest.raises(Violation):
        case()

"""Every registered attention, plugins included, against every check of the conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from attn_zoo import attentions
from attn_zoo.conformance.pytest_support import parametrize_with_checks


@parametrize_with_checks(attentions())
def test_attention_conforms(check: Callable[[], None]) -> None:
    check()

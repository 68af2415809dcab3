"""The kit as pytest tests. The only module of the kit that needs pytest, and only when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attn_zoo.conformance.attention_suite import attention_checks
from attn_zoo.conformance.harness import Case, NotApplicable
from attn_zoo.contract import AttentionCard

if TYPE_CHECKING:
    import pytest


def parametrize_with_checks(attentions: Iterable[str | AttentionCard]) -> pytest.MarkDecorator:
    """Parametrize a test over every check of these attentions; it receives ``check`` and calls it.

    Ids read ``name[variant]-implementation-check``::

        @parametrize_with_checks(attentions())
        def test_conformance(check):
            check()
    """
    import pytest

    cases = (case for attention in attentions for case in attention_checks(attention))
    return pytest.mark.parametrize("check", [pytest.param(_or_skip(case), id=case.id) for case in cases])


def _or_skip(case: Case) -> Callable[[], None]:
    def check() -> None:
        import pytest

        try:
            case()
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return check

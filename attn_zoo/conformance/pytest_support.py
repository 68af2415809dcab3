"""Conformance tests as pytest tests in a test file. pytest is imported only when a function needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from attn_zoo.conformance.harness import Case, NotApplicable, Violation, waivers_of
from attn_zoo.conformance.targets import Card, cases_of, entries

if TYPE_CHECKING:
    import pytest


def parametrize_with_checks(
    targets: str | Card | Iterable[str | Card], expected_failures: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """Return a pytest mark that runs a test once for every conformance check of the targets. The test gets the argument ``check``
    and must call it.

    The id of a test is ``name[variant]-implementation-check`` for a mechanism, and ``name[variant]-check`` for a task::

        @parametrize_with_checks(["my_attention", "my_task"])
        def test_conformance(check):
            check()

    Args:
        targets: registered names, ``package.module:Class``, ``file.py``, ``file.py:Class`` or cards.
        expected_failures: reasons of expected failures, by the name of a check or by ``variant-implementation-check``. pytest marks
            these tests as xfail. They fail if the check passes or does not apply.

    Raises:
        UnknownNameError: ``targets`` has an unknown name, or ``expected_failures`` names a check that does not exist.
        ValueError: a module or file cannot be imported, or holds no class with a card.
        FileNotFoundError: there is no such file.
    """
    import pytest

    cards = entries([targets] if isinstance(targets, Card | str) else targets)
    cases = [case for card in cards for case in cases_of(card)]
    waivers = waivers_of(", ".join(card.name for card in cards), cases, expected_failures)
    reasons = [waivers.get(case.setting, waivers.get(case.check)) for case in cases]
    given = [pytest.param(_test(case, reason), id=case.id) for case, reason in zip(cases, reasons, strict=True)]
    return pytest.mark.parametrize("check", given)


def _test(case: Case, reason: str | None) -> Callable[[], None]:
    def check() -> None:
        __tracebackhide__ = True
        if reason is None:
            _run(case)
        else:
            _run_waived(case, reason)

    return check


def _run(case: Case) -> None:
    import pytest

    __tracebackhide__ = True
    try:
        case()
    except NotApplicable as why:
        pytest.skip(str(why))
    except Violation as fault:  # the traceback inside the kit does not help
        raise Violation(f"{fault}\n{case.check}: {case.contract}") from None


def _run_waived(case: Case, reason: str) -> None:
    import pytest

    __tracebackhide__ = True
    try:
        case()
    except NotApplicable:
        ending = "has nothing to check"
    except Exception as fault:  # the entry may raise anything
        pytest.xfail(f"{reason} (found: {fault})")
    else:
        ending = "holds"
    pytest.fail(f"expected to fail ({reason}), but {case.setting} {ending}; remove it from expected_failures", pytrace=False)

"""Plugin for pytest. ``pytest --attn-zoo NAME`` adds the conformance tests of a mechanism or task, one test per check.

pytest loads this plugin wherever attn-zoo is installed, so other modules of attn-zoo and PyTorch are imported only if the option is
used.
"""

# The entry point has the name of this module, so that -p and pytest_plugins do not load the plugin a second time.

from __future__ import annotations

import inspect
from os import PathLike
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attn_zoo.conformance.harness import Case
    from attn_zoo.conformance.targets import Card

CARDS: pytest.StashKey[list[Card]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--attn-zoo NAME`` to pytest. It can be given several times."""
    parser.getgroup("attn-zoo", "efficient attention (attn-zoo)").addoption(
        "--attn-zoo",
        action="append",
        default=[],
        metavar="TARGET",
        help="add every check of an attention or task to the tests: a registered name, package.module:Class, or FILE.py[:Class]",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the mechanisms and tasks that the option ``--attn-zoo`` names, before pytest collects tests.

    Raises:
        UsageError: a mechanism, task, class or file does not exist or cannot be imported.
    """
    targets = config.getoption("--attn-zoo")
    if not targets:
        return
    from attn_zoo.conformance.targets import entries

    try:
        config.stash[CARDS] = entries(targets)
    except (ValueError, LookupError, OSError) as error:
        raise pytest.UsageError(f"--attn-zoo: {error}") from error


@pytest.hookimpl(tryfirst=True)  # so that -k, -m and --last-failed choose among the checks as among all tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add one test for each conformance check, after the other tests."""
    cards = config.stash.get(CARDS, [])
    if not cards:
        return
    from attn_zoo.conformance.targets import cases_of

    kit = Kit.from_parent(session, name="attn-zoo", nodeid="attn-zoo")
    for card in cards:
        place = _place(card.build)
        # Node ids are explicit: from a name with brackets pytest would build another id than the one in its cache.
        items += [
            Check.from_parent(kit, name=case.id, nodeid=f"attn-zoo::{case.id}", case=case, place=place) for case in cases_of(card)
        ]


class Kit(pytest.Collector):
    """Node of pytest's tree that contains all conformance tests, as a file contains its tests."""

    def collect(self) -> list[pytest.Item]:
        """Return no items, because the tests are created together with this node."""
        return []


class Check(pytest.Item):
    """Test that runs one conformance check on one mechanism or task."""

    def __init__(self, *, case: Case, place: tuple[str | PathLike[str], int | None], **others: Any) -> None:
        super().__init__(**others)
        self.case, self.place = case, place

    def runtest(self) -> None:
        """Run the check. pytest reports it as skipped if it does not apply."""
        self.case()

    def reportinfo(self) -> tuple[str | PathLike[str], int | None, str]:
        """Return the file and line of the class that is checked, and the name of the check."""
        return *self.place, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of a failed check. For any other exception, return pytest's traceback from this test on."""
        from attn_zoo.conformance.harness import Violation
        from attn_zoo.conformance.pytest_support import told

        if isinstance(excinfo.value, Violation):
            return told(self.case, excinfo.value)
        shown = excinfo.getrepr(style="short", tbfilter=lambda info: info.traceback.cut(path=__file__))
        shown.addsection(self.case.check, self.case.contract)
        return shown


def _place(kind: type) -> tuple[str | PathLike[str], int | None]:
    """Return the file and the line of a class, counted from 0 as in pytest. If the class was created at run time, both may be
    missing.
    """
    try:
        return inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)[1] - 1
    except (OSError, TypeError):
        return "", None

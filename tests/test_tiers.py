"""Tiers of the test suite: they cover it, no test is in two, and a missing extra skips tests instead of breaking collection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import extras
import pytest
from tiers import COLLECTED, NAMED, TIERS, in_halves, place_of, tier_of

ROOT = Path(__file__).parent.parent
FEWEST = 2_000
"""Smallest number of tests of the plain tier."""


@pytest.mark.process
def test_the_tiers_make_up_the_suite(request):
    if request.config.stash[NAMED]:
        pytest.skip("some tests alone were collected")
    counts = request.config.stash[COLLECTED]
    assert set(counts) == {None, *TIERS} and counts[None] >= FEWEST
    wanted = request.config.option.markexpr or request.config.option.keyword
    assert wanted or len(request.session.items) == counts.total()  # --all selects every test


@pytest.mark.process
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_that_is_named_runs_whatever_its_tier(workers):
    if workers != "0":
        pytest.importorskip("xdist", reason="pytest-xdist is not installed (extra: test)")
    named = ["tests/test_packaging.py", "-k", "every_folder_with_modules"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", *named]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


class Item:
    """A test as ``tier_of`` sees it."""

    def __init__(self, path: str, name: str, *markers: str) -> None:
        self.path, self.name, self.nodeid = Path(__file__).parent / path, name, f"{path}::{name}"
        self.markers = [getattr(pytest.mark, marker).mark for marker in markers]

    def iter_markers(self) -> list[pytest.Mark]:
        return self.markers


@pytest.mark.parametrize(
    ("item", "tier"),
    [
        (Item("test_layer.py", "test_a"), None),
        (Item("test_layer.py", "test_a", "process"), "process"),
        (Item("docs/test_site.py", "test_a"), "docs"),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[default]-eager-limit]"), None),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[relu]-eager-limit]"), "variants"),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[default]-eager-compiled_agrees]"), "kernels"),
        (Item("test_task_conformance.py", "test_task_conforms[mqar[default]-another_process_agrees]"), "process"),
        (Item("test_task_conformance.py", "test_registered_task_conforms[mqar[default]-labels_fit_the_spec]"), None),
        (Item("test_task_conformance.py", "test_registered_task_conforms[imdb[default]-labels_fit_the_spec]"), "data"),
        (Item("test_task_conformance.py", "test_registered_task_conforms[imdb[short]-labels_fit_the_spec]"), "variants"),
        (Item("test_task_conformance.py", "test_a_check_catches_its_mutant[Leaking]"), None),
        (Item("../elsewhere/test_b.py", "test_a"), None),
    ],
)
def test_the_tier_of_a_test(item: Any, tier):
    assert tier_of(item) == tier


def test_long_files_lead_both_halves_and_stay_whole():
    tests = [("a.py", None)] * 9 + [("b.py", "process")] * 4 + [("c.py", "docs")] * 3 + [("c.py", None)] + [("d.py", "process")] * 3
    order = in_halves([Path(name) for name, _ in tests], [tier for _, tier in tests])
    assert sorted(order) == list(range(20))
    first, second = ([tests[at] for at in half] for half in (order[:10], order[10:]))
    assert first[:4] == [("b.py", "process")] * 4 and {tier for _, tier in first[4:]} == {None}
    assert second[:6] == [("c.py", "docs")] * 3 + [("d.py", "process")] * 3 and {tier for _, tier in second[6:]} == {None}


def test_a_test_in_two_tiers_is_refused():
    item: Any = Item("docs/test_site.py", "test_a", "process")
    assert place_of(item) == "docs"
    with pytest.raises(pytest.UsageError, match="in one tier; got docs, process"):
        tier_of(item)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(extras.PACKAGES, "plots", ("no_such_package",))
    assert extras.missing("plots") == "no_such_package not installed (extra: plots)"
    assert (
        extras.of_absent(ModuleNotFoundError("no", name="no_such_package.part")) == "no_such_package not installed (extra: plots)"
    )
    assert extras.of_absent(ModuleNotFoundError("no", name="attn_zoo.gone")) is None
    with pytest.raises(pytest.UsageError, match="got 'nothing'"):
        extras.missing("nothing")

"""Tiers of the test suite: they cover it, no test is in two, and a missing extra skips tests instead of breaking collection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import extras
import pytest
from tiers import (
    COLLECTED,
    EXHAUSTIVE,
    INTERPRETED,
    KIT,
    LOOPS,
    NAMED,
    PLACES,
    PLAIN,
    TESTS,
    TIERS,
    covering,
    in_halves,
    kinds,
    of_each_kind,
    selected,
    tier_of,
)

from attn_zoo import attentions, task_card, task_names
from attn_zoo.conformance import attention_checks, task_checks

ROOT = Path(__file__).parent.parent
FEWEST = 2_000
"""Smallest number of tests of the plain tier."""


@pytest.mark.process
def test_the_tiers_make_up_the_suite(request):
    if request.config.stash[NAMED]:
        pytest.skip("some tests alone were collected")
    counts = request.config.stash[COLLECTED]
    assert set(counts) == set(TIERS) and counts[PLAIN] >= FEWEST
    level = request.config.option.level
    wanted = request.config.option.markexpr or request.config.option.keyword
    assert wanted or len(request.session.items) == sum(count for tier, count in counts.items() if selected(tier, level))


def test_each_level_adds_tiers():
    chosen = {level: {tier for tier in TIERS if selected(tier, level)} for level in (PLAIN, "all", EXHAUSTIVE)}
    assert chosen == {PLAIN: {PLAIN}, "all": TIERS.keys() - {EXHAUSTIVE}, EXHAUSTIVE: TIERS.keys()}


def test_what_is_listed_exists():
    assert [place for place in PLACES if not (TESTS / place).exists()] == []
    assert set(attentions()) >= LOOPS


def test_pairs_that_are_not_exhaustive_have_every_value():
    for first, second in (("abc", (1, 2)), ("ab", (1, 2, 3)), ("ab", (1, 2))):
        pairs = covering(first, second)
        needed = [pair.values for pair in pairs if not pair.marks]
        assert len(pairs) == len(first) * len(second) > len(needed) == max(len(first), len(second))
        few = [pair.values[0] for pair in covering(first, second, enough=first[:1]) if not pair.marks]
        assert few == [first[0]] * len(second)
        assert {one for one, _ in needed} == set(first) and {other for _, other in needed} == set(second)


def test_one_attention_of_each_kind_is_not_exhaustive():
    ordinary = [param.values[0] for param in of_each_kind(attentions()) if not param.marks]
    assert ordinary == kinds(attentions()) and len(of_each_kind(attentions())) == len(attentions()) > len(ordinary)
    assert {"softmax", "linformer", "performer", "reformer", "indexer"} <= set(ordinary)
    assert kinds(["kernelized_linformer", "reformer", "linformer", "softmax"]) == ["reformer", "linformer", "softmax"]


def test_every_check_of_every_attention_and_task_runs_before_the_exhaustive_tier():
    kits = {KIT[0]: [case for name in attentions() for case in attention_checks(name)]}
    kits[KIT[1]] = [case for name in task_names() for case in task_checks(name)]
    for file, cases in kits.items():
        test = "test_attention_conforms" if file == KIT[0] else "test_registered_task_conforms"
        tiers = {case: tier_of(Item(file, f"{test}[{case.id}]")) for case in cases}  # type: ignore[arg-type]  # what tier_of reads
        found = {(case.subject, case.implementation, case.check) for case, tier in tiers.items() if tier != EXHAUSTIVE}
        assert found >= {(case.subject, case.implementation, case.check) for case in cases if case.implementation != INTERPRETED}
        variants = {(case.subject, case.variant) for case, tier in tiers.items() if tier != EXHAUSTIVE}
        slow = {name for name in task_names() if task_card(name).locations}
        assert variants >= {(case.subject, case.variant) for case in cases if case.subject not in slow}


@pytest.mark.parametrize(
    ("source", "marker", "named", "level"),
    [
        (pytest.Config.ArgsSource.ARGS, "", True, EXHAUSTIVE),
        (pytest.Config.ArgsSource.TESTPATHS, "not plain", False, EXHAUSTIVE),
        (pytest.Config.ArgsSource.TESTPATHS, "", False, PLAIN),
    ],
)
def test_names_and_markers_select_every_tier_also_in_workers(source, marker, named, level, request):
    hooks = request.config.pluginmanager.getplugin(str(TESTS / "conftest.py"))

    def configured(**rest: Any) -> Any:
        option = SimpleNamespace(level=PLAIN, markexpr=marker)
        made = SimpleNamespace(stash=pytest.Stash(), option=option, args_source=source, addinivalue_line=lambda *_: None, **rest)
        hooks.pytest_configure(made)
        return made

    leader = configured()
    hooks.pytest_configure_node(node := SimpleNamespace(config=leader, workerinput={}))
    for config in (leader, configured(workerinput=node.workerinput)):
        assert (config.stash[NAMED], config.option.level) == (named, level)
        assert hooks.pytest_ignore_collect(TESTS / "kernels", config) is (True if level == PLAIN else None)


@pytest.mark.exhaustive
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
        (Item("test_layer.py", "test_a"), PLAIN),
        (Item("test_layer.py", "test_a", "process"), "process"),
        (Item("docs/test_inline_code.py", "test_a"), "docs"),
        (Item("docs/test_site.py", "test_a"), EXHAUSTIVE),
        (Item("docs/test_inline_code.py", "test_a", EXHAUSTIVE), EXHAUSTIVE),
        (Item("test_layer.py", "test_a", "process", EXHAUSTIVE), EXHAUSTIVE),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[default]-eager-limit]"), PLAIN),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[default]-tiled-limit]"), "variants"),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[relu]-eager-card_is_complete]"), "variants"),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[relu]-eager-eval_is_deterministic]"), EXHAUSTIVE),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[relu]-tiled-card_is_complete]"), EXHAUSTIVE),
        (Item("test_attention_conformance.py", "test_attention_conforms[linformer[default]-triton-calls_are_silent]"), EXHAUSTIVE),
        (
            Item("test_attention_conformance.py", "test_attention_conforms[linformer[default]-triton-padding_has_no_influence]"),
            "kernels",
        ),
        (
            Item("test_attention_conformance.py", "test_attention_conforms[linear[relu]-tiled-implementation_agrees_with_eager]"),
            "variants",
        ),
        (
            Item("test_attention_conformance.py", "test_attention_conforms[kda[raw]-eager-eager_agrees_with_the_definition]"),
            EXHAUSTIVE,
        ),
        (Item("test_attention_conformance.py", "test_attention_conforms[kda[raw]-eager-stepwise_matches_full]"), "variants"),
        (Item("test_attention_conformance.py", "test_attention_conforms[kda[default]-eager-card_is_complete]"), PLAIN),
        (
            Item("test_attention_conformance.py", "test_attention_conforms[kda[default]-eager-eager_agrees_with_the_definition]"),
            "variants",
        ),
        (Item("test_attention_conformance.py", "test_attention_conforms[linear[default]-eager-compiled_agrees]"), "kernels"),
        (Item("test_task_conformance.py", "test_task_conforms[mqar[default]-another_process_agrees]"), "process"),
        (Item("test_task_conformance.py", "test_registered_task_conforms[mqar[default]-labels_fit_the_spec]"), PLAIN),
        (Item("test_task_conformance.py", "test_registered_task_conforms[imdb[default]-labels_fit_the_spec]"), "data"),
        (Item("test_task_conformance.py", "test_registered_task_conforms[imdb[short]-labels_fit_the_spec]"), EXHAUSTIVE),
        (Item("test_task_conformance.py", "test_registered_task_conforms[imdb[short]-card_is_complete]"), EXHAUSTIVE),
        (Item("test_task_conformance.py", "test_registered_task_conforms[mqar[causal]-card_is_complete]"), "variants"),
        (Item("test_task_conformance.py", "test_a_check_catches_its_mutant[Leaking]"), PLAIN),
        (Item("../elsewhere/test_b.py", "test_a"), PLAIN),
    ],
)
def test_the_tier_of_a_test(item: Any, tier):
    assert tier_of(item) == tier


def test_long_files_lead_both_halves_and_stay_whole():
    tests = (
        [("a.py", PLAIN)] * 9 + [("b.py", "process")] * 4 + [("c.py", "docs")] * 3 + [("c.py", PLAIN)] + [("d.py", "process")] * 3
    )
    order = in_halves([Path(name) for name, _ in tests], [tier for _, tier in tests])
    assert sorted(order) == list(range(20))
    first, second = ([tests[at] for at in half] for half in (order[:10], order[10:]))
    assert first[:4] == [("b.py", "process")] * 4 and {tier for _, tier in first[4:]} == {PLAIN}
    assert second[:6] == [("c.py", "docs")] * 3 + [("d.py", "process")] * 3 and {tier for _, tier in second[6:]} == {PLAIN}


def test_a_test_in_two_tiers_is_refused():
    item: Any = Item("test_layer.py", "test_a", "process", "docs")
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

"""Tiers of the test suite: they cover it, no test is in two, and a missing extra skips tests instead of breaking collection."""

from __future__ import annotations

from pathlib import Path

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
    selected,
    tier_of,
)

from attn_zoo import attentions, task_card, task_names
from attn_zoo.conformance import attention_checks, task_checks

FEWEST = 2_000
"""Smallest number of tests of the plain tier."""


@pytest.mark.process
def test_the_tiers_make_up_the_suite(request):
    if request.config.stash[NAMED]:
        pytest.skip("some tests alone were collected")
    counts = request.config.stash[COLLECTED]
    level = request.config.option.level
    assert set(TIERS) >= set(counts) >= {tier for tier in TIERS if selected(tier, level)} and counts[PLAIN] >= FEWEST
    wanted = request.config.option.markexpr or request.config.option.keyword
    assert wanted or len(request.session.items) == sum(count for tier, count in counts.items() if selected(tier, level))


def test_what_is_listed_exists():
    assert [place for place in PLACES if not (TESTS / place).exists()] == []
    assert set(attentions()) >= LOOPS


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


class Item:
    """A test as ``tier_of`` sees it."""

    def __init__(self, path: str, name: str, *markers: str) -> None:
        self.path, self.name, self.nodeid = Path(__file__).parent / path, name, f"{path}::{name}"
        self.markers = [getattr(pytest.mark, marker).mark for marker in markers]

    def iter_markers(self) -> list[pytest.Mark]:
        return self.markers

"""Every figure of every generated table is that of the golden file."""

from __future__ import annotations

import copy

import pytest

from golden.collect import Golden, collect
from golden.compare import GONE, differences, read


@pytest.fixture(scope="module")
def found() -> Golden:
    return collect()


def test_every_figure_is_equal(found):
    lines = list(differences(read(), found))
    assert not lines, "\n".join([f"{len(lines)} cells differ; the first ones:", *lines[:20]])


def test_tables_that_left_were_there_and_are_gone(found):
    golden = read()
    for where in GONE:
        experiment, table = where.split(" / ")
        assert table in golden[experiment] and table not in found[experiment]


def test_a_changed_figure_is_named(found):
    golden = read()
    changed = copy.deepcopy(found)
    row = changed["results/quickstart"]["task=digits, data_seed=0, patch=2"]["linformer"]
    row["score mean"] *= 1.00001
    del row["rank"]
    first, second = differences(golden, changed)
    assert "linformer / rank: 1 became None" in first + second and "linformer / score mean" in first + second

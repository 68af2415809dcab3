"""Every figure of every generated table is that of the golden file."""

from __future__ import annotations

import copy

import pytest

from golden.collect import Golden, collect
from golden.compare import GONE, differences, is_cut, read


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
    row = changed["results/family"]["task=digits, data_seed=0, patch=2"]["linformer"]
    row["score mean"] *= 1.00001
    parameters = row.pop("parameters")
    first, second = differences(golden, changed)
    assert f"linformer / parameters: {parameters} became None" in first + second and "linformer / score mean" in first + second


def test_an_interval_may_end_at_a_bound_of_the_metric_and_nowhere_else():
    assert is_cut("74.5 ± 53.2", "74.5 (21.2 to 100.0)") and is_cut("43.3 ± 60.9", "43.3 (0.0 to 100.0)")
    assert is_cut("100.0 ± 0.1", "100.0 (99.9 to 100.0)")
    for other in ("74.6 (21.2 to 100.0)", "74.5 (21.2 to 99.0)", "74.5 (0.0 to 100.0)", "74.5 ± 25.5", None):
        assert not is_cut("74.5 ± 53.2", other)

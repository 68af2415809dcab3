"""Every figure of every generated table is that of the golden file."""

from __future__ import annotations

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

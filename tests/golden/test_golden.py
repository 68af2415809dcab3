"""Every figure of every generated table is that of the golden file."""

from __future__ import annotations

from golden.collect import collect
from golden.compare import differences, read


def test_every_figure_is_equal():
    lines = list(differences(read(), collect()))
    assert not lines, "\n".join([f"{len(lines)} cells differ; the first ones:", *lines[:20]])

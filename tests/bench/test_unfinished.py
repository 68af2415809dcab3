"""Reports of files that an interrupted measurement leaves: every cell of the lengths it reached, many of them empty."""

from __future__ import annotations

import pytest

from attn_zoo.bench.experiments import EXPERIMENTS
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.records import describe_environment

BY_LENGTH = [name for name, grid in EXPERIMENTS.items() if not grid.whole_groups]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.process] * (name == "models")) for name in BY_LENGTH])
@pytest.mark.parametrize("reached", ["prepared", "asked once"])
def test_it_can_be_read(name, reached, monkeypatch):
    grid = EXPERIMENTS[name]()
    found = Measurement(name, grid.identity(), grid.protocol, describe_environment("cpu"), grid.facts())
    session = Session(grid, found)

    def stop(cell, probe):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_take", stop)
    if reached == "prepared":
        for cell in grid.groups()[0]:
            found.of(cell)
    else:
        with pytest.raises(KeyboardInterrupt):
            session.run()
    again = Measurement.from_dict(found.to_dict())
    assert "|" in grid.report(again)

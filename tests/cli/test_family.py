"""``experiment=family`` is the whole zoo, and stays so."""

from __future__ import annotations

from attn_zoo import attentions, card
from attn_zoo.cli.config import store_groups
from attn_zoo.cli.plan import plan


def test_family_runs_every_mechanism_of_the_zoo_on_both_tasks_with_every_seed():
    store_groups()
    planned = plan(["-m", "experiment=family"])
    assert planned is not None
    zoo = {name for name in attentions() if card(name).build.__module__.startswith("attn_zoo.attention.")}
    found = {(spec.attention, spec.task, spec.seed) for spec in planned.specs}
    assert found == {(name, task, seed) for name in zoo for task in ("digits", "listops") for seed in (1, 2, 3)}
    assert len(zoo) >= 25

"""``experiment=family`` is the whole zoo, and stays so."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from attn_zoo import attentions, card
from attn_zoo.cli.config import store_groups
from attn_zoo.cli.plan import plan

EXPERIMENT = Path(__file__).parents[2] / "configs" / "experiment" / "family.yaml"


def test_family_is_every_mechanism_of_the_zoo():
    store_groups()
    planned = plan(["-m", "experiment=family", "task=listops", "seed=1"])
    zoo = {name for name in attentions() if card(name).build.__module__.startswith("attn_zoo.attention.")}
    assert {spec.attention for spec in planned.specs} == zoo
    assert len(planned.specs) == len(zoo) >= 25
    swept = OmegaConf.load(EXPERIMENT).hydra.sweeper.params
    assert (swept.task, swept.seed) == ("digits,listops", "1,2,3")

"""``experiment=family`` is the whole zoo, and stays so."""

from __future__ import annotations

from pathlib import Path

from committed import records_in
from omegaconf import OmegaConf

from attn_zoo import attentions
from attn_zoo.cli.compose import plan

EXPERIMENT = Path(__file__).parents[2] / "configs" / "experiment" / "family.yaml"


def test_family_is_every_mechanism_that_its_records_hold():
    planned = plan(["-m", "experiment=family", "task=listops", "seed=1"])
    recorded = {record.spec.attention for record in records_in("family") if record.spec.task == "listops"}
    assert {spec.attention for spec in planned.specs} == recorded <= set(attentions())
    assert len(planned.specs) == len(recorded) >= 25
    swept = OmegaConf.load(EXPERIMENT).hydra.sweeper.params
    assert (swept.task, swept.seed) == ("digits,listops", "1,2,3")

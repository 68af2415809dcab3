"""Runs are planned from one parse of each word and one composition."""

from __future__ import annotations

from typing import Any

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attn_zoo.cli.compose import compose, plan
from attn_zoo.cli.config import changed, in_words
from attn_zoo.cli.words import read_run_words, unfolded

SWEEP = ["-m", "experiment=quickstart", "task=digits,mqar", "attention=softmax,linformer[projected_length=4|8]", "seed=1,2"]


@pytest.fixture
def counts(monkeypatch) -> dict[str, int]:
    """Numbers of compositions and of parsed words."""
    counted = {"composed": 0, "parsed": 0}
    for owner, name, what in ((hydra, "compose", "composed"), (OverridesParser, "parse_override", "parsed")):
        original = getattr(owner, name)

        def count(*given: Any, _original: Any = original, _what: str = what, **named: Any) -> Any:
            counted[_what] += 1
            return _original(*given, **named)

        monkeypatch.setattr(owner, name, count)
    return counted


def test_a_sweep_is_composed_once_and_each_word_is_parsed_once(counts):
    assert len(plan(SWEEP).specs) == 2 * 3 * 2
    of_the_experiment, of_hydra = 3, 2  # its sweep; Hydra parses the name of the experiment and its own mode
    assert counts["composed"] == 1
    assert counts["parsed"] <= len(SWEEP) - 1 + of_the_experiment + of_hydra


def test_a_run_changes_no_other_run():
    composed = compose(read_run_words(["experiment=quickstart"]))
    before = OmegaConf.to_container(composed.config)
    one = changed(composed.config, unfolded(read_run_words(["attention=linformer[projected_length=7]", "budget.steps=3"])))
    other = changed(composed.config, unfolded(read_run_words(["attention=softmax", "seed=5"])))
    assert (one.attention, one.budget.steps) == ({"name": "linformer", "projected_length": "7"}, 3)
    assert (other.attention, other.budget.steps, other.seed) == ({"name": "softmax"}, composed.config.budget.steps, 5)
    assert OmegaConf.to_container(composed.config) == before


def test_options_of_an_experiment_stay_with_the_row(tmp_path):
    """An experiment's file may change options of the task, as Linformer's does."""
    (spec, *_) = plan(["experiment=linformer_figure3_cpu"]).specs
    assert spec.task == "masked_language"
    with pytest.raises(LookupError, match="no option of task digits is called 'files'"), in_words():
        plan(["experiment=linformer_figure3_cpu", "task=digits"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.lenght=3", "task=mqar"], "no option of task mqar is called 'lenght'; did you mean 'length'"),
        (["dials.linformer.projected=3"], "no option under 'dials.linformer' is called 'projected'"),
        (["dials.linformr.projected_length=3"], "no attention is called 'linformr'"),
        (["seed=1,2"], "seed=1,2 has several values, and each value needs a run of its own. Add -m"),
        (["experiment=quickstart,lra"], "experiment= must be one name; got quickstart,lra"),
    ],
)
def test_wrong_words_are_refused(words, message):
    with pytest.raises((ValueError, LookupError), match=message), in_words():
        plan(words)

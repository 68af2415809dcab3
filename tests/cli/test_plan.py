"""Configs that a composer shares between rows and seeds equal those that Hydra composes for each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from attn_zoo.cli.config import in_words, store_groups
from attn_zoo.cli.overrides import unfold_row
from attn_zoo.cli.plan import Composer

PROFILE = ("experiment=profile_encoder", "task=mqar")
RUNS = [
    (*PROFILE, "attention=softmax", "seed=1"),
    (*PROFILE, "attention=linformer", "seed=2"),
    (*PROFILE, "attention='linformer:sdpa[projected_length=16,projected_lengths=8+8]'", "seed=3"),
    (*PROFILE, "attention=linformer", "attention.projected_length=null", "attention.sharing=headwise"),
    (*PROFILE, "attention='softmax+linformer[projected_length=16]'", "seed=1"),
    (*PROFILE, "attention.window=9", "attention=longformer", "attention.window=5"),
    (*PROFILE, "attention=performer", "dials.performer.features=8"),
    (*PROFILE, "attention=softmax", "attention=linformer"),
    (*PROFILE, "attention=linformer", "attention.projected_length=8", "++attention.projected_length=4"),
    (*PROFILE, "attention=softmax", "records='runs/${hydra.runtime.choices.attention}'"),
    (*PROFILE, "attention=linformer", "records='runs/${hydra.runtime.choices.attention}'"),
    ("task=digits", "attention=softmax"),
    ("task=digits", "attention=linformer", "seed=5", "budget.steps=3"),
    ("task=digits", "seed=5"),
    ("task=digits", "attention=linformer", "seed=2", "seed=1"),
    ("experiment=family", "seed=5"),
]


@pytest.fixture
def composed() -> Iterator[Any]:
    """Function that composes with Hydra, within its context."""
    store_groups()
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        yield lambda words: hydra.compose("run", overrides=words, return_hydra_config=True)


def plain(config: DictConfig) -> Any:
    """Values of a config without Hydra's own, which name the words, and with the folder of records resolved."""
    values = OmegaConf.to_container(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]))
    return values, config.records


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "from the last"])
def test_a_shared_config_is_what_hydra_composes(composed, order):
    composer = Composer()
    for run in RUNS[::order]:
        words = unfold_row(run)
        assert plain(composer.config(words)) == plain(composed(words)), run


def test_rows_and_seeds_are_composed_once(composed, monkeypatch):
    asked, composer, compose = list[str](), Composer(), hydra.compose

    def counted(name: str, **given: Any) -> DictConfig:
        asked.append(name)
        return compose(name, **given)

    monkeypatch.setattr(hydra, "compose", counted)
    for row in ("softmax", "linformer", "performer"):
        for seed in (1, 2):
            assert composer.config([*PROFILE, f"attention={row}", f"seed={seed}"]).seed == seed
    assert len(asked) == 1


def test_a_config_is_a_copy(composed):
    composer = Composer()
    words = [*PROFILE, "attention=linformer"]
    first = composer.config(words)
    first.attention.projected_length, first.budget.steps = 7, 7
    assert plain(composer.config(words)) == plain(composed(words))


def test_options_that_other_words_give_to_a_row_stay(composed):
    """An experiment's file may change options of the row, as ``++`` does here."""
    composer = Composer()
    for row in ("linformer", "linformer_window"):
        words = ["task=mqar", f"attention={row}", "++attention.projected_length=8"]
        assert plain(composer.config(words)) == plain(composed(words))
        assert composer.config(words).attention.projected_length == 8


@pytest.mark.parametrize("words", [["attention=linformr"], ["attention=linformer", "attention.projected=3"]], ids=" ".join)
def test_a_wrong_name_is_refused_in_the_same_words(words, composed):
    composer = Composer()
    composer.config(["task=mqar", "attention=softmax"])
    said = []
    for compose in (composer.config, composed):
        with pytest.raises(ValueError, match="Known: ") as refused, in_words():
            compose(["task=mqar", *words])
        said.append(str(refused.value))
    assert said[0] == said[1]

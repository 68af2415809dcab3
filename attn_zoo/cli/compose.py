"""Composition of the runs that a command line asks for. Hydra composes the experiment once; each run changes some values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import hydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from attn_zoo.cli.bracket import LOWER, Trial, rungs
from attn_zoo.cli.config import Settings, changed, locations_from, settings_from, spec_from, store_groups
from attn_zoo.cli.launch import check_launch
from attn_zoo.cli.plan import Job, Plan
from attn_zoo.cli.search import bracketed, study_of
from attn_zoo.cli.words import Word, read_run_words, unfolded
from attn_zoo.plugin_imports import apart
from attn_zoo.records import RunSpec
from attn_zoo.registry import task_card
from attn_zoo.runner.weights import KeptWeights

_FLAGS = ("-m", "--multirun")
_OPEN = ("attention", "task", "dials", "tuning.space", "tuning.dials")
"""Parts of a config in which any key is allowed. Their keys are checked later."""


class Composed(NamedTuple):
    """Config of an experiment and its launcher."""

    config: DictConfig
    several: bool
    """True if the experiment itself defines several runs, so that the word ``-m`` is not needed."""
    swept: tuple[str, ...]
    """Words ``KEY=VALUE,...`` for the keys that have several values in the experiment."""


def compose(given: Iterable[Word]) -> Composed:
    """Return the config of the experiment and of the launcher that the command-line words ``experiment=NAME`` and ``launch=NAME``
    select. Words for settings of runs are not used here; ``changed`` applies them later.

    Raises:
        ValueError: ``experiment`` or ``launch`` has several values.
        HydraException: there is no such experiment or launcher.
    """
    named = [word for word in given if word.key in ("experiment", "launch")]
    if several := [word for word in named if word.swept]:
        raise ValueError(f"{several[0].key}= must be one name; got {several[0].text}. Run one command for each name")
    store_groups()
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        config = hydra.compose("run", overrides=[f"{word.key}={word.text}" for word in named], return_hydra_config=True)
    several, params = config.hydra.mode == RunMode.MULTIRUN, dict(config.hydra.sweeper.get("params") or {})
    with open_dict(config):
        del config["hydra"]  # its copies for each run would take most of the time
    for part in (OmegaConf.select(config, key) for key in _OPEN):
        OmegaConf.set_struct(part, False)
    return Composed(config, several, tuple(f"{key}={value}" for key, value in params.items()))


def plan(words: Sequence[str]) -> Plan:
    """Return the plan of all runs that a command line asks for.

    Args:
        words: words of the form KEY=VALUE. A value of ``attention`` is a mechanism, with options in brackets, such as
            ``linformer[projected_length=32]``. The word ``-m`` permits several runs.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: a run or one end of a search range is invalid.
    """
    if flags := [word for word in words if word.startswith("-") and word not in _FLAGS]:
        raise ValueError(f"settings of runs must be written KEY=VALUE; got {flags[0]!r}. See attn-zoo run --help")
    given = read_run_words(word for word in words if word not in _FLAGS)
    composed = compose(given)
    with apart("a plugin", "when the runs were planned"):
        return plan_runs(given, composed, several=any(word in _FLAGS for word in words))


def plan_runs(given: Sequence[Word], composed: Composed, *, several: bool = False) -> Plan:
    """Return the plan of all runs of an experiment, after the words of the command line (such as ``seed=1,2``) have changed its
    config.

    Args:
        several: True if the words may give several values for a key, as with ``-m``.
    """
    fixed, swept = unfolded(word for word in given if not word.swept), [word for word in given if word.swept]
    config = changed(composed.config, fixed)
    settings = settings_from(config)
    check_launch(settings)
    if settings.tuning.space:
        study = study_of(spec_from(config), locations_from(config), settings.tuning, [*fixed, *swept])
        shortest = bracketed(study, Trial(LOWER, rungs(study.base.budget.steps)[0])) if not study.trials else study.base
        _check_weights(settings, [shortest])
        return Plan((), settings, study)
    if several or composed.several:
        parts = [(*composed.swept, *part.split()) for part in settings.sweeps or [""]]
        configs = [config for part in parts for config in _sweep(read_run_words(part), given, composed.config)]
    elif swept:
        raise ValueError(f"{swept[0].key}={swept[0].text} has several values, and each value needs a run of its own. Add -m")
    else:
        configs = [config]
    jobs = [Job(spec_from(config), locations_from(config)) for config in configs]
    _check_weights(settings, [job.spec for job in jobs])
    return Plan(tuple({job.run_id: job for job in jobs}.values()), settings)


def _check_weights(settings: Settings, specs: Iterable[RunSpec]) -> None:
    """Raise a ValueError if weights are to be written after a step that a run does not have."""
    for spec in specs:
        KeptWeights(settings.weights.folder, settings.weights.after, spec, task_card(spec.task).version)


def _sweep(written: Sequence[Word], typed: Sequence[Word], config: DictConfig) -> list[DictConfig]:
    """Return the configs of all runs of a grid. A typed word replaces the experiment's word with the same key."""
    keys = {word.key for word in typed}
    words = [*(word for word in written if word.key not in keys), *typed]
    grid = product(*([word._replace(value=value) for value in word.values()] for word in words))
    return [changed(config, unfolded(run)) for run in grid]

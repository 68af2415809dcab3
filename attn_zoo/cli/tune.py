"""``attn-zoo tune``: as many trials for each mechanism, then its best settings with seeds that no trial had."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from attn_zoo.cli.config import store_groups
from attn_zoo.cli.plan import Plan, RefusedSearchError, plan
from attn_zoo.cli.run import in_words, run_command, scratch_folder
from attn_zoo.cli.search import Study
from attn_zoo.cli.trial import settings
from attn_zoo.leaderboard import leaderboard
from attn_zoo.leaderboard.heatmap.terminal import colours_here
from attn_zoo.leaderboard.reproduce import command as command_of
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.records import RunSpec, Store, Tuning
from attn_zoo.records.tuning import best_of, ledger, trials_of

_OWN = ("trials", "seeds")
USAGE = """usage: attn-zoo tune attention=NAME,... task=NAME,... [experiment=NAME] [trials=N] [seeds=1,2,3] [KEY=VALUE ...]

Search learning rate and own dial of each mechanism on each task by validation score, with as many trials for each;
then train the best settings with seeds that no trial had, and print the leaderboard. Trials and runs are recorded, and
the same command goes on from there.

  experiment=   a search that is written down, such as profile_encoder, with its attentions, tasks, sizes and ranges
  trials=N      trials of each mechanism on each task (unless said, those of the experiment)
  seeds=1,2,3   of the runs with the best settings
  KEY=VALUE     as for attn-zoo run: budget.steps=1000, level=cpu, launch=joblib, records=FOLDER ...
  KEY=RANGE     searched in place of the usual: 'budget.learning_rate=tag(log,interval(0.001,0.01))',
                'attention.projected_length=choice(8,16)'; a single value takes the setting out of the search"""


@dataclass(frozen=True, slots=True)
class Request:
    """What was typed, taken apart."""

    experiment: str
    """Search that the trials belong to."""
    searches: tuple[tuple[str, ...], ...]
    """Words of each search beside the others: attention, task and, of a row of a curve, an option of the attention."""
    rest: tuple[str, ...]
    """For Hydra, of trials and runs alike."""
    ranges: tuple[str, ...]
    """For Hydra, of trials alone."""
    seeds: tuple[int, ...]
    named: bool
    """Whether the attentions were typed, and not taken from the experiment."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The best settings of a study."""

    ledger: Tuning
    best: RunSpec
    """Spec of the best trial."""


def tune(words: Sequence[str]) -> int:
    """Do what was typed after ``attn-zoo tune``.

    Returns:
        Exit status: 0, or 1 where workers died more often than they are started again.

    Raises:
        ValueError: a word is wrong, or no trial of a study has a score.
    """
    if not words or set(words) & {"-h", "--help"}:
        print(USAGE)
        return 0
    store_groups()
    with in_words():
        asked = read_request(words)
        planned = _all_planned(asked)  # so that nothing starts if one is wrong
    command = (f"{sys.argv[0]} tune", *words)
    with scratch_folder():
        status = _do(planned, asked, command)
    if status == 0:
        print(f"\n{leaderboard(planned[0][1].records, colours=colours_here())}")
    return status


def _do(planned: Sequence[tuple[list[str], Plan]], asked: Request, command: Sequence[str]) -> int:
    """The trials of each search, then its runs with the best settings."""
    for arguments, searched in planned:
        if status := run_command(arguments, command=command):
            return status
        assert searched.study is not None
        found = _found(searched.study, searched.records)
        if status := run_command(_best(asked, found), command=command, ledger=found.ledger):
            return status
    return 0


def read_request(words: Sequence[str]) -> Request:
    given = OverridesParser.create().parse_overrides([word for word in words if word not in ("-m", "--multirun")])
    by_key = {str(override.get_key_element()): override for override in given}
    for key in ("attention", "task", "settings"):
        if f"tuning.{key}" in by_key:
            advice = "on the command line write attention=NAME,... task=NAME,..."
            raise ValueError(f"tuning.{key} is what an experiment writes down; {advice}")
    own = {key: _values(by_key.pop(key)) for key in ("experiment", "attention", "task", *_OWN) if key in by_key}
    (experiment,) = own.pop("experiment", ["tune"])
    tuning = _written_down(experiment)
    named = "attention" in own
    for key in ("attention", "task"):
        own[key] = own.get(key) or list(tuning[key])
        if not own[key]:
            raise ValueError(f"{key}= is missing; attn-zoo tune attention=linformer,softmax task=digits")
    seeds = tuple(_count("seeds", value) for value in own.get("seeds", ["1", "2", "3"]))
    rest = [str(override.input_line) for override in by_key.values() if not override.is_sweep_override()]
    if "trials" in own:
        rest.append(f"hydra.sweeper.n_trials={_count('trials', ','.join(own['trials']))}")
    ranges = [str(override.input_line) for override in by_key.values() if override.is_sweep_override()]
    searches = [
        (f"attention={attention}", f"task={task}", *setting)
        for task, attention in product(own["task"], own["attention"])
        for setting in _settings(attention, tuning, by_key)
    ]
    return Request(experiment, tuple(searches), tuple(rest), tuple(ranges), seeds, named)


def _settings(attention: str, tuning: DictConfig, given: Collection[str]) -> list[tuple[str, ...]]:
    """Words of each row of the curve that an experiment writes down for an attention; one without words where it draws none."""
    rows = tuning.settings.get(attention) or {}
    found = [(f"attention.{name}={hydra_value(value)}",) for name, values in rows.items() for value in values]
    return [words for words in found if words[0].partition("=")[0] not in given] or [()]


def _written_down(experiment: str) -> DictConfig:
    """The search that an experiment writes down.

    Raises:
        ValueError: the experiment is no search.
    """
    with hydra.initialize_config_module("attn_zoo.configs", version_base="1.3"):
        tuning = hydra.compose("run", overrides=[f"experiment={experiment}"]).tuning
    if not tuning.space:
        raise ValueError(f"experiment={experiment} searches nothing; attn-zoo run -m experiment={experiment} does its runs")
    return tuning


def _values(override: Override) -> list[str]:
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.get_value_element_as_str()]


def _count(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(f"{key} takes whole numbers; got {value!r}") from error


def _all_planned(asked: Request) -> list[tuple[list[str], Plan]]:
    """Every search. Of a list that the experiment writes down, mechanisms that refuse the task are named and left out.

    Raises:
        ValueError: a word is wrong, or a mechanism that was asked for by name refuses the task.
    """
    found, refused = [], []
    for search in asked.searches:
        try:
            found.append(_planned(search, asked))
        except ValueError as error:
            if asked.named or not isinstance(error, RefusedSearchError):
                raise
            refused.append(f"{' '.join(search)} is left out: {error}")
    if not found:
        raise ValueError(refused[0])
    for words in refused:
        print(words, flush=True)
    return found


def _planned(search: Sequence[str], asked: Request) -> tuple[list[str], Plan]:
    """Words of the trials of a search, and what they mean."""
    words = ["-m", f"experiment={asked.experiment}", *search, *asked.rest, *asked.ranges]
    planned = plan(words)
    assert planned is not None and planned.study is not None, "the experiment is a search"
    taken = planned.specs[0].seed
    if taken in asked.seeds:
        raise ValueError(f"seed {taken} is that of the trials, by which settings are chosen; runs with the best have others")
    return words, planned


def _found(study: Study, records: str) -> _Found:
    """What the trials of a study have found, which is also printed."""
    known = Store(records).load()[0]
    drawn = ledger(known, study.id)
    best = best_of(trials_of(known, study.id))
    assert best is not None, "there is no ledger without one"
    failed = f" ({drawn.failed} without a score)" if drawn.failed else ""
    print(
        f"study {study.id}: best of {drawn.trials} trials{failed} is trial {drawn.best_trial} with "
        f"{settings(best.spec, drawn)}: valid {best.task_card['metric']} {drawn.best_valid:.4g}",
        flush=True,
    )
    return _Found(drawn, best.spec)


def _best(asked: Request, found: _Found) -> list[str]:
    """Words of the runs with the best settings: the whole spec of the best trial, and what of the request is no part of a spec."""
    spec = shlex.split(command_of(found.best, asked.seeds))[2:]
    said = {word.partition("=")[0] for word in spec}
    beside = [word for word in asked.rest if not word.startswith(("hydra.", "hydra/", "seed=", "tuning.", "level=", "dials."))]
    beside = [word for word in beside if word.partition("=")[0] not in said]
    return [*(["-m"] if "-m" not in spec else []), *spec, *beside, "report=false"]

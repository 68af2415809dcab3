"""``attn-zoo run``: plan all runs, execute them, record them, and print the leaderboard.

Hydra composes the experiment once; each run changes some values.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from importlib import resources
from itertools import count, product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from attn_zoo.cli.ahead import PLAN, ahead
from attn_zoo.cli.bracket import LOWER, Trial, next_trials, rungs
from attn_zoo.cli.config import COMPOSED, Composed, Settings, compose, in_words
from attn_zoo.cli.job import Command, Job, one_run
from attn_zoo.cli.launch import in_short, is_death_of_a_worker, is_of_a_launcher, launch
from attn_zoo.cli.progress import tracked
from attn_zoo.cli.search import Study, bracket_rates, bracket_results, bracketed, draws, longer_id, objective, study_of, trial_of
from attn_zoo.cli.words import MULTIRUN, Word, changed, job_from, read_run_words, settings_from, unfolded
from attn_zoo.contract.options import left_out
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard import leaderboard, tables
from attn_zoo.leaderboard.heat_picture import heat_map_svg
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.plugin_files import exported_plugins, plugin_words
from attn_zoo.plugin_imports import apart
from attn_zoo.process_state import flushed_denormals
from attn_zoo.records import RunRecord, RunSpec, Store, Tuning
from attn_zoo.registry import attentions, build_task, card, not_causal, task_card, task_names
from attn_zoo.rows import FORM, RowName
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.runner.weights import KeptWeights
from attn_zoo.terminal import colours_here, columns, show, wrap

PICTURE = "leaderboard.svg"
_OF_THE_COMMAND = frozenset(each.name for each in fields(Settings))
"""Keys, or groups of keys, of the whole command."""
_OWN = ("seed", "implementation", "device", "precision")
"""Keys of a run that are not in a group such as ``budget``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs that a command asks for, and the settings of the command."""

    jobs: tuple[Job, ...]
    """Jobs of the runs. A hyperparameter search (``study``) has none, because its trials are drawn later."""
    settings: Settings
    study: Study | None = None
    """Hyperparameter search whose trials are the runs; None if the runs are not trials."""

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """Specifications of the runs. For a hyperparameter search, there is one specification, in which each searched key has the
        first value of its range."""
        return (self.study.base,) if self.study else tuple(job.spec for job in self.jobs)

    def left(self) -> list[Job]:
        """Return the runs that do not have a record with a final status yet."""
        store = Store(self.settings.records)
        return [job for job in self.jobs if not store.finished(job.run_id, job.tuning)]

    def missing(self) -> int:
        """Return the number of runs without a record of a result or a failure. For a search, the number is 0, because trials are
        drawn later."""
        store = Store(self.settings.records)
        return sum(not store.has(job.run_id) for job in self.jobs)

    def read_data(self) -> None:
        """Read the published data of all runs that are still to do, so that missing files are found before the first run starts.

        Raises:
            MissingDataError: data are missing; the message says which files to put where.
            DamagedDataError: a file of the data is damaged.
            ValueError: the data cannot be split as the options ask.
        """
        wanted = [self.study.job] if self.study else self.left()
        data: list[tuple[str, Mapping[str, Any]]] = []
        for job in wanted:
            one = (job.spec.task, {**job.spec.task_options, **job.locations})
            if task_card(job.spec.task).locations and one not in data:
                data.append(one)
        for task, options in tracked(data, "reading data") if data else data:
            with apart(f"task {task}", "when its data were read"):
                build_task(task, **options).examples("test")

    def announcement(self) -> str:
        """Return the line that is printed first: the number of runs or trials, how many are recorded already, and the folder of
        records."""
        to = f"records go to {self.settings.records!r}"
        if study := self.study:
            known = len(study.recorded(self.settings.records))
            searched = ", ".join(f"{key}={text}" for key, text in sorted(study.space.items()))
            trials = f"{study.trials} trial{'s' * (study.trials != 1)}" if study.trials else "bracketed search"
            what = f"{trials} of {study.base.attention} on {study.base.task} over {searched}"
            return f"study {study.id}: {what}; {known} {'of them ' if study.trials else 'trials '}recorded already; {to}"
        total, left = len(self.jobs), len(self.left())
        return f"{total} run{'s' * (total != 1)}, {total - left} of them recorded already, {left} to do; {to}"


def plan(words: Sequence[str]) -> Plan:
    """Return the plan of all runs that a command line asks for.

    Args:
        words: words of the form KEY=VALUE. A value of ``attention`` is a mechanism, with options in brackets, such as
            ``linformer[projected_length=32]``. The word ``-m`` permits several runs.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: a run or one end of a search range is invalid.
    """
    if flags := [word for word in words if word.startswith("-") and word not in MULTIRUN]:
        raise ValueError(f"settings of runs must be written KEY=VALUE; got {flags[0]!r}. See attn-zoo run --help")
    given = read_run_words(word for word in words if word not in MULTIRUN)
    composed = compose(word for word in given if word.key in COMPOSED)
    with apart("a plugin", "when the runs were planned"):
        return plan_runs(given, composed, several=any(word in MULTIRUN for word in words))


def plan_runs(given: Sequence[Word], composed: Composed, *, several: bool = False) -> Plan:
    """Return the plan of all runs of an experiment, after the words of the command line (such as ``seed=1,2``) have changed its
    config.

    Args:
        several: True if the words may give several values for a key, as with ``-m``.
    """
    given = list({word.key: word for word in given}.values())  # of words with the same key, the last counts
    fixed, swept = unfolded(word for word in given if not word.swept), [word for word in given if word.swept]
    if whole := [word for word in swept if word.key.partition(".")[0] in _OF_THE_COMMAND]:
        raise ValueError(
            f"{whole[0].key}= must be one value, because all runs of a command share it; got {whole[0].key}={whole[0].text}. Put a "
            "text with commas in quotes, also in the shell: 'KEY=\"A,B\"'"
        )
    config = changed(composed.config, fixed)
    settings = settings_from(config)
    settings.check()
    if settings.tuning.space:
        study = study_of(job_from(config), settings.tuning, [*fixed, *swept])
        shortest = bracketed(study, Trial(LOWER, rungs(study.base.budget.steps)[0])) if not study.trials else study.job
        _check_weights(settings, [shortest])
        return Plan((), settings, study)
    if idle := [word.key for word in fixed if word.key.startswith("tuning.")]:
        raise ValueError(f"{idle[0]}= must go with a search, but nothing is searched. Add experiment=tune, or leave {idle[0]}= out")
    if several or composed.several:
        parts = [(*composed.swept, *part.split()) for part in settings.sweeps or [""]]
        configs = [config for part in parts for config in _sweep(read_run_words(part), given, composed.config)]
    elif swept:
        raise ValueError(f"{swept[0].key}={swept[0].text} has several values, and each value needs a run of its own. Add -m")
    else:
        configs = [config]
    jobs = list(map(job_from, configs))
    _check_weights(settings, jobs)
    made: dict[str, Job] = {}
    for job in jobs:
        if (other := made.setdefault(job.run_id, job)).locations != job.locations:
            raise ValueError(
                "the runs of a command must differ in more than the location of their data, because the id of a run does not name "
                f"it; got {dict(other.locations)} and {dict(job.locations)}. Run one command for each, with its own records=FOLDER"
            )
    return Plan(tuple(made.values()), settings)


def _check_weights(settings: Settings, jobs: Iterable[Job]) -> None:
    """Raise a ValueError if weights are to be written after a step that a run does not have."""
    for spec in (job.spec for job in jobs if settings.weights.after):
        KeptWeights(settings.weights.folder, settings.weights.after, spec, task_card(spec.task).version)


def _sweep(written: Sequence[Word], typed: Sequence[Word], config: DictConfig) -> list[DictConfig]:
    """Return the configs of all runs of a grid. A typed word replaces the experiment's word with the same key."""
    keys = {word.key for word in typed}
    words = [*(word for word in written if word.key not in keys), *typed]
    grid = product(*([word._replace(value=value) for value in word.values()] for word in words))
    return [changed(config, unfolded(run)) for run in grid]


@flushed_denormals()  # before PyTorch starts its threads, which inherit it
def run_command(words: Sequence[str]) -> int:
    """Check all runs that the words of the command line ask for, execute them, and print the leaderboard.

    Returns:
        The exit status: 1 if a run ended without a score or workers died, otherwise 0. An unsupported run is ignored unless it is
        the only run of the command.

    Raises:
        ValueError: a key, value or name in the words is wrong; the message lists the right ones.
    """
    with in_words():
        if {"-h", "--help"} & set(words):
            print(run_help([word for word in words if not word.startswith("-") or word in MULTIRUN]))
            return 0
        planned = plan([word for word in words if word != PLAN])
    if PLAN in words:
        print(ahead([planned]))
        return 0
    return carry_out(planned, ("attn-zoo", "run", *words, *plugin_words()))


def carry_out(planned: Plan, words: Sequence[str]) -> int:
    """Execute a plan, and print the leaderboard unless the runs are trials of a search.

    Args:
        words: the command as typed, which the records store.

    Returns:
        The exit status, as in ``run_command``.

    Raises:
        OSError: records cannot be written, or a launcher failed.
    """
    settings = planned.settings
    Store(settings.records).check_writable()
    Store(settings.records).clear_leftovers()
    planned.read_data()
    show(planned.announcement())
    records = _executed(planned, Command(settings, tuple(words), plugins=tuple(exported_plugins())))
    if settings.report and not planned.study:  # trials are not rows
        _report(settings)
    if missing := planned.missing():
        runs = "1 run is" if missing == 1 else f"{missing} runs are"
        show(f"{runs} not recorded: a process is still at work or has ended; run the same command again")
    return 1 if records is None else exit_status(records)


def exit_status(records: Sequence[RunRecord | None]) -> int:
    """Return the exit status of a command with these records: 1 if a run has no score, otherwise 0. An unsupported run is ignored
    unless it is the only run."""
    outcomes = [record.status for record in records if record is not None]
    return int(outcomes == ["refused"] or bool(set(outcomes) - {"done", "refused"}))


def run_help(words: Sequence[str] = ()) -> str:
    """Return the help text of ``attn-zoo run``: how mechanisms with options are written, the config groups, and every key.

    Args:
        words: words of the command line. They describe a run, and the help shows the defaults of this run.

    Raises:
        ValueError, HydraException, OmegaConfBaseException: a word is wrong.
    """
    planned = plan(words)
    spec, settings = planned.specs[0], planned.settings
    found = {"attention": attentions(), "task": task_names(), "experiment": _configs("experiment"), "launch": _configs("launch")}
    groups = "\n".join(_keys(name, names, ", ") for name, names in found.items())
    prefixes = {name: f"{name}." * ("+" in spec.attention) for name in RowName(spec.attention).mechanisms}
    options = {f"{prefix}{key}": value for name, prefix in prefixes.items() for key, value in _left_out(card(name).options).items()}
    parts = {
        f"attention={spec.attention} with": _pairs("attention", {**options, **spec.options}),
        f"task={spec.task} with": _pairs("task", {**_left_out(task_card(spec.task).options), **spec.task_options}),
        "network": _pairs("model", asdict(spec.model)),
        "training": [*_pairs("budget", asdict(spec.budget)), *_pairs("", {key: getattr(spec, key) for key in _OWN})],
        "command": [*_pairs("", asdict(settings)), *_UNSET],
    }
    keys = "\n".join(_keys(title, pairs, "  ") for title, pairs in parts.items())
    return (
        "usage: attn-zoo run [-m] [--plan] [attention=ROW] [task=NAME]\n"
        "                    [experiment=NAME] [launch=NAME] [KEY=VALUE ...]\n\n"
        + wrap(
            "Train a mechanism on a task and test it. With -m, keys may have several values (KEY=a,b); each combination is a run. "
            f"ROW is {FORM}. Options may also be words of their own: attention=NAME attention.OPTION=VALUE or, in a sweep, "
            "dials.NAME.OPTION=VALUE for the mechanism NAME. plugin=PATH loads a file or folder that registers mechanisms or "
            "tasks, without installing a package. --plan prints runs and core hours by task and configuration, and starts nothing. "
            "Exit status: 0 for success; 1 if a run failed, diverged, timed out or ran out of memory, or if the only run is "
            "unsupported; 2 for bad input."
        )
        + f"\n\nnames by key:\n{groups}\n\nkeys and defaults (task=NAME attention=NAME --help prints those of others):"
        f"\n{keys}"
    )


_UNSET = (
    *("weights.after=[STEP,...]", "callback=FILE.py:NAME", "data.root=$ATTN_ZOO_DATA"),
    *("workers=CORES (with launch=)", "plugin=PATH"),
)
"""Keys without a default value, as written in the help."""


def _pairs(prefix: str, values: Mapping[str, Any]) -> list[str]:
    """List ``key=value`` for every key that has a value; keys of nested dictionaries are joined by dots."""
    found = []
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            found += _pairs(name, value)
        elif value not in (None, "", []):
            found.append(f"{name}={hydra_value(value)}")
    return found


def _left_out(options: type) -> dict[str, Any]:
    """Return the defaults of those options that a spec leaves out at their defaults, as plain data."""
    defaults = {option.name: option.default for option in fields(options) if left_out(option, option.default)}
    return {name: value.name if isinstance(value, Enum) else value for name, value in defaults.items()}


def _keys(title: str, words: Sequence[str], between: str) -> str:
    lines = textwrap.wrap(between.join(words), columns() - 4, break_on_hyphens=False, break_long_words=False)
    return "\n".join([f"  {title}", *(f"    {line}" for line in lines)])


def _configs(group: str) -> list[str]:
    folder = resources.files("attn_zoo.configs") / group
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _executed(planned: Plan, command: Command) -> Sequence[RunRecord | None] | None:
    """Execute the runs and return their records. Return [] for a search, whose trials may fail, and None if workers died before a
    run."""
    if not (planned.study or planned.left()):  # no run is left that would need workers
        command = replace(command, settings=replace(command.settings, launcher=None))
    try:
        if planned.study:
            _search(planned.study, command)
            return []
        return _records(command, planned.jobs)
    except Exception as error:
        if is_death_of_a_worker(error):
            said = f"a worker process ended before it began its run ({in_short(error)}); recorded runs are kept"
            print(terminal(f"attn-zoo: {said}, and the same command does the missing runs"), file=sys.stderr)
            return None
        if is_of_a_launcher(error):
            raise OSError(f"the launcher failed: {str(error).strip()}") from error
        raise


def _records(command: Command, jobs: Sequence[Job]) -> list[RunRecord | None]:
    """Execute jobs, with the launcher if one is selected. Return their records in the order of ``jobs``. An entry is None if
    another process is executing the run."""
    if command.settings.kind is not None:
        return launch(command, jobs)
    command.begin()
    return [one_run(command, job) for job in jobs]


def _search(study: Study, command: Command) -> None:
    """Execute the trials of a study, batch by batch; recorded trials are not repeated."""
    if study.tuning.sampler == "bracket":
        _bracket(study, command)
        return
    drawing, number = draws(study), 0
    scores: Any = None
    with suppress(StopIteration):  # raised once all trials are drawn
        while True:
            trials = enumerate(drawing.send(scores), number)
            jobs = [replace(study.run_with(values), tuning=Tuning(study.id, study.space, trial=at)) for at, values in trials]
            scores = [objective(record) for record in _records(command, jobs)]
            number += len(jobs)


def _bracket(study: Study, command: Command) -> None:
    """Execute the trials of a learning-rate search. The results so far decide which trials come next."""
    store, cap = Store(command.settings.records), study.base.budget.steps
    known = study.recorded(command.settings.records)
    while trials := next_trials(bracket_results(study, known), cap, bracket_rates(study)):
        taken = {record.tuning.trial for record in known if record.tuning}
        free = (at for at in count() if at not in taken)  # also of trials whose records were deleted
        jobs = [
            replace(bracketed(study, trial), tuning=Tuning(study.id, study.space, trial=at), longer=longer_id(study, trial))
            for trial, at in zip(trials, free, strict=False)
        ]
        records = _records(command, jobs)
        for record in records:
            objective(record)  # refuses trials that another process is executing
        known += [record for record in records if record is not None]
    for record in known:  # states that no longer trial went on from
        if (unused := longer_id(study, trial_of(study, record))) is not None:
            Checkpoint(store.root, unused).remove()


def _report(settings: Settings) -> None:
    """Print the leaderboard. With ``overview``, print only its first table, and save this table as a picture."""
    print(f"\n{leaderboard(settings.records, overview=settings.overview, colours=colours_here())}")
    if not settings.overview:
        return
    made = tables(Store(settings.records).load()[0])
    picture = Path(settings.records) / PICTURE
    picture.write_text(heat_map_svg(heat_map(made, not_causal())), encoding="utf-8")
    print()
    show(f"Picture: {picture}. Verdicts, costs and equal budgets: attn-zoo leaderboard --records {settings.records}")

"""``attn-zoo run``: plan all runs, execute them with a launcher, record them, and print the leaderboard."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from attn_zoo.cli.ahead import PLAN, ahead
from attn_zoo.cli.bracket import next_trials
from attn_zoo.cli.config import Settings, in_words
from attn_zoo.cli.launch import in_short, is_death_of_a_worker, is_of_a_launcher, launch
from attn_zoo.cli.plan import Job, Plan, plan
from attn_zoo.cli.search import Study, bracket_rates, bracket_results, bracketed, draws, longer_id, objective, trial_of
from attn_zoo.escapes import terminal
from attn_zoo.leaderboard import leaderboard, tables
from attn_zoo.leaderboard.heat_costs import recorded_columns
from attn_zoo.leaderboard.heat_picture import heat_map_svg
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.overview import colours_here
from attn_zoo.leaderboard.reproduce import hydra_value
from attn_zoo.plugin_files import exported_plugins, plugin_words
from attn_zoo.process_state import flushed_denormals
from attn_zoo.records import RunRecord, Store, Tuning
from attn_zoo.records.tuning import trials_of
from attn_zoo.registry import attentions, task_names
from attn_zoo.rows import FORM
from attn_zoo.runner.checkpoint import Checkpoint
from attn_zoo.terminal import columns, show, wrap

PICTURE = "leaderboard.svg"
_OWN = ("seed", "implementation", "device", "precision")
"""Keys of a run that are not in a group such as ``budget``."""


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
            print(run_help([word for word in words if not word.startswith("-")]))
            return 0
        planned = plan([word for word in words if word != PLAN])
    if PLAN in words:
        print(ahead([planned]))
        return 0
    return carry_out(planned, ("attn-zoo", "run", *words, *plugin_words()))


def carry_out(planned: Plan, command: Sequence[str]) -> int:
    """Execute a plan, and print the leaderboard unless the runs are trials of a search.

    Args:
        command: the command as typed, which the records store.

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
    records = _executed(replace(planned, command=tuple(command), folder=os.getcwd(), plugins=tuple(exported_plugins())))
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
    parts = {
        f"attention={spec.attention} with": _pairs("attention", spec.options),
        f"task={spec.task} with": _pairs("task", spec.task_options),
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


def _keys(title: str, words: Sequence[str], between: str) -> str:
    lines = textwrap.wrap(between.join(words), columns() - 4, break_on_hyphens=False, break_long_words=False)
    return "\n".join([f"  {title}", *(f"    {line}" for line in lines)])


def _configs(group: str) -> list[str]:
    folder = resources.files("attn_zoo.configs") / group
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _executed(planned: Plan) -> Sequence[RunRecord | None] | None:
    """Execute the runs and return their records. Return [] for a search, whose trials may fail, and None if workers died before a
    run."""
    if not (planned.study or planned.left()):  # no run is left that would need workers
        planned = replace(planned, settings=replace(planned.settings, launcher=None))
    try:
        if planned.study:
            _search(planned.study, planned)
            return []
        return launch(planned, planned.jobs)
    except Exception as error:
        if is_death_of_a_worker(error):
            said = f"a worker process ended before it began its run ({in_short(error)}); recorded runs are kept"
            print(terminal(f"attn-zoo: {said}, and the same command does the missing runs"), file=sys.stderr)
            return None
        if is_of_a_launcher(error):
            raise OSError(f"the launcher failed: {str(error).strip()}") from error
        raise


def _search(study: Study, planned: Plan) -> None:
    """Execute the trials of a study, batch by batch; recorded trials are not repeated."""
    if study.tuning.sampler == "bracket":
        _bracket(study, planned)
        return
    drawing, number = draws(study), 0
    scores: Any = None
    with suppress(StopIteration):  # raised once all trials are drawn
        while True:
            trials = enumerate(drawing.send(scores), number)
            jobs = [Job(study.spec(values), study.locations, Tuning(study.id, study.space, trial=at)) for at, values in trials]
            scores = [objective(record) for record in launch(planned, jobs)]
            number += len(jobs)


def _bracket(study: Study, planned: Plan) -> None:
    """Execute the trials of a learning-rate search. The results so far decide which trials come next."""
    store, cap = Store(planned.settings.records), study.base.budget.steps
    known = trials_of(store.load(study.base.task, study.base.attention)[0], study.id)
    while trials := next_trials(bracket_results(study, known), cap, bracket_rates(study)):
        taken = {record.tuning.trial for record in known if record.tuning}
        free = (at for at in count() if at not in taken)  # also of trials whose records were deleted
        jobs = [
            Job(bracketed(study, trial), study.locations, Tuning(study.id, study.space, trial=at), longer_id(study, trial))
            for trial, at in zip(trials, free, strict=False)
        ]
        records = launch(planned, jobs)
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
    picture.write_text(heat_map_svg(heat_map(made, recorded_columns(made))), encoding="utf-8")
    print()
    show(f"Picture: {picture}. Verdicts, costs and equal budgets: attn-zoo leaderboard --records {settings.records}")

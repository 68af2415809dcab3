"""``attn-zoo tune``: search hyperparameters with equally many trials per mechanism, then run the best settings with new seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from attn_zoo.checks import check_seed, check_whole
from attn_zoo.cli.ahead import PLAN, ahead
from attn_zoo.cli.bracket import MANY, seeds_wanted
from attn_zoo.cli.config import COMPOSED, Composed, TuningConfig, compose, in_words
from attn_zoo.cli.job import Job, searched_values
from attn_zoo.cli.records_of import name_left_out
from attn_zoo.cli.run import Plan, carry_out, plan_runs
from attn_zoo.cli.search import SECOND_SEED, RefusedSearchError, Study, best_bracketed
from attn_zoo.cli.words import MULTIRUN, Word, read_run_words, settings_from
from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.statistics import SHARES
from attn_zoo.plugin_files import plugin_words
from attn_zoo.plugin_imports import apart
from attn_zoo.process_state import flushed_denormals
from attn_zoo.records import RunSpec, Store
from attn_zoo.records.tuning import best_of, ledger
from attn_zoo.registry import task_card
from attn_zoo.rows import RowName, read_rows, split
from attn_zoo.runner.facts import attention_facts
from attn_zoo.terminal import colours_here, show, wrap

_OWN = ("trials", "seeds")
USUAL_SEEDS = (1, 2, 3)
"""Default seeds of the runs with the best settings. After ``tuning.sampler=bracket``, a rule chooses the seeds instead."""
USAGE = (
    "usage: attn-zoo tune attention=ROW,... task=NAME,... [experiment=NAME]\n"
    "                     [trials=N] [seeds=1,2,3] [--plan] [KEY=VALUE ...]\n\n"
    "Search the learning rate and the size option (such as window) of each mechanism on each task, with equally many trials for "
    "each. The validation score decides. Then train with the best settings and with seeds that no trial used, and print the "
    "leaderboard of these runs. Trials and runs are recorded; run the same command again to resume.\n\n"
    "  experiment=   a predefined search, such as profile_encoder, with its mechanisms, tasks, sizes and ranges\n"
    "  trials=N      number of trials of each mechanism on each task (default: that of the experiment)\n"
    "  seeds=1,2,3   seeds of the runs with the best settings (default: 1,2,3; if training ends by a criterion, a rule chooses 3 "
    "to 10 seeds)\n"
    "  --plan        print runs and core hours by task and configuration, and start nothing\n"
    "  KEY=VALUE     as for attn-zoo run: budget.steps=1000, level=cpu, launch=joblib, records=FOLDER ...\n"
    "  ROW           NAME or NAME[OPTION=VALUE,...]; an option with a value is not searched; OPTION=A|B makes one configuration "
    "per value\n"
    "  KEY=RANGE     range to search instead of the default: 'budget.learning_rate=tag(log,interval(0.001,0.01))', "
    "'attention.projected_length=choice(8,16)'; a setting with a single value is not searched"
)


class Request(NamedTuple):
    """Searches, seeds and other settings that the command line of ``attn-zoo tune`` asks for: the mechanism with options and the
    task of each search, the words for other settings (``rest``), the seeds, if any, and whether the mechanisms are named on the
    command line (``named``) or by the experiment."""

    composed: Composed
    searches: tuple[tuple[RowName, str], ...]
    rest: tuple[Word, ...]
    seeds: tuple[int, ...]
    named: bool


@flushed_denormals()  # before PyTorch starts its threads, which inherit it
def run_command(words: Sequence[str]) -> int:
    """Run ``attn-zoo tune`` with the words that follow it on the command line.

    Returns:
        The exit status: 1 if a run with the best settings failed, no trial of a search has a score, or workers died; otherwise 0.

    Raises:
        ValueError: a word is wrong.
    """
    if not words or set(words) & {"-h", "--help"}:
        print(wrap(USAGE))
        return 0
    with in_words():
        asked = read_request([word for word in words if word != PLAN])
        planned = plan_searches(asked)  # so that nothing starts if one is wrong
    if PLAN in words:
        print(ahead(planned, asked.seeds))
        return 0
    command = ("attn-zoo", "tune", *words, *plugin_words())
    status = 0
    for searched in planned:
        if carry_out(searched, command):
            return 1
        status = _with_best_settings(searched, asked.seeds, command) or status
    if planned[0].settings.report:
        _report(planned)
    return status


def read_request(words: Sequence[str]) -> Request:
    """Return the searches and settings that the words of ``attn-zoo tune`` ask for.

    Raises:
        ValueError: a word is wrong or missing.
    """
    by_key = {word.key: word for word in read_run_words((w for w in words if w not in MULTIRUN), _OWN)}
    for key in ("attention", "task"):
        if f"tuning.{key}" in by_key:
            advice = "Write attention=NAME,... task=NAME,... on the command line"
            raise ValueError(f"tuning.{key}= can be given only in experiment files. {advice}")
    experiments = by_key.pop("experiment", Word("experiment", "tune", "tune"))
    own = {key: by_key.pop(key).values() for key in ("attention", "task", *_OWN) if key in by_key}
    experiment, *others = map(str, experiments.values())
    if others:
        raise ValueError(
            f"experiment= must name one experiment; got {', '.join([experiment, *others])}. Run one command for each of them"
        )
    composed = compose(word for word in [experiments, *by_key.values()] if word.key in COMPOSED)
    tuning = settings_from(composed.config).tuning
    if not tuning.space:
        raise ValueError(
            f"experiment={experiment} does not search any setting, so it cannot be tuned. Use attn-zoo run -m "
            f"experiment={experiment}"
        )
    tasks = own.get("task") or tuning.task
    rows = _rows(own.get("attention", []), tuning, fixed=any(key.startswith("attention.") for key in by_key))
    for key, values in (("attention", rows), ("task", tasks)):
        if not values:
            raise ValueError(f"{key}= is missing. Write, for example: attn-zoo tune attention=linformer,softmax task=digits")
    rest = list(by_key.values())
    if trials := own.get("trials"):
        trials = trials[0] if len(trials) == 1 else trials
        check_whole("trials", trials)
        rest.append(Word("tuning.trials", str(trials), trials))
    for seed in (seeds := own.get("seeds", [])):
        check_seed(seed)
    named = "attention" in own
    searches = tuple((row, task) for task, row in product(tasks, rows))
    return Request(composed, searches, tuple(rest), tuple(dict.fromkeys(seeds)), named)


@apart("a plugin", "when the runs were planned")
def plan_searches(asked: Request) -> list[Plan]:
    """Return the plans of all searches. If the experiment lists a mechanism that does not support the task, the mechanism is left
    out, and a message says so.

    Raises:
        ValueError: a word is wrong, or a mechanism on the command line does not support the task.
    """
    found, refused = list[Plan](), list[str]()
    for row, task in asked.searches:
        try:
            named = [Word("attention", str(row), row), Word("task", task, task)]
            planned = plan_runs([*named, *asked.rest], asked.composed)
        except RefusedSearchError as error:
            if asked.named:
                raise
            refused.append(f"attention={row} task={task} is left out: {error}")
            continue
        assert planned.study is not None, "the experiment is a search"
        bracketed, seed = planned.study.tuning.sampler == "bracket", planned.study.base.seed
        usual = range(1, MANY + 1) if bracketed else USUAL_SEEDS
        for taken in {seed, *([seed + SECOND_SEED] if bracketed else [])} & set(asked.seeds or usual):
            raise ValueError(f"seeds= must not include {taken}, because the trials use this seed. Choose other seeds")
        if all(planned.study.id != other.study.id for other in found if other.study):  # a search that is named twice
            found.append(planned)
    if not found:
        raise ValueError(refused[0])
    for reason in refused:
        show(reason)
    return found


def _rows(named: Sequence[RowName], tuning: TuningConfig, fixed: bool) -> list[RowName]:
    """Return the rows to search: those on the command line, otherwise those of the experiment. A bare name on the command line
    means the experiment's rows of that mechanism, if any.

    Args:
        fixed: True if the command line also has options of the mechanism as words of their own. A bare name then means itself.
    """
    usual = [row for text in tuning.attention for part in split(text) for row in read_rows(part)]
    found: list[RowName] = []
    for row in named:
        curve = [other for other in usual if other.attention == row.attention]
        found += curve if curve and row == RowName(row.attention) and not fixed else [row]
    return found if named else usual


def _with_best_settings(searched: Plan, seeds: Sequence[int], command: Sequence[str]) -> int:
    """Run the best settings of a search with the given seeds. Without any, use ``USUAL_SEEDS`` or, after a bracketed search, the
    rule.

    Returns:
        Exit status of the runs; 1 if no trial of the search has a score.
    """
    best = _best(searched)
    if best is None:
        return 1
    if seeds or searched.study is None or searched.study.tuning.sampler != "bracket":
        return carry_out(replace(best, jobs=_seeded(best.jobs[0], seeds or USUAL_SEEDS)), command)
    status, count = 0, 0
    while (wanted := _wanted(best)) > count:
        count = wanted
        status = carry_out(replace(best, jobs=_seeded(best.jobs[0], range(1, count + 1))), command)
    return status


def _seeded(job: Job, seeds: Iterable[int]) -> tuple[Job, ...]:
    """Return a copy of the job for each seed."""
    return tuple(job.resolved(seed=seed) for seed in seeds)


def _wanted(best: Plan) -> int:
    """Return the number of seeds that the rule asks for, given the recorded runs with the best settings and those of the
    controls."""
    (job,) = best.jobs
    final = [record for record in Store(best.settings.records).load(job.spec.task)[0] if not record.is_trial]
    by_id = {record.run_id: record for record in final}
    scores = []
    for seeded in _seeded(job, range(1, MANY + 1)):
        if (record := by_id.get(seeded.run_id)) is None:
            break
        scores.append(record.scores.get("valid", 0.0))
    searched = job.tuning.space if job.tuning else {}
    table = _table_of(job.spec, searched)
    same = [record for record in final if record.attention_card.get("control") and _table_of(record.spec, searched) == table]
    control = max((record.scores["valid"] for record in same if record.status == "done"), default=None)
    main = attention_facts(job.spec.attention)["control"] or job.spec.attention in best.settings.tuning.main
    return seeds_wanted(scores, main=main, control=control, share=task_card(job.spec.task).metric in SHARES)


def _table_of(spec: RunSpec, searched: Iterable[str]) -> Any:
    """Return the settings that runs of one table share: task, network, and budget without the learning rate and the searched
    keys."""
    options = {name: value for name, value in spec.task_options.items() if name != "data_seed"}
    own = {"budget.learning_rate", *searched}
    budget = {key: value for key, value in spec.budget.to_dict().items() if f"budget.{key}" not in own}
    return spec.task, options, spec.model, budget


def _report(planned: Sequence[Plan]) -> None:
    """Print the tables that contain rows of the searches, if there are any."""
    records, damaged = Store(planned[0].settings.records).load()
    asked = [(searched.study.space if searched.study else {}, searched.specs[0]) for searched in planned]
    wanted = [(space, _table_of(spec, space)) for space, spec in asked]
    of_tables = [r for r in records if r.is_trial or any(_table_of(r.spec, space) == table for space, table in wanted)]
    if made := tables(of_tables):  # without a score of any mechanism, nothing was trained
        print(f"\n{render(made, 'terminal', colours=colours_here())}")
    name_left_out(damaged)


def _best(searched: Plan) -> Plan | None:
    """Print the best settings that the trials of a search have found, and return the plan of a run with them. Its seed must be
    replaced. If no trial has a score, print this, and return None."""
    study, settings = searched.study, searched.settings
    assert isinstance(study, Study)
    trials = study.recorded(settings.records)
    best = best_of(trials)
    if best is None:
        show(
            f"study {study.id}: none of the {len(trials)} trials of {study.base.attention} on {study.base.task} has a score, so "
            "nothing is trained. Change the search space, or leave this mechanism out"
        )
        return None
    if study.tuning.sampler == "bracket":
        best = best_bracketed(study, trials)
    drawn = ledger(trials, study.id, best)
    failed = f" ({drawn.failed} without a score)" if drawn.failed else ""
    show(
        f"study {study.id}: best of {drawn.trials} trial{'s' * (drawn.trials != 1)}{failed} is trial {drawn.best_trial} with "
        f"{searched_values(best.spec, drawn)}: valid {best.task_card['metric']} {drawn.best_valid:.4g}"
    )
    spec = replace(best.spec, budget=replace(best.spec.budget, steps=study.base.budget.steps))
    return Plan((replace(study.job, spec=spec, tuning=drawn),), replace(settings, report=False))

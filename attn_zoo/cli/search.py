"""Hyperparameter search for one mechanism on one task."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import islice, product
from typing import Any

from hydra.core.override_parser.types import IntervalSweep

from attn_zoo.checks import check_text, check_whole
from attn_zoo.cli.bracket import Result, Trial, ranking, rungs
from attn_zoo.cli.config import TuningConfig
from attn_zoo.cli.job import Job
from attn_zoo.cli.words import Word, read_word
from attn_zoo.contract import Geometry, UnsupportedError
from attn_zoo.contract.options import typed_options
from attn_zoo.records import Budget, RunRecord, RunSpec, Store
from attn_zoo.records.tuning import TUNABLE, study_id, trials_of
from attn_zoo.registry import attention_options, build_attention, build_task, card, task_card
from attn_zoo.rows import RowName, convert_options, row_of
from attn_zoo.runner.count import geometry_of
from attn_zoo.runner.metrics import measure_named

AT_ONCE, STARTUP = 4, 5
"""Number of trials that Optuna's sampler ``tpe`` draws at once, whatever the launcher, so that a search is the same with any
launcher; and number of random trials before it uses scores."""
SECOND_SEED = 1000
"""Difference between the two seeds of a learning-rate search. It is large, so runs with the best settings do not use the second
seed."""


class RefusedSearchError(ValueError):
    """Error for a search range with options that the mechanism does not support on the task."""


@dataclass(frozen=True, slots=True)
class Study:
    """Hyperparameter search for one mechanism on one task."""

    id: str
    space: Mapping[str, str]
    """Range to search for each key, in Hydra's syntax. A sampler draws the keys in this order."""
    job: Job
    """Run from which trials differ only in searched values. Each searched key has the first value of its range."""
    tuning: TuningConfig
    trials: int
    """Number of trials; 0 if the results decide how many there are."""

    @property
    def base(self) -> RunSpec:
        """Specification of ``job``."""
        return self.job.spec

    def recorded(self, folder: str) -> list[RunRecord]:
        """Return the records of trials in a folder, sorted by index."""
        return trials_of(Store(folder).load(self.base.task, self.base.attention)[0], self.id)

    def run_with(self, values: Mapping[str, Any]) -> Job:
        """Return the run in which the searched keys have these values.

        Raises:
            ValueError: a value has the wrong type or breaks its rule.
        """
        given: dict[str, dict[str, Any]] = {"attention": {}, "budget": {}}
        for key, value in values.items():
            group, _, name = key.partition(".")
            given[group][name] = value
        options = convert_options(RowName(self.base.attention, given["attention"])).options
        budget = replace(self.base.budget, **typed_options("budget", Budget, given["budget"]))
        return self.job.resolved(options={**self.base.options, **options}, budget=budget)


def study_of(job: Job, tuning: TuningConfig, given: Sequence[Word]) -> Study:
    """Return the hyperparameter search that a command asks for.

    The keys to search and their ranges come from the config. The command line takes precedence: if it states several values
    for a key, these values are searched, and a key with one value is not searched.

    Args:
        job: run with all values that are not searched.

    Raises:
        ValueError: a key cannot be searched, no key is left to search, or a search setting breaks its rule.
        RefusedSearchError: the mechanism does not support the options at an end of a range.
    """
    check_text("tuning.sampler", tuning.sampler, ("grid", "tpe", "bracket"))
    check_whole("tuning.trials", tuning.trials, 1 if tuning.sampler == "tpe" else 0)
    space = _space(job, tuning, given)
    if tuning.sampler == "bracket":
        _refuse_bracket(space, tuning, job.spec)
    grid = math.prod(len(_sweep(key, text).values()) for key, text in space.items()) if tuning.sampler == "grid" else 0
    trials = min(tuning.trials or grid, grid) if grid else tuning.trials
    study = Study("", space, job, tuning, trials)
    ends = {key: _sweep(key, text).ends() for key, text in space.items()}
    tried = [values[: None if key.startswith("attention.") else 1] for key, values in ends.items()]
    for corner in product(*tried):  # options of a mechanism may break a rule together
        study.run_with(dict(zip(space, corner, strict=True)))
    first = {key: values[0] for key, values in ends.items()}
    jobs = [study.run_with({**first, key: end}) for key, values in ends.items() for end in values]
    for each in jobs:
        if reason := refusal(each):
            raise RefusedSearchError(f"the search space holds settings that cannot be run: {reason}. Give a smaller range")
    taken = {key.removeprefix("attention."): value for key, value in first.items() if key.startswith("attention.")}
    spec = replace(jobs[0].spec, options={**jobs[0].spec.options, **taken})  # with those that a spec leaves out at their defaults
    return replace(study, job=jobs[0], id=study_id(spec, space, task_card(job.spec.task).version))


def _refuse_bracket(space: Mapping[str, str], tuning: TuningConfig, base: RunSpec) -> None:
    """Check that a bracketed search varies only the learning rate, of runs that end at a criterion.

    Raises:
        ValueError: another setting is searched, a number of trials is given, or the budget is fixed.
    """
    if list(space) != ["budget.learning_rate"] or base.budget.until != "criterion" or tuning.trials:
        raise ValueError(
            "tuning.sampler=bracket must search only budget.learning_rate, with budget.until=criterion and without trials=; "
            f"got a search over {', '.join(space)} with budget.until={base.budget.until} and trials={tuning.trials}. Set "
            "tuning.sampler=grid for other searches"
        )


def bracketed(study: Study, trial: Trial) -> Job:
    """Return the run of one trial of a learning-rate search."""
    job = study.run_with({"budget.learning_rate": trial.rate})
    seed = study.base.seed + SECOND_SEED if trial.second else study.base.seed
    return job.resolved(budget=replace(job.spec.budget, steps=trial.steps), seed=seed)


def longer_id(study: Study, trial: Trial) -> str | None:
    """Return the id of the run that continues the run of this trial with more steps. Return None if the trial has the maximum
    number of steps or the second seed."""
    longer = [steps for steps in rungs(study.base.budget.steps) if steps > trial.steps]
    if not longer or trial.second:
        return None
    return bracketed(study, trial._replace(steps=longer[0])).run_id


def bracket_rates(study: Study) -> list[float]:
    """Return the learning rates that a learning-rate search always tries, whatever the results are."""
    return [float(rate) for rate in _sweep("budget.learning_rate", study.space["budget.learning_rate"]).values()]


def bracket_results(study: Study, records: Iterable[RunRecord]) -> dict[Trial, Result]:
    """Return the result of each trial of a learning-rate search, given the records of the trials."""
    return {trial_of(study, record): _result(record) for record in records}


def trial_of(study: Study, record: RunRecord) -> Trial:
    """Return the trial of a learning-rate search to which a record belongs."""
    budget = record.spec.budget
    return Trial(budget.learning_rate, budget.steps, record.spec.seed != study.base.seed)


def best_bracketed(study: Study, trials: Sequence[RunRecord]) -> RunRecord:
    """Return the record of the best trial of a learning-rate search: the trial with the most steps among those with the best rate,
    the first seed and a score. At least one trial must have a score."""
    rate = ranking(bracket_results(study, trials), study.base.budget.steps)[0]
    done = [record for record in trials if record.status == "done"]
    own = [record for record in done if trial_of(study, record)._replace(steps=0) == Trial(rate, 0)]
    return max(own, key=lambda record: record.spec.budget.steps)


def _result(record: RunRecord) -> Result:
    """Return the result of a trial. If lower is better for the metric, the score is minus its logarithm."""
    if record.status != "done":
        return Result(None)
    valid, ceiling = float(record.scores["valid"]), record.spec.budget.ceiling
    higher = record.task_card.get("higher_is_better", True)
    score = valid / (ceiling or 1.0) if higher else -math.log(max(valid, 1e-12))
    soon = record.reached.get("90")
    return Result(score, record.stopped == "criterion", math.inf if soon is None else soon["steps"])


def draws(study: Study) -> Generator[list[dict[str, Any]], list[float], None]:
    """Yield batches of trials. Each trial is a dictionary that maps the searched keys to values. After each batch, the caller must
    send the list of scores back with ``send``. Equal searches draw equal values."""
    if study.tuning.sampler == "grid":
        grid = product(*([(key, value) for value in _sweep(key, text).values()] for key, text in study.space.items()))
        yield [dict(values) for values in islice(grid, study.trials)]
        return
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)  # its studies exist in memory only, for this command
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=STARTUP)
    higher = measure_named(task_card(study.base.task).metric).higher_is_better
    made = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
    left = study.trials
    while left:
        asked = [made.ask() for _ in range(min(left, AT_ONCE))]
        scores = yield [{key: _suggest(trial, key, text) for key, text in study.space.items()} for trial in asked]
        for trial, score in zip(asked, scores, strict=True):
            made.tell(trial, score)
        left -= len(asked)


def objective(record: RunRecord | None) -> float:
    """Return the validation score of a trial. A trial without a score gets the worst possible score.

    Raises:
        BlockingIOError: another process is executing the trial.
    """
    if record is None:
        raise BlockingIOError(
            "the search needs the score of a trial that another process is running now. Run the command again when that "
            "trial is done"
        )
    if record.status == "done":
        return float(record.scores["valid"])
    return -math.inf if record.task_card.get("higher_is_better", True) else math.inf


def _space(job: Job, tuning: TuningConfig, given: Sequence[Word]) -> dict[str, str]:
    """Return the range of each key: first the ranges on the command line, then those of the config."""
    keys = [word.key for word in given]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"{twice} must be given once; got one value in brackets and a range as a key. Leave one of them out")
    named = {_of_row(word.key, job.spec): word for word in given if not word.swept} | {word.key: word for word in given}
    typed = {key: word.text for key, word in named.items() if word.swept}
    usual = {**tuning.space, **_candidates(job, tuning)}
    space = {**typed, **{key: text for key, text in usual.items() if key not in named}}
    for key in space:
        _refuse_unsearchable(key, job.spec.attention)
    if not space:
        fixed = " and ".join(f"{key}={named[key].text}" for key in usual)
        raise ValueError(
            f"a search needs at least one range, but got only single values: {fixed}. Leave one out, or give a range, such as "
            "'budget.learning_rate=tag(log,interval(0.0001,0.01))'"
        )
    return {key: "".join(text.split()) for key, text in space.items()}  # equal sweeps have equal text, however spaced


def _of_row(key: str, base: RunSpec) -> str:
    """Return the key of a mechanism's option for ``dials.NAME.OPTION``, which states the same, and any other key unchanged."""
    group, _, option = key.partition(".")
    name, _, own = option.partition(".")
    if group != "dials" or name not in row_of(base).turn:
        return key
    return f"attention.{option if row_of(base).is_hybrid else own}"


def _candidates(job: Job, tuning: TuningConfig) -> dict[str, str]:
    """Return a range for each hyperparameter with several candidate values that the mechanism accepts without a warning."""
    row = row_of(job.spec)
    if not any(tuning.dials.get(part.attention) for part in row.parts()):
        return {}
    geometry = _geometry(job)
    found = {}
    for part in row.parts():
        prefix = f"{part.attention}." if row.is_hybrid else ""
        candidates: Mapping[str, Sequence[Any]] = tuning.dials.get(part.attention) or {}
        if not isinstance(candidates, Mapping) or not all(isinstance(values, list) for values in candidates.values()):
            key = f"tuning.dials.{part.attention}"
            raise ValueError(f"{key} must have a list of values for each option; got {candidates!r}. Write {key}.OPTION=[A,B]")
        for option, values in candidates.items():
            fit = [value for value in values if _suits(replace(part, options={**part.options, option: value}), geometry)]
            if len(fit) > 1:
                found[f"attention.{prefix}{option}"] = f"choice({','.join(map(str, fit))})"
    return found


def _suits(row: RowName, geometry: Geometry) -> bool:
    entry = card(row.attention)
    try:
        build_attention(row.attention, geometry, implementation=row.implementation, **row.options)
    except (UnsupportedError, ValueError):
        return False
    return not entry.build.warnings(geometry, attention_options(entry, geometry, row.options))


def refusal(job: Job) -> str | None:
    """Return the reason why the mechanism does not support its options at the length of the task, or None if it does."""
    geometry, device = _geometry(job), job.spec.device
    try:
        for part in row_of(job.spec).parts():
            build_attention(part.attention, geometry, implementation=part.implementation, device=device, **part.options)
    except UnsupportedError as error:
        return str(error)
    return None


def _geometry(job: Job) -> Geometry:
    return geometry_of(job.spec, build_task(job.spec.task, **job.spec.task_options, **job.locations).spec)


def _refuse_unsearchable(key: str, attention: str) -> None:
    group, _, name = key.partition(".")
    row = RowName(attention)
    options = [f"{part.attention}." * row.is_hybrid + f.name for part in row.parts() for f in fields(card(part.attention).options)]
    if (group == "attention" and name in options) or (group == "budget" and name in TUNABLE):
        return
    known = [*(f"attention.{option}" for option in options), *(f"budget.{name}" for name in TUNABLE)]
    if key in ("attention", "task", "seed"):
        why = f"{key} must be one value, because a study has one mechanism, one task and one seed. "
        why += "Train the best settings with attn-zoo tune seeds=A,B" if key == "seed" else "Use attn-zoo tune for several"
    elif group == "budget" and name in {f.name for f in fields(Budget)}:
        why = f"{key} cannot be searched, because it must be the same for all configurations of a table"
    else:
        why = f"{key} cannot be searched"
    raise ValueError(f"{why}. These keys can be searched: {', '.join(known)}")


def _suggest(trial: Any, key: str, text: str) -> Any:
    """Draw the value of a searched key for one of Optuna's trials."""
    word = _sweep(key, text)
    value = word.value
    if isinstance(value, IntervalSweep):
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        return (trial.suggest_int if whole else trial.suggest_float)(key, value.start, value.end, log="log" in value.tags)
    return trial.suggest_categorical(key, word.values())


@cache
def _sweep(key: str, text: str) -> Word:
    word = read_word(f"{key}={text}")
    if not word.swept:
        raise ValueError(
            f"{key}= must be a range to be searched: choice(...), interval(...) or range(...); got the single value {text}"
        )
    return word

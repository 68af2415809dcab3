"""Search of hyperparameters: its space, refusals at the ends of the space, and the draws of its trials."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from attn_zoo.cli.config import TuningConfig
from attn_zoo.contract import Geometry, UnsupportedError
from attn_zoo.records import Budget, RunRecord, RunSpec
from attn_zoo.records.tuning import TUNABLE, study_id
from attn_zoo.registry import attention_options, build_attention, build_task, card, task_card
from attn_zoo.rows import typed_options
from attn_zoo.runner import resolve_spec
from attn_zoo.runner.count import geometry_of
from attn_zoo.runner.metrics import measure_named

SAMPLERS = ("grid", "tpe")


class RefusedSearchError(ValueError):
    """Refusal of a task by a mechanism with settings that a search reaches."""


@dataclass(frozen=True, slots=True)
class Study:
    """A search of settings, of one mechanism on one task."""

    id: str
    space: Mapping[str, str]
    """Sweeps by key, as Hydra writes them."""
    base: RunSpec
    """Spec that all trials share, with some value for each key of the space."""
    locations: Mapping[str, Any]
    order: tuple[str, ...]
    """Keys of the space in the order in which a sampler draws them."""
    tuning: TuningConfig
    trials: int
    """Number of trials."""

    def spec(self, values: Mapping[str, Any]) -> RunSpec:
        """Resolved spec with values for the keys of the space.

        Raises:
            ValueError: a value has the wrong type or breaks its rule.
        """
        given: dict[str, dict[str, Any]] = {"attention": {}, "budget": {}}
        for key, value in values.items():
            group, _, name = key.partition(".")
            given[group][name] = value
        options = typed_options(f"attention {self.base.attention}", card(self.base.attention).options, given["attention"])
        budget = replace(self.base.budget, **typed_options("budget", Budget, given["budget"]))
        return resolve_spec(replace(self.base, options={**self.base.options, **options}, budget=budget), self.locations)


def study_of(base: RunSpec, locations: Mapping[str, Any], tuning: TuningConfig, given: Sequence[Override]) -> Study:
    """Study that a command asks for.

    What the command line says of a setting goes before the configuration: a sweep is the range, a value takes it out.

    Args:
        base: composed of the overrides that sweep nothing.
        given: all overrides of the command line.

    Raises:
        ValueError: something else than settings of one mechanism on one task is swept, or a number breaks its rule.
        RefusedSearchError: an end of a range is refused.
    """
    if tuning.sampler not in SAMPLERS:
        raise ValueError(f"tuning.sampler is {' or '.join(SAMPLERS)}; got {tuning.sampler!r}")
    least = 0 if tuning.sampler == "grid" else 1
    if tuning.trials < least or tuning.at_once < 1:
        raise ValueError(
            f"tuning.trials and tuning.at_once count trials, so they are at least {least} and 1; "
            f"got {tuning.trials} and {tuning.at_once}"
        )
    wanted = _space(base, locations, tuning, given)
    space = dict(sorted(wanted.items()))
    grid = math.prod(len(_choices(key, text)) for key, text in space.items()) if tuning.sampler == "grid" else 0
    trials = min(tuning.trials or grid, grid) if grid else tuning.trials
    study = Study("", space, base, locations, tuple(wanted), tuning, trials)
    ends = [study.spec(values) for values in _ends_of(space)]
    for spec in ends:
        if reason := refusal(spec, locations):
            raise RefusedSearchError(f"the search reaches settings that are refused: {reason}")
    return replace(study, base=ends[0], id=study_id(ends[0], space, task_card(base.task).version))


def draws(study: Study) -> Generator[list[dict[str, Any]], list[float], None]:
    """Yield batches of values by key and take their scores; the same study draws the same values."""
    if study.tuning.sampler == "grid":
        grid = product(*([(key, value) for value in _choices(key, study.space[key])] for key in study.order))
        yield [dict(values) for values in islice(grid, study.trials)]
        return
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)  # its own studies live no longer than the command
    sampler = optuna.samplers.TPESampler(seed=study.tuning.seed, n_startup_trials=study.tuning.startup)
    higher = measure_named(task_card(study.base.task).metric).higher_is_better
    made = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
    left = study.trials
    while left:
        asked = [made.ask() for _ in range(min(left, study.tuning.at_once))]
        scores = yield [{key: _suggest(trial, key, study.space[key]) for key in study.order} for trial in asked]
        for trial, score in zip(asked, scores, strict=True):
            made.tell(trial, score)
        left -= len(asked)


def objective(record: RunRecord | None) -> float:
    """Validation score of a trial; the worst possible for a trial without one.

    Raises:
        BlockingIOError: another process is at the trial.
    """
    if record is None:
        raise BlockingIOError(
            "another process is at a trial of this study, and the search needs its score to go on; give the command again when "
            "that one is done"
        )
    if record.status == "done":
        return float(record.scores["valid"])
    return -math.inf if record.task_card.get("higher_is_better", True) else math.inf


def _space(base: RunSpec, locations: Mapping[str, Any], tuning: TuningConfig, given: Sequence[Override]) -> dict[str, str]:
    """Sweeps by key: those that were typed, then those of the configuration."""
    named = {str(override.get_key_element()).lstrip("+~"): override for override in given}
    typed = {key: str(override.input_line).partition("=")[2] for key, override in named.items() if override.is_sweep_override()}
    usual = {**tuning.space, **_candidates(base, locations, tuning)}
    space = {**typed, **{key: text for key, text in usual.items() if key not in named}}
    for key in space:
        _refuse_unsearchable(key, base.attention)
    if not space:
        raise ValueError("nothing is left to search; give a range, such as 'budget.learning_rate=tag(log,interval(0.0001,0.01))'")
    return {key: "".join(text.split()) for key, text in space.items()}  # the same sweep however it was spaced


def _candidates(base: RunSpec, locations: Mapping[str, Any], tuning: TuningConfig) -> dict[str, str]:
    """Sweeps over the candidates that the mechanism neither refuses nor warns of; a single one is no sweep."""
    candidates: Mapping[str, Sequence[Any]] = tuning.dials.get(base.attention) or {}
    if not candidates:
        return {}
    geometry = _geometry(base, locations)
    found = {}
    for option, values in candidates.items():
        fit = [value for value in values if _suits(base, {**base.options, option: value}, geometry)]
        if len(fit) > 1:
            found[f"attention.{option}"] = f"choice({','.join(map(str, fit))})"
    return found


def _suits(base: RunSpec, options: Mapping[str, Any], geometry: Geometry) -> bool:
    entry = card(base.attention)
    try:
        build_attention(base.attention, geometry, implementation=base.implementation, **options)
    except (UnsupportedError, ValueError):
        return False
    return not entry.build.warnings(geometry, attention_options(entry, geometry, options))


def refusal(spec: RunSpec, locations: Mapping[str, Any]) -> str | None:
    """Reason why a mechanism refuses its options at the length of its task, or None."""
    geometry = _geometry(spec, locations)
    try:
        build_attention(spec.attention, geometry, implementation=spec.implementation, device=spec.device, **spec.options)
    except UnsupportedError as error:
        return str(error)
    return None


def _geometry(spec: RunSpec, locations: Mapping[str, Any]) -> Geometry:
    return geometry_of(spec, build_task(spec.task, **spec.task_options, **locations).spec)


def _refuse_unsearchable(key: str, attention: str) -> None:
    group, _, name = key.partition(".")
    options = [f.name for f in fields(card(attention).options)]
    if (group == "attention" and name in options) or (group == "budget" and name in TUNABLE):
        return
    known = [*(f"attention.{option}" for option in options), *(f"budget.{name}" for name in TUNABLE)]
    if key in ("attention", "task", "seed"):
        why = f"a study is of one mechanism on one task with one seed, so {key} is one value; attn-zoo tune takes several"
    elif group == "budget" and name in {f.name for f in fields(Budget)}:
        why = f"{key} is the same for every row of a table, so it cannot be searched"
    else:
        why = f"{key} cannot be searched"
    raise ValueError(f"{why}. Searched can be: {', '.join(known)}")


def _ends_of(space: Mapping[str, str]) -> list[dict[str, Any]]:
    """Values that try each end of each range, and each choice, with the others at their first."""
    ends = {key: _ends(key, text) for key, text in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    return [{**first, varied: end} for varied, values in ends.items() for end in values]


def _ends(key: str, text: str) -> list[Any]:
    value = _parsed(key, text).value()
    if isinstance(value, IntervalSweep):
        return [value.start, value.end]
    if isinstance(value, RangeSweep):  # a sampler draws the stop as well, unlike Hydra's own sweeps
        return [value.start, value.stop]
    return _choices(key, text)


def _choices(key: str, text: str) -> list[Any]:
    """Values of a sweep; a range includes its stop.

    Raises:
        ValueError: an interval has no end of values.
    """
    override = _parsed(key, text)
    value = override.value()
    if isinstance(value, IntervalSweep):
        raise ValueError(f"{key}={text} has no end of values, and a grid needs choice(...) or range(...); or tuning.sampler=tpe")
    if isinstance(value, RangeSweep):
        assert value.start is not None and value.stop is not None
        steps = int((value.stop - value.start) // value.step)
        return [value.start + at * value.step for at in range(steps + 1)]
    return [OverridesParser.create().parse_override(f"{key}={one}").value() for one in override.sweep_string_iterator()]


def _suggest(trial: Any, key: str, text: str) -> Any:
    """Draw a value for a key of a space from one of Optuna's trials."""
    value = _parsed(key, text).value()
    if isinstance(value, IntervalSweep):
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        return (trial.suggest_int if whole else trial.suggest_float)(key, value.start, value.end, log="log" in value.tags)
    if isinstance(value, RangeSweep):
        whole = all(isinstance(part, int) for part in (value.start, value.stop, value.step))
        return (trial.suggest_int if whole else trial.suggest_float)(key, value.start, value.stop, step=value.step)
    return trial.suggest_categorical(key, _choices(key, text))


def _parsed(key: str, text: str) -> Override:
    override = OverridesParser.create().parse_override(f"{key}={text}")
    if not override.is_sweep_override():
        raise ValueError(f"{key}={text} is one value, where a search needs a range: choice(...), interval(...) or range(...)")
    return override

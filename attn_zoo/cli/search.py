"""A search of settings before it begins: what it varies, over which values, and whether all of them can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from attn_zoo.cli.config import locations_from, spec_from
from attn_zoo.contract import Geometry, UnsupportedError
from attn_zoo.records import Budget, RunSpec
from attn_zoo.records.tuning import TUNABLE
from attn_zoo.registry import attention_options, build_attention, build_task, card
from attn_zoo.runner.count import geometry_of


@dataclass(frozen=True, slots=True)
class Study:
    """A search of settings, of one mechanism on one task."""

    id: str
    space: Mapping[str, str]
    """By key, the values searched over, as Hydra writes them."""
    attention: str
    task: str
    trials: int
    """As many as were asked for."""


def space_of(config: DictConfig, given: Sequence[Override]) -> tuple[dict[str, str], list[str]]:
    """What a command searches over, and the words that it lacks for it.

    What the command line says of a setting goes before the configuration: a sweep is the range, a value takes it out.

    Args:
        config: composed of the overrides that sweep nothing.
        given: all overrides of the command line.

    Raises:
        ValueError: something else than settings of one mechanism on one task is swept.
    """
    named = {_key(override): override for override in given}
    for key, override in named.items():
        if override.is_sweep_override():
            _refuse_unsearchable(key, config.attention.name)
    wanted = {key: text for key, text in config.tuning.space.items() if key not in named}
    wanted |= {key: text for key, text in _dials(config).items() if key not in named}
    typed = {key: str(override.input_line).partition("=")[2] for key, override in named.items() if override.is_sweep_override()}
    space = {key: _plain(text) for key, text in sorted({**wanted, **typed}.items())}
    for key in space:
        _refuse_unsearchable(key, config.attention.name)
    if not space:
        raise ValueError("nothing is left to search; give a range, such as 'budget.learning_rate=tag(log,interval(0.0001,0.01))'")
    return space, [f"{key}={text}" for key, text in wanted.items()]


def ends_of(space: Mapping[str, str]) -> list[list[str]]:
    """Overrides that try each end of each range, and each choice, with the others at their first."""
    ends = {key: _ends(key, text) for key, text in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    return [
        [f"{key}={value}" for key, value in {**first, varied: end}.items()] for varied, values in ends.items() for end in values
    ]


def refusal(spec: RunSpec, locations: Mapping[str, Any]) -> str | None:
    """Why a mechanism refuses its options at the length of its task; None where it does not."""
    geometry = _geometry(spec, locations)
    try:
        build_attention(spec.attention, geometry, implementation=spec.implementation, device=spec.device, **spec.options)
    except UnsupportedError as error:
        return str(error)
    return None


def _dials(config: DictConfig) -> dict[str, str]:
    """Sweeps over those candidates of the mechanism's own dials that it neither refuses nor doubts here; single ones are none."""
    name = config.attention.name
    candidates = OmegaConf.to_container(config.tuning.dials.get(name, OmegaConf.create({})), resolve=True)
    assert isinstance(candidates, dict)
    if not candidates:
        return {}
    spec = spec_from(config)
    geometry = _geometry(spec, locations_from(config))
    found = {}
    for option, values in candidates.items():
        fit = [value for value in values if _suits(name, {**spec.options, str(option): value}, geometry, spec.implementation)]
        if len(fit) > 1:
            found[f"attention.{option!s}"] = f"choice({','.join(map(str, fit))})"
    return found


def _suits(name: str, options: Mapping[str, Any], geometry: Geometry, implementation: str) -> bool:
    entry = card(name)
    try:
        build_attention(name, geometry, implementation=implementation, **options)
    except (UnsupportedError, ValueError):
        return False
    return not entry.build.warnings(geometry, attention_options(entry, geometry, options))


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


def _ends(key: str, text: str) -> list[str]:
    override = _parsed(key, text)
    value = override.value()
    if isinstance(value, IntervalSweep):
        return [str(value.start), str(value.end)]
    if isinstance(value, RangeSweep):  # Optuna draws the stop as well, unlike Hydra's own sweeps
        return [str(value.start), str(value.stop)]
    return list(override.sweep_string_iterator())


def _parsed(key: str, text: str) -> Override:
    override = OverridesParser.create().parse_override(f"{key}={text}")
    if not override.is_sweep_override():
        raise ValueError(f"{key}={text} is one value, where a search needs a range: choice(...), interval(...) or range(...)")
    return override


def _plain(text: str) -> str:
    """The same sweep however it was spaced."""
    return "".join(text.split())


def _key(override: Override) -> str:
    return str(override.get_key_element()).lstrip("+~")

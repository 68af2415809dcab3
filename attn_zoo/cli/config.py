"""Hydra's typed groups, made from the cards: what is registered can be selected, and nothing needs a YAML file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Optional, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from attn_zoo import registry
from attn_zoo.contract import Level, TaskCard, UnknownNameError
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.runner import resolve_spec


def _optional_twin(kind: type, name: str = "") -> type:
    """The fields of ``kind``, without its rules, which speak when the run is resolved; each None unless given.

    What is None is taken from the task's level or the sweep's dials, then from ``kind``. With a name, that comes first.
    """
    hints = get_type_hints(kind)
    named: list[tuple[str, Any, Any]] = [("name", str, name)] if name else []
    title = f"options of {name}" if name else f"{kind.__name__}Overrides"
    return make_dataclass(title, [*named, *((f.name, Optional[hints[f.name]], None) for f in fields(kind))])  # noqa: UP045 (built at run time)


ModelOverrides = _optional_twin(ModelSpec)
BudgetOverrides = _optional_twin(Budget)


@dataclass
class DataConfig:
    """Where data are read."""

    root: str = ""
    """Folder of data sets; empty means $ATTN_ZOO_DATA, else ``data``."""


@dataclass
class RunConfig:
    """Everything ``attn-zoo run`` can be told."""

    attention: Any = None
    task: Any = None
    dials: Any = None
    """Options of attentions by name, for a sweep over several; what is given as attention.OPTION goes before."""
    implementation: str = "eager"
    """``eager``, ``sdpa``, ``flex``, ``xformers``, ``triton``, or ``auto``."""
    level: Optional[str] = None  # noqa: UP045 (OmegaConf's form)
    """Which of the sizes that the task proposes; unless said, the first on its card."""
    data: DataConfig = field(default_factory=lambda: DataConfig())
    model: Any = field(default_factory=lambda: ModelOverrides())
    budget: Any = field(default_factory=lambda: BudgetOverrides())
    seed: int = 1
    device: str = "auto"
    precision: str = "fp32"
    records: str = "runs"
    """Folder that records are added to."""


def store_groups() -> Mapping[str, str]:
    """Register the groups ``attention`` and ``task`` and the schema of the whole.

    Returns:
        Reasons of the plugins that failed, by name; those whose options Hydra cannot type are among them.
    """
    failures = dict(registry.load_plugins())
    store = ConfigStore.instance()
    groups: list[tuple[str, str, Any]] = [("attention", name, registry.card(name)) for name in registry.attentions()]
    groups += [("task", name, registry.task_card(name)) for name in registry.task_names()]
    dials: list[tuple[str, Any, Any]] = []
    for group, name, entry in groups:
        try:
            store.store(group=group, name=name, node=OmegaConf.structured(_optional_twin(entry.options, name)))
        except Exception as error:  # a stranger's options may hold anything
            failures[f"{group} {name}"] = f"its options cannot be typed: {error}"
            continue
        if group == "attention":
            twin = _optional_twin(entry.options)
            dials.append((name, twin, field(default_factory=twin)))
    store.store(name="schema", node=OmegaConf.structured(RunConfig(dials=make_dataclass("Dials", dials)())))
    return failures


def spec_from(config: DictConfig) -> RunSpec:
    """The resolved spec that a composed configuration means.

    Raises:
        UnknownNameError: a level or name does not exist.
        ValueError: an option, size or budget breaks its rule.
    """
    attention, task = _given(config.attention), _given(config.task)
    name = attention.pop("name")
    dials = _given(config.dials[name]) if name in config.dials else {}
    entry = registry.task_card(task.pop("name"))
    level = _level(entry, config.level)
    return resolve_spec(
        RunSpec(
            attention=name,
            task=entry.name,
            options={**dials, **attention},
            task_options={**level.options, **task},
            implementation=config.implementation,
            model=ModelSpec(**{**level.model, **_given(config.model)}),
            budget=Budget(**{**level.budget, **_given(config.budget)}),
            seed=config.seed,
            device=config.device,
            precision=config.precision,
        )
    )


def locations_from(config: DictConfig) -> dict[str, Any]:
    """The task options that say where data lie, as composed; ``root`` is ``data.root`` unless the task has its own."""
    task = _given(config.task)
    locations = registry.task_card(task["name"]).locations
    root = {"root": config.data.root} if "root" in locations and config.data.root else {}
    return {**root, **{name: task[name] for name in locations if name in task}}


def _level(entry: TaskCard, name: str | None) -> Level:
    if name is None:
        return next(iter(entry.levels.values()))
    if name not in entry.levels:
        raise UnknownNameError(f"level of task {entry.name}", name, entry.levels)
    return entry.levels[name]


def _plain(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _given(node: Any) -> dict[str, Any]:
    return {key: value for key, value in _plain(node).items() if value is not None}

"""Hydra's typed groups, made from the cards: what is registered can be selected, and nothing needs a YAML file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Optional, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from attn_zoo import registry
from attn_zoo.contract import TaskCard, UnknownNameError
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.runner import resolve_spec


def _optional_twin(kind: type) -> type:
    """The fields of ``kind``, each None unless given: what is None is taken from the task's level, then from ``kind``."""
    hints = get_type_hints(kind)
    return make_dataclass(f"{kind.__name__}Overrides", [(f.name, Optional[hints[f.name]], None) for f in fields(kind)])  # noqa: UP045 (built at run time)


def _named_twin(name: str, kind: type) -> type:
    """The fields of an options dataclass after its entry's name, without the rules, which speak when the run is resolved."""
    hints = get_type_hints(kind)
    own: list[tuple[str, Any, Any]] = [("name", str, name)]
    for f in fields(kind):
        default = field(default_factory=f.default_factory) if f.default is MISSING else f.default
        own.append((f.name, hints[f.name], default))
    return make_dataclass(f"options of {name}", own)


ModelOverrides = _optional_twin(ModelSpec)
BudgetOverrides = _optional_twin(Budget)


@dataclass
class RunConfig:
    """Everything ``attn-zoo run`` can be told."""

    attention: Any = None
    task: Any = None
    implementation: str = "eager"
    """``eager``, ``sdpa``, ``flex``, ``xformers``, ``triton``, or ``auto``."""
    level: str = "quick"
    """Which of the sizes that the task proposes."""
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
    store.store(name="schema", node=RunConfig)
    for group, names, card_of in (
        ("attention", registry.attentions(), registry.card),
        ("task", registry.task_names(), registry.task_card),
    ):
        for name in names:
            entry: Any = card_of(name)
            try:
                store.store(group=group, name=name, node=OmegaConf.structured(_named_twin(name, entry.options)))
            except Exception as error:  # a stranger's options may hold anything
                failures[f"{group} {name}"] = f"its options cannot be typed: {error}"
    return failures


def spec_from(config: DictConfig) -> RunSpec:
    """The resolved spec that a composed configuration means.

    Raises:
        UnknownNameError: a level or name does not exist.
        ValueError: an option, size or budget breaks its rule.
    """
    attention, task = _plain(config.attention), _plain(config.task)
    entry = registry.task_card(task["name"])
    level = _level(entry, config.level)
    return resolve_spec(
        RunSpec(
            attention=attention.pop("name"),
            task=task.pop("name"),
            options=attention,
            task_options=task,
            implementation=config.implementation,
            model=ModelSpec(**{**level["model"], **_given(config.model)}),
            budget=Budget(**{**level["budget"], **_given(config.budget)}),
            seed=config.seed,
            device=config.device,
            precision=config.precision,
        )
    )


def locations_from(config: DictConfig) -> dict[str, Any]:
    """The task options that say where data lie, as composed."""
    task = _plain(config.task)
    return {name: task[name] for name in registry.task_card(task["name"]).locations}


def _level(entry: TaskCard, name: str) -> dict[str, Mapping[str, Any]]:
    if name not in entry.levels:
        raise UnknownNameError(f"level of task {entry.name}", name, entry.levels)
    level = entry.levels[name]
    return {"model": level.model, "budget": level.budget}


def _plain(node: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _given(node: Any) -> dict[str, Any]:
    return {key: value for key, value in _plain(node).items() if value is not None}

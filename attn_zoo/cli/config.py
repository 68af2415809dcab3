"""Hydra's typed groups, made from the cards: what is registered can be selected, and nothing needs a YAML file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Dict, List, Optional, get_type_hints  # noqa: UP035 (OmegaConf's form)

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from attn_zoo import registry
from attn_zoo.contract import Level, TaskCard, UnknownNameError
from attn_zoo.records import Budget, ModelSpec, RunSpec
from attn_zoo.runner import resolve_spec

_TYPES: dict[str, tuple[object, type]] = {}
"""By the name that this module has it under, each type of a group that was made so far, after what it was made of."""


def __getattr__(name: str) -> type:
    """Types of groups as attributes of this module, made when first asked for.

    So they are pickled by name, and a worker makes its own of them. Sent whole, they would come back from it as dataclasses
    without fields, since what marks a field is an object that pickling copies.
    """
    group, _, entry = name.partition("_")
    try:
        if group in ("attention", "dials") and entry:
            return _options_type(group, entry, registry.card(entry).options)
        if group == "task" and entry:
            return _options_type(group, entry, registry.task_card(entry).options)
    except UnknownNameError as error:
        raise AttributeError(str(error)) from error
    if name == "Dials":
        store_groups()
        return _TYPES[name][1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _once(title: str, made_of: object, make: Callable[[], type]) -> type:
    """The type of this name, made anew only where it is made of something else."""
    if title not in _TYPES or _TYPES[title][0] != made_of:
        made = make()
        made.__module__ = __name__
        _TYPES[title] = made_of, made
    return _TYPES[title][1]


def _options_type(group: str, name: str, options: type) -> type:
    """Of an entry's options; as dials they stand without their entry's name."""
    title = f"{group}_{name}"
    return _once(title, options, lambda: _optional_twin(options, title, name if group != "dials" else ""))


def _dials_type(options: Mapping[str, type]) -> type:
    """One field for each attention, of its options."""
    twins = [(name, _options_type("dials", name, kind)) for name, kind in options.items()]
    dials = [(name, twin, field(default_factory=twin)) for name, twin in twins]
    return _once("Dials", twins, lambda: make_dataclass("Dials", dials))


def _optional_twin(kind: type, title: str, name: str = "") -> type:
    """The fields of ``kind``, without its rules, which speak when the run is resolved; each None unless given.

    What is None is taken from the task's level or the sweep's dials, then from ``kind``. With a name, that comes first.
    """
    hints = get_type_hints(kind)
    named: list[tuple[str, Any, Any]] = [("name", str, name)] if name else []
    made = make_dataclass(title, [*named, *((f.name, Optional[hints[f.name]], None) for f in fields(kind))])  # noqa: UP045 (built at run time)
    made.__module__ = __name__
    return made


ModelOverrides = _optional_twin(ModelSpec, "ModelOverrides")
BudgetOverrides = _optional_twin(Budget, "BudgetOverrides")


@dataclass
class DataConfig:
    """Where data are read."""

    root: str = ""
    """Folder of data sets; empty means $ATTN_ZOO_DATA, else ``data``."""


@dataclass
class CheckpointConfig:
    """When the state of a run is kept, to go on from after an interruption."""

    every: int = 0
    """Steps between two checkpoints; 0 leaves it to the clock."""
    minutes: float = 10.0
    """Time after which a step is followed by one; 0 leaves it to the steps, and both 0 keep none."""


@dataclass
class TrackingConfig:
    """Who is told the course of a run, beside the record."""

    to: List[str] = field(default_factory=list)  # noqa: UP006 (OmegaConf's form)
    """``tensorboard``, ``mlflow``, ``wandb``."""
    project: str = "attn-zoo"
    """What the runs stand under; MLflow's experiment."""
    folder: str = "tracking"
    """Where trackers write files."""
    every: int = 10
    """Steps between two points of the training loss."""


@dataclass
class TuningConfig:
    """What a search of settings draws from, as ``experiment=tune`` has it; empty where nothing is searched."""

    space: Dict[str, str] = field(default_factory=dict)  # noqa: UP006 (OmegaConf's form)
    """By key of a setting, the sweep to search over unless the command line has the key."""
    dials: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """By attention, candidates for each of its own dials."""
    attention: List[str] = field(default_factory=list)  # noqa: UP006
    """Attentions that ``attn-zoo tune`` takes unless it is told others."""
    task: List[str] = field(default_factory=list)  # noqa: UP006
    """Tasks that it takes unless it is told others."""
    settings: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """By attention, values of its options; it searches each of them apart, so that they make a curve of rows."""


@dataclass
class RunConfig:
    """Everything ``attn-zoo run`` can be told."""

    attention: Any = None
    task: Any = None
    dials: Any = None
    """Options of attentions by name, for a sweep over several; what is given as attention.OPTION goes before."""
    implementation: str = "auto"
    """``auto``, or ``eager``, ``tiled``, ``sdpa``, ``flex``, ``xformers``, ``triton``, ``fla``."""
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
    report: bool = True
    """Print the leaderboard when all is done."""
    overview: bool = False
    """Print its first table alone, and save it as a picture beside the records."""
    threads: int = 0
    """Of PyTorch within an operation, in each process; 0 leaves them as they are. As many threads give the same bits."""
    workers: Optional[int] = None  # noqa: UP045
    """Runs at once, with a launcher (``launch=``)."""
    restarts: int = 2
    """How often what is missing is started again after a worker has died, with a launcher."""
    tuning: TuningConfig = field(default_factory=lambda: TuningConfig())
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig())
    tracking: TrackingConfig = field(default_factory=lambda: TrackingConfig())


class _Groups(dict[str, Any]):
    """What is stored with Hydra, not copied whole each time that a run is composed, which took a third of that.

    Hydra copies its sources before it changes their list; what is stored it only reads, and makes a copy of what it takes.
    """

    def __deepcopy__(self, memo: object) -> _Groups:
        return self


def store_groups() -> Mapping[str, str]:
    """Register the groups ``attention`` and ``task`` and the schema of the whole.

    Returns:
        Reasons of the plugins that failed, by name; those whose options Hydra cannot type are among them.
    """
    failures = dict(registry.load_plugins())
    store = ConfigStore.instance()
    if not isinstance(store.repo, _Groups):
        store.repo = _Groups(store.repo)
    groups: list[tuple[str, str, Any]] = [("attention", name, registry.card(name)) for name in registry.attentions()]
    groups += [("task", name, registry.task_card(name)) for name in registry.task_names()]
    typed: dict[str, type] = {}
    for group, name, entry in groups:
        try:
            store.store(group=group, name=name, node=OmegaConf.structured(_options_type(group, name, entry.options)))
        except Exception as error:  # a stranger's options may hold anything
            failures[f"{group} {name}"] = f"its options cannot be typed: {error}"
            continue
        if group == "attention":
            typed[name] = entry.options
    store.store(name="schema", node=OmegaConf.structured(RunConfig(dials=_dials_type(typed)())))
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
    spec = RunSpec(
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
    return resolve_spec(spec, locations_from(config))


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
